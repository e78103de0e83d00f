//! Limits and checks that the tests of topologies ask.

#![allow(unreachable_pub, dead_code, reason = "a module of several tests, which do not all need all of it")]

use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::{Algorithm, Period, Rate, Record, Requests};
use sluice_store::failure::StoreFault;
use sluice_store::{CheckRequest, Counter, KeyHash, LimitSpec, RedisOptions, RedisStore, StoreHealth};

use crate::support::eventually;

/// So many in the longest period: no test ends in another window than it began, except once a year.
pub fn limit(scope: &str, requests: u64) -> Arc<LimitSpec> {
    let period = Period::from_millis(sluice_limiter::MAX_PERIOD_MS).unwrap();
    let rate = Rate::new(Requests::new(requests).unwrap(), period, Algorithm::SLIDING_WINDOW).unwrap();
    Arc::new(LimitSpec::new(format!("ns/policy/{scope}"), vec![rate]))
}

pub fn counter(limit: &Arc<LimitSpec>, key: u128) -> Counter {
    Counter { limit: limit.clone(), key: KeyHash(key), cost: 1 }
}

pub fn check(counters: &[Counter]) -> CheckRequest {
    counters.iter().cloned().collect()
}

/// A budget so generous that a loaded machine does not fail a test about something else.
pub fn patient(options: RedisOptions) -> RedisOptions {
    within(Duration::from_secs(10), options)
}

pub fn within(latency_budget: Duration, options: RedisOptions) -> RedisOptions {
    RedisOptions { latency_budget, ..options }
}

pub async fn healthy(store: &RedisStore) {
    eventually("the store is healthy", || async { store.health() == StoreHealth::Healthy }).await;
}

pub async fn failing(store: &RedisStore, fault: StoreFault) {
    eventually(&format!("the store fails with {fault:?}"), || async {
        store.health() == StoreHealth::Failing(fault)
    })
    .await;
}

/// How many of so many checks are admitted, one after another.
pub async fn admitted(store: &RedisStore, counters: &[Counter], times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(store.check(check(counters)).await.unwrap().admitted);
    }
    admitted
}

/// How much of a counter's first rate is used, as it is stored.
pub fn used(connection: &mut redis::Connection, store: &RedisStore, counter: &Counter) -> u64 {
    let bytes: Vec<u8> = redis::cmd("GET").arg(store.key(counter)).query(connection).unwrap();
    Record::decode_all(&bytes).unwrap().first().map_or(0, |record| record.current)
}
