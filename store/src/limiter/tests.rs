//! The layers above a store in memory that can be slow, deaf and gone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice_limiter::{Algorithm, Period, Rate, Requests};
use tokio::sync::Semaphore;

use super::backend::Backend;
use super::outcome::{LimiterOptions, Reservation, Source};
use super::plan::{Consistency, LimitPlan, OnStoreFailure, PlannedCounter};
use super::remote::RemoteLimiter;
use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Records, Settlement, decide, settle,
};
use crate::failure::{StoreError, StoreFault, StoreHealth};
use crate::lease::LeaseMetrics;
use crate::{Replica, Replicas};

/// A store in memory.
#[derive(Debug)]
struct Fake {
    counters: Mutex<HashMap<(String, u128), Records>>,
    /// Calls pass while there are permits.
    door: Semaphore,
    gone: AtomicBool,
    /// Takings that fail from now on, though the store says that it is well.
    deaf: AtomicBool,
    now: AtomicU64,
    checks: AtomicU64,
    takes: AtomicU64,
    settles: AtomicU64,
}

impl Fake {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            counters: Mutex::default(),
            door: Semaphore::new(Semaphore::MAX_PERMITS),
            gone: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            now: AtomicU64::new(1_700_000_000_000_000),
            checks: AtomicU64::new(0),
            takes: AtomicU64::new(0),
            settles: AtomicU64::new(0),
        })
    }

    async fn pass(&self) -> Result<(), StoreError> {
        if self.gone.load(SeqCst) {
            return Err(StoreError::Unavailable(StoreFault::Unreachable));
        }
        let Ok(permit) = self.door.acquire().await else { return Err(StoreError::Timeout) };
        permit.forget();
        Ok(())
    }

    fn decide(&self, check: &[Counter]) -> CheckResponse {
        let mut counters = self.counters.lock().unwrap();
        let key = |counter: &Counter| (counter.limit.scope.clone(), counter.key.0);
        let mut before: Vec<Records> =
            check.iter().map(|counter| counters.get(&key(counter)).cloned().unwrap_or_default()).collect();
        let foreign: Vec<Records> = check
            .iter()
            .zip(&before)
            .map(|(counter, records)| {
                let own = |tag| counter.limit.rates.iter().any(|rate| rate.tag() == tag);
                records.iter().filter(|record| !own(record.tag)).cloned().collect()
            })
            .collect();
        let answer = decide(check, &mut before, self.now.load(SeqCst));
        for ((counter, mut records), foreign) in check.iter().zip(before).zip(foreign) {
            records.extend(foreign);
            counters.insert(key(counter), records);
        }
        answer
    }

    fn used(&self, plan: &LimitPlan, key: u128) -> Vec<u64> {
        let counters = self.counters.lock().unwrap();
        let records = counters.get(&(plan.spec.scope.clone(), key)).cloned().unwrap_or_default();
        let used = |rate: &Rate| {
            records.iter().find(|record| record.tag == rate.tag()).map_or(0, |record| record.current)
        };
        plan.spec.rates.iter().map(used).collect()
    }
}

impl Backend for Fake {
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        self.checks.fetch_add(1, SeqCst);
        self.pass().await?;
        Ok(self.decide(&check))
    }

    async fn acquire(&self, counter: Counter, wanted: u64) -> Result<Grant, StoreError> {
        self.takes.fetch_add(1, SeqCst);
        if self.deaf.load(SeqCst) {
            return Err(StoreError::Timeout);
        }
        self.pass().await?;
        let counter = [counter];
        let granted = (0..wanted).take_while(|_| self.decide(&counter).admitted).count() as u64;
        let peek = [Counter { cost: 0, ..counter[0].clone() }];
        Ok(Grant { granted, answer: self.decide(&peek) })
    }

    async fn settle(&self, settlement: Settlement) -> Result<(), StoreError> {
        self.settles.fetch_add(1, SeqCst);
        self.pass().await?;
        let mut counters = self.counters.lock().unwrap();
        if let Some(records) = counters.get_mut(&(settlement.limit.scope.clone(), settlement.key.0)) {
            settle(&settlement, records, self.now.load(SeqCst));
        }
        Ok(())
    }

    fn health(&self) -> StoreHealth {
        if self.gone.load(SeqCst) {
            StoreHealth::Failing(StoreFault::Unreachable)
        } else {
            StoreHealth::Healthy
        }
    }
}

const DAY: u64 = 86_400_000;

fn plan(scope: &str, rates: &[(u64, u64)], consistency: Consistency) -> Arc<LimitPlan> {
    plan_of(Replica::ONLY, scope, rates, consistency)
}

/// The plan of one pod of those that share it.
fn plan_of(live: Replica, scope: &str, rates: &[(u64, u64)], consistency: Consistency) -> Arc<LimitPlan> {
    let rate = |&(requests, millis)| {
        let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap());
        Rate::new(requests, period, Algorithm::FIXED_WINDOW).unwrap()
    };
    let spec = Arc::new(LimitSpec::new(scope, rates.iter().map(rate).collect()));
    Arc::new(LimitPlan::new(spec, consistency, OnStoreFailure::Share, false, Replicas::new(live)))
}

fn one(plan: &Arc<LimitPlan>, key: u128) -> PlannedCounter {
    PlannedCounter { limit: plan.clone(), key: KeyHash(key), cost: 1 }
}

fn limiter(store: &Arc<Fake>) -> RemoteLimiter<Fake> {
    RemoteLimiter::new(store.clone(), &LimiterOptions::default(), None)
}

async fn admitted(limiter: &RemoteLimiter<Fake>, asked: &[PlannedCounter], times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(limiter.check(asked).await.unwrap().response.admitted);
        tokio::time::advance(Duration::from_micros(500)).await;
    }
    admitted
}

/// Lets other tasks run until something holds. StoreTime, which stands still otherwise, goes on meanwhile.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("did not come about: {what}");
}

#[tokio::test(start_paused = true)]
async fn leases_answer_most_requests_and_take_no_more_than_there_is() {
    let store = Fake::new();
    let limiter = limiter(&store);
    let plan = plan("n/p/l", &[(1_000, DAY)], Consistency::Leased);
    assert_eq!(admitted(&limiter, &[one(&plan, 1)], 1_500).await, 1_000);
    let metrics = limiter.metrics().lease;
    assert!(metrics.calls_a_request() < 0.05, "{metrics:?}");
    assert_eq!(metrics.requests, 1_500);
    assert_eq!(store.used(&plan, 1), [1_000]);
}

#[tokio::test(start_paused = true)]
async fn a_block_is_not_lost_when_the_request_that_waits_for_it_goes() {
    let store = Fake::new();
    let limiter = limiter(&store);
    let plan = plan("n/p/l", &[(100_000, DAY)], Consistency::Leased);
    let asked = [one(&plan, 1)];
    assert_eq!(admitted(&limiter, &asked, 100).await, 100);
    until("nothing is under way", || limiter.metrics().lease.under_way == 0).await;
    store.door.forget_permits(Semaphore::MAX_PERMITS);
    // Until a request has to wait for a block.
    let mut waits = false;
    for _ in 0..1_000 {
        waits = tokio::time::timeout(Duration::from_millis(5), limiter.check(&asked)).await.is_err();
        if waits {
            break;
        }
    }
    assert!(waits && limiter.metrics().lease.under_way == 1);
    let takes = store.takes.load(SeqCst);
    store.door.add_permits(1);
    until("the block comes", || limiter.metrics().lease.under_way == 0).await;
    let outcome = limiter.check(&asked).await.unwrap();
    assert!(outcome.response.admitted && outcome.source == Source::Lease);
    assert_eq!(store.takes.load(SeqCst), takes);
}

#[tokio::test(start_paused = true)]
async fn what_was_reserved_goes_back_when_another_limit_denies() {
    let store = Fake::new();
    let limiter = limiter(&store);
    let leased = plan("n/p/leased", &[(10_000, DAY)], Consistency::Leased);
    let strict = plan("n/p/strict", &[(5, DAY)], Consistency::Strict);
    assert_eq!(admitted(&limiter, &[one(&leased, 1)], 200).await, 200);
    until("nothing is under way", || limiter.metrics().lease.under_way == 0).await;
    let in_hand = |m: &LeaseMetrics| m.taken - m.admitted_locally - m.returned - m.lost;
    let before = in_hand(&limiter.metrics().lease);
    assert!(before > 10);
    let both = [one(&leased, 1), one(&strict, 1)];
    let mut passed = 0;
    for n in 0..100 {
        let outcome = limiter.check(&both).await.unwrap();
        assert_eq!(outcome.response.decisions.len(), 2);
        passed += u64::from(outcome.response.admitted);
        assert_eq!(outcome.response.admitted, n < 5);
        assert!(outcome.response.decisions[0].admitted);
    }
    assert_eq!(passed, 5);
    assert_eq!(in_hand(&limiter.metrics().lease), before - 5);
}

#[tokio::test(start_paused = true)]
async fn a_limit_counted_here_alone_asks_nobody_and_has_its_share() {
    let store = Fake::new();
    let limiter = limiter(&store);
    let plan = plan_of(Replica::new(3, 4), "n/p/l", &[(100, DAY)], Consistency::Local);
    assert_eq!(admitted(&limiter, &[one(&plan, 1)], 100).await, 25);
    let strict = self::plan("n/p/s", &[(2, DAY)], Consistency::Strict);
    // What it took is given back when the store denies.
    let both = [one(&plan, 2), one(&strict, 2)];
    assert_eq!(admitted(&limiter, &both, 50).await, 2);
    assert_eq!(admitted(&limiter, &[one(&plan, 2)], 100).await, 23);
    assert_eq!(limiter.metrics().share.pending, 0);
    assert_eq!(store.used(&plan, 1), [0]);
}

#[tokio::test(start_paused = true)]
async fn every_rate_is_told_once_whatever_fails_meanwhile() {
    let store = Fake::new();
    let limiter = limiter(&store);
    let rates = [(100, DAY), (1_000, 7 * DAY)];
    let plan = plan_of(Replica::new(0, 2), "n/p/l", &rates, Consistency::Strict);
    let asked = [one(&plan, 1)];
    assert_eq!(admitted(&limiter, &asked, 10).await, 10);
    store.gone.store(true, SeqCst);
    assert_eq!(admitted(&limiter, &asked, 200).await, 45, "half of 100 less half of 10");
    // It says that it is well, and drops what it is told.
    store.deaf.store(true, SeqCst);
    store.gone.store(false, SeqCst);
    for _ in 0..20 {
        let outcome = limiter.check(&asked).await.unwrap();
        assert!(!outcome.response.admitted && outcome.source == Source::Share);
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    assert_eq!(store.used(&plan, 1), [10, 10]);
    store.deaf.store(false, SeqCst);
    let outcome = limiter.check(&asked).await.unwrap();
    assert!(outcome.response.admitted && outcome.source == Source::Store);
    assert_eq!(store.used(&plan, 1), [56, 56]);
    assert_eq!(limiter.metrics().share.pending, 0);
    assert_eq!(admitted(&limiter, &asked, 100).await, 44);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_came_back_empty_hears_what_it_knew_from_the_first_pod() {
    let store = Fake::new();
    let plan = |n| plan_of(Replica::new(n, 4), "n/p/l", &[(1_000, DAY)], Consistency::Strict);
    let pods: Vec<_> = (0..4).map(|n| (limiter(&store), plan(n))).collect();
    for (pod, plan) in &pods {
        assert_eq!(admitted(pod, &[one(plan, 1)], 100).await, 100);
    }
    for (pod, plan) in &pods {
        let peek = [PlannedCounter { cost: 0, ..one(plan, 1) }];
        assert!(pod.check(&peek).await.unwrap().response.admitted);
    }
    store.gone.store(true, SeqCst);
    store.counters.lock().unwrap().clear();
    for (pod, plan) in &pods {
        assert_eq!(admitted(pod, &[one(plan, 1)], 400).await, 150);
    }
    store.gone.store(false, SeqCst);
    for (pod, _) in &pods {
        until("all is told", || pod.metrics().share.pending == 0).await;
    }
    for (pod, plan) in &pods {
        assert_eq!(admitted(pod, &[one(plan, 1)], 10).await, 0);
    }
    assert_eq!(store.used(&pods[0].1, 1), [1_000]);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_came_back_empty_hears_of_who_was_full_before() {
    let store = Fake::new();
    let limiter = limiter(&store);
    let plan = plan("n/p/l", &[(40, DAY)], Consistency::Strict);
    assert_eq!(admitted(&limiter, &[one(&plan, 1)], 45).await, 40);
    store.gone.store(true, SeqCst);
    store.counters.lock().unwrap().clear();
    tokio::time::advance(std::time::Duration::from_secs(2)).await;
    assert_eq!(admitted(&limiter, &[one(&plan, 1)], 5).await, 0);
    store.gone.store(false, SeqCst);
    until("all is told", || limiter.metrics().share.pending == 0).await;
    // What could have come back meanwhile is not known to be used.
    let used = store.used(&plan, 1)[0];
    assert!((38..=40).contains(&used), "{used}");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_keys_without_the_store_shares_one_counter() {
    let store = Fake::new();
    let options = LimiterOptions { shared_keys: 100, ..LimiterOptions::default() };
    let limiter = RemoteLimiter::new(store.clone(), &options, None);
    let plan = plan("n/p/l", &[(5, DAY)], Consistency::Strict);
    store.gone.store(true, SeqCst);
    let mut passed = 0;
    for key in 1..3_000u128 {
        passed +=
            admitted(&limiter, &[one(&plan, key.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))], 1)
                .await;
    }
    assert_eq!(passed, 100 + 5);
    assert_eq!(limiter.metrics().share.pending, 101);
    store.gone.store(false, SeqCst);
    until("all is told", || limiter.metrics().share.pending == 0).await;
    assert_eq!(limiter.metrics().share.handed_over, 100);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_longer_than_the_budget_when_the_store_is_deaf() {
    let store = Fake::new();
    let limiter = limiter(&store);
    let plans = [
        plan("n/p/s", &[(1_000, DAY)], Consistency::Strict),
        plan("n/p/l", &[(1_000, DAY)], Consistency::Leased),
    ];
    for plan in &plans {
        assert_eq!(admitted(&limiter, &[one(plan, 1)], 30).await, 30);
    }
    store.door.forget_permits(Semaphore::MAX_PERMITS);
    for plan in &plans {
        for _ in 0..200 {
            let begun = tokio::time::Instant::now();
            let outcome = limiter.check(&[one(plan, 1)]).await.unwrap();
            assert!(outcome.response.admitted);
            assert!(begun.elapsed() <= LimiterOptions::default().latency_budget + Duration::from_millis(1));
        }
    }
    assert!(limiter.metrics().share.admitted > 0);
}

#[tokio::test(start_paused = true)]
async fn a_charge_is_corrected_where_it_was_made() {
    let store = Fake::new();
    let limiter = limiter(&store);
    let plan = plan("n/p/l", &[(100, DAY)], Consistency::Strict);
    let asked = one(&plan, 1);
    let outcome = limiter.check(std::slice::from_ref(&asked)).await.unwrap();
    limiter.settle(&asked, outcome.reservations[0], 9).await.unwrap();
    assert_eq!(store.used(&plan, 1), [10]);
    store.gone.store(true, SeqCst);
    let outcome = limiter.check(std::slice::from_ref(&asked)).await.unwrap();
    assert!(matches!(outcome.reservations[0], Reservation::Local(_)));
    limiter.settle(&asked, outcome.reservations[0], 4).await.unwrap();
    store.gone.store(false, SeqCst);
    until("all is told", || limiter.metrics().share.pending == 0).await;
    assert_eq!(store.used(&plan, 1), [15]);
    // The store knows of it by now, and is told of a correction too.
    limiter.settle(&asked, outcome.reservations[0], -2).await.unwrap();
    assert_eq!(store.used(&plan, 1), [13]);
}

#[tokio::test(start_paused = true)]
async fn what_was_counted_here_alone_is_not_told_and_what_a_share_admitted_is_whatever_was_edited() {
    let store = Fake::new();
    let limiter = limiter(&store);
    let rates = [(100, DAY)];
    let local = plan("n/p/l", &rates, Consistency::Local);
    let strict = plan("n/p/l", &rates, Consistency::Strict);
    assert_eq!(admitted(&limiter, &[one(&local, 1)], 30).await, 30);
    store.gone.store(true, SeqCst);
    assert_eq!(admitted(&limiter, &[one(&strict, 1)], 20).await, 20);
    assert_eq!(admitted(&limiter, &[one(&local, 1)], 7).await, 7);
    store.gone.store(false, SeqCst);
    until("all is told", || limiter.metrics().share.pending == 0).await;
    assert_eq!(store.used(&strict, 1), [20]);
    assert_eq!(admitted(&limiter, &[one(&local, 1)], 100).await, 63);
}

#[tokio::test(start_paused = true)]
async fn what_was_counted_here_goes_over_to_a_limiter_that_takes_the_place_and_is_told_once() {
    let (before, after) = (Fake::new(), Fake::new());
    let local = plan("n/p/l", &[(100, DAY)], Consistency::Local);
    let strict = plan("n/p/s", &[(100, DAY)], Consistency::Strict);
    let old = limiter(&before);
    // It knows the store's clock, and so does the new one.
    assert_eq!(admitted(&old, &[one(&strict, 2)], 1).await, 1);
    assert_eq!(admitted(&old, &[one(&local, 1)], 30).await, 30);
    before.gone.store(true, SeqCst);
    after.gone.store(true, SeqCst);
    assert_eq!(admitted(&old, &[one(&strict, 1)], 20).await, 20);
    let new = RemoteLimiter::new(after.clone(), &LimiterOptions::default(), Some(old.hand_over()));
    // A request that was asked of the old one before, and ends after, counts as well.
    assert_eq!(admitted(&old, &[one(&local, 1)], 10).await, 10);
    assert_eq!(admitted(&old, &[one(&strict, 1)], 10).await, 10);
    assert_eq!(admitted(&new, &[one(&local, 1)], 100).await, 60);
    assert_eq!(admitted(&new, &[one(&strict, 1)], 10).await, 10);
    // Though its store is there again, the old one tells it nothing, nor does it when it is closed.
    before.gone.store(false, SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    old.close().await;
    assert_eq!((before.takes.load(SeqCst), new.metrics().share.pending), (0, 1));
    drop(old);
    after.gone.store(false, SeqCst);
    until("all is told", || new.metrics().share.pending == 0).await;
    assert_eq!(after.used(&strict, 1), [40]);
    assert_eq!(admitted(&new, &[one(&strict, 1)], 100).await, 60);
    assert_eq!(admitted(&new, &[one(&local, 1)], 10).await, 0);
}

/// What the old one was telling when another took its place, and could not, the new one tells.
#[tokio::test(start_paused = true)]
async fn what_an_old_limiter_could_not_tell_the_new_one_does() {
    let (before, after) = (Fake::new(), Fake::new());
    let strict = plan("n/p/s", &[(100, DAY)], Consistency::Strict);
    let old = limiter(&before);
    assert_eq!(admitted(&old, &[one(&strict, 2)], 1).await, 1);
    before.gone.store(true, SeqCst);
    assert_eq!(admitted(&old, &[one(&strict, 1)], 20).await, 20);
    before.door.forget_permits(Semaphore::MAX_PERMITS);
    before.gone.store(false, SeqCst);
    until("it is being told", || before.takes.load(SeqCst) > 0).await;
    let new = RemoteLimiter::new(after.clone(), &LimiterOptions::default(), Some(old.hand_over()));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(after.takes.load(SeqCst), 0, "it may still be told");
    before.door.close();
    until("all is told", || new.metrics().share.pending == 0).await;
    assert_eq!((after.used(&strict, 1), new.metrics().share.handed_over), (vec![20], 1));
}

#[tokio::test(start_paused = true)]
async fn each_rate_is_shared_by_the_pods_of_its_own_last_period() {
    let rates = [(100, 1_000), (10_000, DAY)];
    let replicas = Replicas::new(Replica::new(0, 100));
    let spec = plan("n/p/l", &rates, Consistency::Local).spec.clone();
    let plan = LimitPlan::new(spec, Consistency::Local, OnStoreFailure::Share, false, replicas.clone());
    let asked = one(&Arc::new(plan), 1);
    let shares = crate::local::Shares::new(10, 10);
    // Of one second each; a day has as many as are left of it.
    let second = |n: u64| 1_700_000_000_000_000 + n * 1_000_000;
    let admitted = |at| {
        std::iter::repeat_with(|| shares.check(&[&asked], at)).take_while(|answer| answer.admitted).count()
    };
    assert_eq!(admitted(second(0)), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    replicas.set(Replica::new(0, 10));
    assert_eq!(admitted(second(1)), 1, "those that have gone have used their parts of the last second");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(admitted(second(3)), 10);
    // The day is still shared by 100.
    assert_eq!((4..30).map(|n| admitted(second(n))).sum::<usize>(), 100 - 12);
    tokio::time::advance(Duration::from_millis(DAY)).await;
    let tomorrow = second(2 * DAY / 1_000);
    assert_eq!((0..110).map(|n| admitted(tomorrow + n * 1_000_000)).sum::<usize>(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn what_was_admitted_before_a_period_was_edited_is_told_too() {
    const HOUR: u64 = 3_600_000;
    let store = Fake::new();
    let limiter = limiter(&store);
    let (hour, day) = (
        plan("n/p/l", &[(100, HOUR)], Consistency::Strict),
        plan("n/p/l", &[(100, DAY)], Consistency::Strict),
    );
    assert_eq!(admitted(&limiter, &[one(&hour, 1)], 5).await, 5);
    store.gone.store(true, SeqCst);
    assert_eq!(admitted(&limiter, &[one(&hour, 1)], 20).await, 20);
    assert_eq!(admitted(&limiter, &[one(&day, 1)], 3).await, 3);
    store.gone.store(false, SeqCst);
    until("all is told", || limiter.metrics().share.pending == 0).await;
    assert_eq!(store.used(&day, 1), [28]);
}

/// On real threads: the runtime of a request ends while its block is being taken.
#[test]
fn a_block_is_not_lost_when_the_runtime_of_the_request_that_wanted_it_ends() {
    let (own, others) = (
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
    );
    let store = Fake::new();
    let limiter = own.block_on(async { limiter(&store) });
    let plan = plan("n/p/l", &[(100_000, sluice_limiter::MAX_PERIOD_MS)], Consistency::Leased);
    let asked = [one(&plan, 1)];
    let landed = || async { until("nothing is under way", || limiter.metrics().lease.under_way == 0).await };
    own.block_on(async {
        for _ in 0..100 {
            assert!(limiter.check(&asked).await.unwrap().response.admitted);
        }
        landed().await;
    });
    store.door.forget_permits(Semaphore::MAX_PERMITS);
    let before = limiter.metrics().lease;
    others.block_on(async {
        while limiter.metrics().lease.under_way == 0 {
            let _ = tokio::time::timeout(Duration::from_millis(5), limiter.check(&asked)).await;
        }
    });
    drop(others);
    store.door.add_permits(1);
    own.block_on(landed());
    let after = limiter.metrics().lease;
    assert_eq!((after.takes, after.taken > before.taken), (before.takes + 1, true));
    store.door.add_permits(1_000);
    own.block_on(limiter.close());
}

#[tokio::test(start_paused = true)]
async fn whoever_closes_it_second_waits_for_the_first() {
    let store = Fake::new();
    let limiter = Arc::new(limiter(&store));
    let plan = plan("n/p/l", &[(10_000, DAY)], Consistency::Leased);
    assert_eq!(admitted(&limiter, &[one(&plan, 1)], 200).await, 200);
    until("nothing is under way", || limiter.metrics().lease.under_way == 0).await;
    let settled = store.settles.load(SeqCst);
    store.door.forget_permits(Semaphore::MAX_PERMITS);
    let first = limiter.clone();
    let first = tokio::spawn(async move { first.close().await });
    until("it gives back", || store.settles.load(SeqCst) > settled).await;
    assert!(tokio::time::timeout(Duration::from_secs(9), limiter.close()).await.is_err());
    store.door.add_permits(1_000);
    limiter.close().await;
    first.await.unwrap();
    assert_eq!(store.used(&plan, 1), [200]);
}
