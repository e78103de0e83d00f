//! Quota leases.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::fake_store::FakeStore;
use super::{DAY, admitted, counter, limiter, plan, until, until_acquired};
use crate::lease::LeaseMetrics;
use crate::limiter::check::Source;
use crate::plan::Consistency;

#[tokio::test(start_paused = true)]
async fn leases_decide_most_requests_and_never_exceed_the_limit() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let plan = plan("n/p/l", &[(1_000, DAY)], Consistency::Leased);
    assert_eq!(admitted(&limiter, &[counter(&plan, 1)], 1_500).await, 1_000);
    let metrics = limiter.metrics().unwrap().leases;
    assert!(metrics.calls_per_request() < 0.05, "{metrics:?}");
    assert_eq!(metrics.requests, 1_500);
    assert_eq!(store.used(&plan, 1), [1_000]);
}

#[tokio::test(start_paused = true)]
async fn a_block_survives_the_request_that_waits_for_it() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let plan = plan("n/p/l", &[(100_000, DAY)], Consistency::Leased);
    let check = [counter(&plan, 1)];
    assert_eq!(admitted(&limiter, &check, 100).await, 100);
    until_acquired(&limiter).await;
    store.block_calls();
    // Until a request has to wait for a block.
    let mut has_waited = false;
    for _ in 0..1_000 {
        has_waited = tokio::time::timeout(Duration::from_millis(5), limiter.check(&check)).await.is_err();
        if has_waited {
            break;
        }
    }
    assert!(has_waited && limiter.metrics().unwrap().leases.pending_acquisitions == 1);
    let acquisitions = store.acquisitions.load(SeqCst);
    store.permits.add_permits(1);
    until_acquired(&limiter).await;
    let outcome = limiter.check(&check).await.unwrap();
    assert!(outcome.response.admitted && outcome.source == Source::Lease);
    assert_eq!(store.acquisitions.load(SeqCst), acquisitions);
}

#[tokio::test(start_paused = true)]
async fn reserved_quota_is_put_back_when_another_limit_denies() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let leased = plan("n/p/leased", &[(10_000, DAY)], Consistency::Leased);
    let strict = plan("n/p/strict", &[(5, DAY)], Consistency::Strict);
    assert_eq!(admitted(&limiter, &[counter(&leased, 1)], 200).await, 200);
    until_acquired(&limiter).await;
    let in_hand = |m: &LeaseMetrics| m.acquired - m.admitted_locally - m.returned - m.expired;
    let before = in_hand(&limiter.metrics().unwrap().leases);
    assert!(before > 10);
    let both = [counter(&leased, 1), counter(&strict, 1)];
    for n in 0..100 {
        let outcome = limiter.check(&both).await.unwrap();
        assert_eq!(outcome.response.decisions.len(), 2);
        assert_eq!(outcome.response.admitted, n < 5);
        assert!(outcome.response.decisions[0].admitted);
    }
    assert_eq!(in_hand(&limiter.metrics().unwrap().leases), before - 5);
}

/// On real threads, as the runtime of a request cannot end while the time is paused.
#[test]
fn a_block_survives_the_runtime_of_the_request_that_waits_for_it() {
    let (own, others) = (
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
    );
    let store = FakeStore::new();
    let limiter = own.block_on(async { limiter(&store) });
    let plan = plan("n/p/l", &[(100_000, sluice_limiter::MAX_PERIOD_MS)], Consistency::Leased);
    let check = [counter(&plan, 1)];
    own.block_on(async {
        for _ in 0..100 {
            assert!(limiter.check(&check).await.unwrap().response.admitted);
        }
        until_acquired(&limiter).await;
    });
    store.block_calls();
    let before = limiter.metrics().unwrap().leases;
    others.block_on(async {
        while limiter.metrics().unwrap().leases.pending_acquisitions == 0 {
            let _ = tokio::time::timeout(Duration::from_millis(5), limiter.check(&check)).await;
        }
    });
    drop(others);
    store.permits.add_permits(1);
    own.block_on(until_acquired(&limiter));
    let after = limiter.metrics().unwrap().leases;
    assert_eq!(after.acquisitions, before.acquisitions + 1);
    assert!(after.acquired > before.acquired);
    store.permits.add_permits(1_000);
    own.block_on(limiter.close());
}

#[tokio::test(start_paused = true)]
async fn concurrent_closes_all_return_when_the_quota_is_returned() {
    let store = FakeStore::new();
    let limiter = Arc::new(limiter(&store));
    let plan = plan("n/p/l", &[(10_000, DAY)], Consistency::Leased);
    assert_eq!(admitted(&limiter, &[counter(&plan, 1)], 200).await, 200);
    until_acquired(&limiter).await;
    let settlements = store.settlements.load(SeqCst);
    store.block_calls();
    let first = limiter.clone();
    let first = tokio::spawn(async move { first.close().await });
    until("quota is being returned", || store.settlements.load(SeqCst) > settlements).await;
    assert!(tokio::time::timeout(Duration::from_secs(9), limiter.close()).await.is_err());
    store.permits.add_permits(1_000);
    limiter.close().await;
    first.await.unwrap();
    assert_eq!(store.used(&plan, 1), [200]);
}
