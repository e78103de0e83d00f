//! A look at a counter changes nothing, in memory and in Redis.

use std::sync::Arc;

use redis::Commands as _;
use sluice_limiter::Rate;
use sluice_store::{
    Clock, Consistency, KeyHash, LimitPlan, LimitSpec, Limiter, MemoryStore, OnStoreFailure, PlannedCounter,
    Replica, Replicas,
};

use super::{CLIENT, in_redis, limits, options};
use crate::support::Redis;

fn plan(name: &str, rates: Vec<Rate>, max_keys: u64) -> Arc<LimitPlan> {
    let spec = Arc::new(LimitSpec::new(format!("ns/peek/{name}"), rates).with_max_keys(max_keys));
    let replicas = Replicas::new(Replica::new(0, 1));
    Arc::new(LimitPlan::new(spec, Consistency::Strict, OnStoreFailure::Share, true, replicas))
}

/// Looks at a counter before, between and after requests, of which two are admitted.
async fn look(limiter: &Limiter, name: &str, plan: &Arc<LimitPlan>, stored: impl Fn() -> Option<Vec<u8>>) {
    let looks = async || {
        let before = stored();
        let mut rooms = Vec::new();
        for _ in 0..5 {
            let decisions = limiter.peek(plan, CLIENT).await.unwrap().unwrap();
            rooms.push(
                decisions.iter().map(|decision| (decision.admitted, decision.remaining)).collect::<Vec<_>>(),
            );
        }
        assert_eq!(stored(), before, "{name}");
        assert!(rooms.windows(2).all(|two| two[0] == two[1]), "{name}: {rooms:?}");
        rooms.remove(0)
    };
    let request = || [PlannedCounter { limit: plan.clone(), key: CLIENT, cost: 1 }];
    let first = looks().await;
    assert!(first.iter().all(|(admitted, _)| *admitted) && first[0].1 == 2, "{name}: {first:?}");
    for n in 0..2 {
        assert!(limiter.check(&request()).await.unwrap().response.admitted, "{name}: request {n}");
    }
    assert_eq!(looks().await[0], (false, 0), "{name}");
    for _ in 0..2 {
        assert!(!limiter.check(&request()).await.unwrap().response.admitted, "{name}");
    }
    let last = looks().await;
    // Two denials do not block yet, and looks are none.
    assert!(name != "blocks" || last[1].0, "{last:?}");
}

#[tokio::test]
async fn a_look_changes_nothing_in_memory() {
    let store = MemoryStore::new(1_000, Clock::manual(1_700_000_000_000));
    let limiter = Limiter::in_memory(store);
    for (name, rates) in limits() {
        look(&limiter, name, &plan(name, rates, 0), || None).await;
    }
}

#[tokio::test]
async fn a_look_changes_nothing_in_redis() {
    let redis = Redis::start(&[]);
    let options = options(&redis);
    let limiter = in_redis(&options);
    for (name, rates) in limits() {
        let key = options.key_name(&format!("ns/peek/{name}"), CLIENT);
        look(&limiter, name, &plan(name, rates, 0), || redis.connection().get(&key).unwrap()).await;
    }
}

#[tokio::test]
async fn looks_at_unknown_clients_take_no_place_from_others() {
    for (name, rates) in limits() {
        let limiter = Limiter::in_memory(MemoryStore::new(1, Clock::manual(1_700_000_000_000)));
        let plan = plan(name, rates, 1);
        for unknown in 100..110 {
            limiter.peek(&plan, KeyHash(unknown)).await.unwrap();
        }
        let request = [PlannedCounter { limit: plan, key: CLIENT, cost: 1 }];
        let response = limiter.check(&request).await.unwrap().response;
        assert!(response.admitted && !response.key_usages.is_overflowed(0), "{name}");
    }
}
