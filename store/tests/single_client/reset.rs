//! A reset client has its whole quota, whatever counted it and whatever a process remembers.

use std::sync::Arc;

use redis::Commands as _;
use sluice_limiter::{Algorithm, Burst, Rate};
use sluice_store::{
    Clock, Consistency, KeyHash, LimitPlan, LimitSpec, Limiter, LimiterOptions, MemoryStore, OnStoreFailure,
    PlannedCounter, Replica, Replicas,
};

use super::{CLIENT, in_redis, limiter_options, limits, options, rate};
use crate::support::Redis;

const OTHER: KeyHash = KeyHash(8 << 64);

fn plan(name: &str, rates: Vec<Rate>, consistency: Consistency) -> Arc<LimitPlan> {
    let spec = Arc::new(LimitSpec::new(format!("ns/reset/{name}"), rates).with_max_keys(100_000));
    let replicas = Replicas::new(Replica::new(0, 1));
    Arc::new(LimitPlan::new(spec, consistency, OnStoreFailure::Share, false, replicas))
}

async fn admits(limiter: &Limiter, plan: &Arc<LimitPlan>, key: KeyHash) -> bool {
    let request = [PlannedCounter { limit: plan.clone(), key, cost: 1 }];
    limiter.check(&request).await.unwrap().response.admitted
}

/// Exhausts a client's quota and goes on until it is blocked, if the limit blocks.
async fn exhaust(limiter: &Limiter, plan: &Arc<LimitPlan>, key: KeyHash) {
    let mut admitted = 0;
    for _ in 0..9 {
        admitted += u32::from(admits(limiter, plan, key).await);
    }
    assert_eq!(admitted, 2, "{}", plan.spec.scope);
}

async fn reset(limiter: &Limiter, plan: &Arc<LimitPlan>, key: KeyHash) {
    let removed_at = limiter.reset_in_store(plan, key).await.unwrap();
    limiter.forget(std::slice::from_ref(plan), key, removed_at);
}

/// Resets one of two clients, twice.
async fn reset_one_client(limiter: &Limiter, consistency: Consistency) {
    for (name, rates) in limits() {
        let plan = plan(name, rates, consistency);
        exhaust(limiter, &plan, OTHER).await;
        for _ in 0..2 {
            exhaust(limiter, &plan, CLIENT).await;
            reset(limiter, &plan, CLIENT).await;
        }
        exhaust(limiter, &plan, CLIENT).await;
        assert!(!admits(limiter, &plan, OTHER).await, "{name}: another client");
        // Nothing is created for a client without a counter.
        reset(limiter, &plan, KeyHash(9 << 64)).await;
    }
}

#[tokio::test]
async fn a_reset_client_has_its_whole_quota_in_memory() {
    let limiter = Limiter::in_memory(MemoryStore::new(1_000, Clock::manual(1_700_000_000_000)));
    reset_one_client(&limiter, Consistency::Strict).await;
}

#[tokio::test]
async fn a_reset_client_has_its_whole_quota_where_only_the_process_counts() {
    let redis = Redis::start(&[]);
    reset_one_client(&in_redis(&options(&redis)), Consistency::PerPod).await;
}

#[tokio::test]
async fn a_reset_client_has_its_whole_quota_in_redis() {
    let redis = Redis::start(&[]);
    let options = options(&redis);
    for consistency in [Consistency::Strict, Consistency::Leased] {
        let _: () = redis.connection().flushall().unwrap();
        reset_one_client(&in_redis(&options), consistency).await;
    }
}

#[tokio::test]
async fn a_reset_leaves_the_key_of_a_window_without_usage_and_removes_that_of_a_bucket() {
    let redis = Redis::start(&[]);
    let options = options(&redis);
    let bucket = Algorithm::TokenBucket { burst: Burst::new(2).unwrap() };
    for (name, algorithm, stays) in [("window", Algorithm::FIXED_WINDOW, true), ("bucket", bucket, false)] {
        let (limiter, plan) = (in_redis(&options), plan(name, vec![rate(2, algorithm)], Consistency::Strict));
        let key = options.key_name(&plan.spec.scope, CLIENT);
        let exists = || -> bool { redis.connection().exists(&key).unwrap() };
        exhaust(&limiter, &plan, CLIENT).await;
        assert!(exists(), "{name}");
        reset(&limiter, &plan, CLIENT).await;
        assert_eq!(exists(), stays, "{name}");
        exhaust(&limiter, &plan, CLIENT).await;
    }
}

/// Two processes: one removes the counter, and both forget what they remember.
#[tokio::test]
async fn a_process_that_forgets_a_client_asks_the_store_again() {
    let redis = Redis::start(&[]);
    let options = options(&redis);
    for (name, rates) in limits() {
        for consistency in [Consistency::Strict, Consistency::Leased] {
            let _: () = redis.connection().flushall().unwrap();
            let (one, other) = (in_redis(&options), in_redis(&options));
            let plan = plan(name, rates.clone(), consistency);
            exhaust(&one, &plan, CLIENT).await;
            for _ in 0..9 {
                assert!(!admits(&other, &plan, CLIENT).await, "{name} {consistency:?}");
            }
            let removed_at = one.reset_in_store(&plan, CLIENT).await.unwrap();
            other.forget(std::slice::from_ref(&plan), CLIENT, removed_at);
            exhaust(&other, &plan, CLIENT).await;
        }
    }
}

#[tokio::test]
async fn local_usage_of_a_reset_client_is_not_flushed_to_the_store() {
    let redis = Redis::start(&[]);
    let options = options(&redis);
    let (limiter, window) = (in_redis(&options), vec![rate(2, Algorithm::FIXED_WINDOW)]);
    let plan = plan("local", window, Consistency::Strict);
    // Without a store, what it last said is remembered.
    let unconfigured = Limiter::unconfigured(&LimiterOptions::default(), Some(&limiter));
    exhaust(&unconfigured, &plan, CLIENT).await;
    unconfigured.forget(std::slice::from_ref(&plan), CLIENT, 0);
    assert_eq!(unconfigured.metrics().unwrap().local_quota.pending, 0);
    exhaust(&unconfigured, &plan, CLIENT).await;
    unconfigured.forget(std::slice::from_ref(&plan), CLIENT, 0);
    let successor =
        Limiter::in_redis(limiter.redis().unwrap().clone(), &limiter_options(), Some(&unconfigured));
    exhaust(&successor, &plan, CLIENT).await;
    for limiter in [limiter, unconfigured, successor] {
        limiter.close().await;
    }
}
