//! The limiter in front of a store that can be slow, failing or gone.

mod fake_store;
mod leases;
mod local_quota;
mod losses;
mod succession;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use sluice_limiter::{Algorithm, Period, Rate, Requests};

use self::fake_store::FakeStore;
use super::Limiter;
use super::check::{LimiterOptions, Reservation};
use crate::check::{KeyHash, LimitSpec};
use crate::plan::{Consistency, LimitPlan, OnStoreFailure, PlannedCounter, Replica, Replicas};

const DAY: u64 = 86_400_000;

/// Plans a limit with fixed windows for the only replica. Rates are requests and milliseconds.
fn plan(scope: &str, rates: &[(u64, u64)], consistency: Consistency) -> Arc<LimitPlan> {
    plan_for(Replica::ONLY, scope, rates, consistency)
}

/// Plans a limit with fixed windows for one of several replicas.
fn plan_for(replica: Replica, scope: &str, rates: &[(u64, u64)], consistency: Consistency) -> Arc<LimitPlan> {
    let rate = |&(requests, millis)| {
        let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap());
        Rate::new(requests, period, Algorithm::FIXED_WINDOW).unwrap()
    };
    let spec = Arc::new(LimitSpec::new(scope, rates.iter().map(rate).collect()));
    let replicas = Replicas::new(replica);
    Arc::new(LimitPlan::new(spec, consistency, OnStoreFailure::Share, false, replicas))
}

fn counter(plan: &Arc<LimitPlan>, key: u128) -> PlannedCounter {
    PlannedCounter { limit: plan.clone(), key: KeyHash(key), cost: 1 }
}

fn limiter(store: &Arc<FakeStore>) -> Limiter<FakeStore> {
    Limiter::start(store.clone(), &LimiterOptions::default(), None)
}

/// Sends this many checks, 500 us apart, and returns the number that was admitted.
async fn admitted(limiter: &Limiter<FakeStore>, counters: &[PlannedCounter], checks: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..checks {
        admitted += usize::from(limiter.check(counters).await.unwrap().response.admitted);
        tokio::time::advance(Duration::from_micros(500)).await;
    }
    admitted
}

/// Lets other tasks run until a condition holds. The paused time advances meanwhile.
async fn until(condition: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("timed out: {condition}");
}

async fn until_flushed(limiter: &Limiter<FakeStore>) {
    until("local usage is flushed", || limiter.metrics().unwrap().local_quota.pending == 0).await;
}

async fn until_acquired(limiter: &Limiter<FakeStore>) {
    until("blocks are acquired", || limiter.metrics().unwrap().leases.pending_acquisitions == 0).await;
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_longer_than_the_latency_budget_for_a_slow_store() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let plans = [
        plan("n/p/s", &[(1_000, DAY)], Consistency::Strict),
        plan("n/p/l", &[(1_000, DAY)], Consistency::Leased),
    ];
    for plan in &plans {
        assert_eq!(admitted(&limiter, &[counter(plan, 1)], 30).await, 30);
    }
    store.block_calls();
    for plan in &plans {
        for _ in 0..200 {
            let start = tokio::time::Instant::now();
            let outcome = limiter.check(&[counter(plan, 1)]).await.unwrap();
            assert!(outcome.response.admitted);
            let budget = LimiterOptions::default().latency_budget;
            assert!(start.elapsed() <= budget + Duration::from_millis(1));
        }
    }
    assert!(limiter.metrics().unwrap().local_quota.admitted > 0);
}

#[tokio::test(start_paused = true)]
async fn a_charge_is_corrected_where_it_was_made() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let plan = plan("n/p/l", &[(100, DAY)], Consistency::Strict);
    let counter = counter(&plan, 1);
    let outcome = limiter.check(std::slice::from_ref(&counter)).await.unwrap();
    limiter.settle(&counter, outcome.reservations[0], 9).await.unwrap();
    assert_eq!(store.used(&plan, 1), [10]);
    store.unreachable.store(true, SeqCst);
    let outcome = limiter.check(std::slice::from_ref(&counter)).await.unwrap();
    assert!(matches!(outcome.reservations[0], Reservation::Local(_)));
    limiter.settle(&counter, outcome.reservations[0], 4).await.unwrap();
    store.unreachable.store(false, SeqCst);
    until_flushed(&limiter).await;
    assert_eq!(store.used(&plan, 1), [15]);
    // The local charge has been flushed, so a further correction goes to the store.
    limiter.settle(&counter, outcome.reservations[0], -2).await.unwrap();
    assert_eq!(store.used(&plan, 1), [13]);
}
