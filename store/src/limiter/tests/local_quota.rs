//! Local quota, and the flush of local usage.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::fake_store::FakeStore;
use super::{DAY, Limiter, admitted, counter, limiter, plan, plan_for, until_flushed};
use crate::limiter::check::{LimiterOptions, Source};
use crate::plan::{Consistency, PlannedCounter, Replica};

#[tokio::test(start_paused = true)]
async fn a_local_limit_makes_no_calls_and_enforces_its_share() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let local = plan_for(Replica::new(3, 4), "n/p/l", &[(100, DAY)], Consistency::Local);
    assert_eq!(admitted(&limiter, &[counter(&local, 1)], 100).await, 25);
    let strict = plan("n/p/s", &[(2, DAY)], Consistency::Strict);
    // Local charges are undone when the store denies.
    let both = [counter(&local, 2), counter(&strict, 2)];
    assert_eq!(admitted(&limiter, &both, 50).await, 2);
    assert_eq!(admitted(&limiter, &[counter(&local, 2)], 100).await, 23);
    assert_eq!(limiter.metrics().unwrap().local_quota.pending, 0);
    assert_eq!(store.used(&local, 1), [0]);
}

#[tokio::test(start_paused = true)]
async fn each_rate_is_flushed_exactly_once_despite_failures() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let rates = [(100, DAY), (1_000, 7 * DAY)];
    let plan = plan_for(Replica::new(0, 2), "n/p/l", &rates, Consistency::Strict);
    let check = [counter(&plan, 1)];
    assert_eq!(admitted(&limiter, &check, 10).await, 10);
    store.unreachable.store(true, SeqCst);
    assert_eq!(admitted(&limiter, &check, 200).await, 45, "half of 100 less half of 10");
    // The store reports that it is healthy, and fails every acquisition.
    store.flush_fails.store(true, SeqCst);
    store.unreachable.store(false, SeqCst);
    for _ in 0..20 {
        let outcome = limiter.check(&check).await.unwrap();
        assert!(!outcome.response.admitted && outcome.source == Source::LocalQuota);
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    assert_eq!(store.used(&plan, 1), [10, 10]);
    store.flush_fails.store(false, SeqCst);
    let outcome = limiter.check(&check).await.unwrap();
    assert!(outcome.response.admitted && outcome.source == Source::Store);
    assert_eq!(store.used(&plan, 1), [56, 56]);
    assert_eq!(limiter.metrics().unwrap().local_quota.pending, 0);
    assert_eq!(admitted(&limiter, &check, 100).await, 44);
}

#[tokio::test(start_paused = true)]
async fn usage_that_the_store_lost_is_restored_once_by_all_replicas_together() {
    let store = FakeStore::new();
    let plan = |n| plan_for(Replica::new(n, 4), "n/p/l", &[(1_000, DAY)], Consistency::Strict);
    let replicas: Vec<_> = (0..4).map(|n| (limiter(&store), plan(n))).collect();
    for (limiter, plan) in &replicas {
        assert_eq!(admitted(limiter, &[counter(plan, 1)], 100).await, 100);
    }
    for (limiter, plan) in &replicas {
        let peek = [PlannedCounter { cost: 0, ..counter(plan, 1) }];
        assert!(limiter.check(&peek).await.unwrap().response.admitted);
    }
    store.unreachable.store(true, SeqCst);
    store.counters.lock().unwrap().clear();
    for (limiter, plan) in &replicas {
        assert_eq!(admitted(limiter, &[counter(plan, 1)], 400).await, 150);
    }
    store.unreachable.store(false, SeqCst);
    for (limiter, _) in &replicas {
        until_flushed(limiter).await;
    }
    for (limiter, plan) in &replicas {
        assert_eq!(admitted(limiter, &[counter(plan, 1)], 10).await, 0);
    }
    assert_eq!(store.used(&replicas[0].1, 1), [1_000]);
}

#[tokio::test(start_paused = true)]
async fn lost_usage_of_an_exhausted_counter_is_restored_without_local_admissions() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let plan = plan("n/p/l", &[(40, DAY)], Consistency::Strict);
    assert_eq!(admitted(&limiter, &[counter(&plan, 1)], 45).await, 40);
    store.unreachable.store(true, SeqCst);
    store.counters.lock().unwrap().clear();
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(admitted(&limiter, &[counter(&plan, 1)], 5).await, 0);
    store.unreachable.store(false, SeqCst);
    until_flushed(&limiter).await;
    // Usage that may have expired meanwhile is not restored.
    let used = store.used(&plan, 1)[0];
    assert!((38..=40).contains(&used), "{used}");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_new_keys_shares_one_counter_while_the_store_is_down() {
    let store = FakeStore::new();
    let options = LimiterOptions { local_quota_keys: 100, ..LimiterOptions::default() };
    let limiter = Limiter::start(store.clone(), &options, None);
    let plan = plan("n/p/l", &[(5, DAY)], Consistency::Strict);
    store.unreachable.store(true, SeqCst);
    let mut total = 0;
    for key in 1..3_000u128 {
        let key = key.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        total += admitted(&limiter, &[counter(&plan, key)], 1).await;
    }
    assert_eq!(total, 100 + 5);
    assert_eq!(limiter.metrics().unwrap().local_quota.pending, 101);
    store.unreachable.store(false, SeqCst);
    until_flushed(&limiter).await;
    assert_eq!(limiter.metrics().unwrap().local_quota.flushed, 100);
}

#[tokio::test(start_paused = true)]
async fn only_usage_of_limits_that_the_store_counts_is_flushed() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let rates = [(100, DAY)];
    // One limit before and after an edit of its consistency.
    let local = plan("n/p/l", &rates, Consistency::Local);
    let strict = plan("n/p/l", &rates, Consistency::Strict);
    assert_eq!(admitted(&limiter, &[counter(&local, 1)], 30).await, 30);
    store.unreachable.store(true, SeqCst);
    assert_eq!(admitted(&limiter, &[counter(&strict, 1)], 20).await, 20);
    assert_eq!(admitted(&limiter, &[counter(&local, 1)], 7).await, 7);
    store.unreachable.store(false, SeqCst);
    until_flushed(&limiter).await;
    assert_eq!(store.used(&strict, 1), [20]);
    assert_eq!(admitted(&limiter, &[counter(&local, 1)], 100).await, 63);
}

#[tokio::test(start_paused = true)]
async fn usage_admitted_before_an_edit_of_the_period_is_flushed_too() {
    const HOUR: u64 = 3_600_000;
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let hour = plan("n/p/l", &[(100, HOUR)], Consistency::Strict);
    let day = plan("n/p/l", &[(100, DAY)], Consistency::Strict);
    assert_eq!(admitted(&limiter, &[counter(&hour, 1)], 5).await, 5);
    store.unreachable.store(true, SeqCst);
    assert_eq!(admitted(&limiter, &[counter(&hour, 1)], 20).await, 20);
    assert_eq!(admitted(&limiter, &[counter(&day, 1)], 3).await, 3);
    store.unreachable.store(false, SeqCst);
    until_flushed(&limiter).await;
    assert_eq!(store.used(&day, 1), [28]);
}

/// The tiers of a limit have different numbers and count in the same records.
#[tokio::test(start_paused = true)]
async fn an_outage_gives_no_second_share_to_a_client_that_changes_its_tier() {
    let store = FakeStore::new();
    let limiter = limiter(&store);
    let tier = |requests| plan_for(Replica::new(0, 2), "n/p/l", &[(requests, DAY)], Consistency::Strict);
    let (base, gold) = (tier(100), tier(200));
    assert_eq!(admitted(&limiter, &[counter(&gold, 1)], 90).await, 90);
    store.unreachable.store(true, SeqCst);
    // The first request of the outage is in another tier than those before it.
    assert_eq!(admitted(&limiter, &[counter(&base, 1)], 100).await, 5, "half of 100 less half of 90");
    assert_eq!(admitted(&limiter, &[counter(&gold, 1)], 100).await, 50, "half of 200 less what was counted");
    assert_eq!(admitted(&limiter, &[counter(&base, 1)], 100).await, 0);
    store.unreachable.store(false, SeqCst);
    until_flushed(&limiter).await;
    assert_eq!(store.used(&gold, 1), [145]);
}
