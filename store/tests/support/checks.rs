//! Limits, checks and stores for the tests of the Redis store.

use std::sync::Arc;
use std::time::Duration;

use redis::Commands;
use sluice_limiter::{Algorithm, MAX_PERIOD_MS, Period, Rate, Record, Requests};
use sluice_store::failure::StoreFault;
use sluice_store::{
    CheckRequest, CheckResponse, Counter, KeyHash, LimitSpec, RedisOptions, RedisStore, Store as _,
    StoreError, StoreHealth,
};

use crate::support::{Redis, eventually};

pub(crate) fn rate(requests: u64, period: u64, algorithm: Algorithm) -> Rate {
    Rate::new(Requests::new(requests).unwrap(), Period::from_millis(period).unwrap(), algorithm).unwrap()
}

/// A limit per longest period, about a year: a window ends during a test only once a year.
pub(crate) fn limit(scope: &str, requests: u64) -> Arc<LimitSpec> {
    limit_per(scope, requests, MAX_PERIOD_MS)
}

/// A limit per period in milliseconds.
pub(crate) fn limit_per(scope: &str, requests: u64, period: u64) -> Arc<LimitSpec> {
    let rate = rate(requests, period, Algorithm::SLIDING_WINDOW);
    Arc::new(LimitSpec::new(format!("ns/policy/{scope}"), vec![rate]))
}

pub(crate) fn counter(limit: &Arc<LimitSpec>, key: u128) -> Counter {
    Counter { limit: limit.clone(), key: KeyHash(key), cost: 1 }
}

pub(crate) fn check(counters: &[Counter]) -> CheckRequest {
    counters.iter().cloned().collect()
}

/// Options with a budget so large that a loaded machine does not cause failures.
pub(crate) fn patient(url: &str) -> RedisOptions {
    RedisOptions { latency_budget: Duration::from_secs(10), ..RedisOptions::from_url(url).unwrap() }
}

pub(crate) async fn healthy(store: &RedisStore) {
    eventually("the store is healthy", || async { store.health() == StoreHealth::Healthy }).await;
}

pub(crate) async fn failing(store: &RedisStore, fault: StoreFault) {
    eventually(&format!("the store fails with {fault:?}"), || async {
        store.health() == StoreHealth::Failing(fault)
    })
    .await;
}

/// Starts a store with a budget so large that a loaded machine does not cause failures.
pub(crate) fn patient_store(url: &str) -> RedisStore {
    RedisStore::start(patient(url)).unwrap()
}

/// Starts a store with the default budget.
pub(crate) fn quick_store(url: &str) -> RedisStore {
    RedisStore::start(RedisOptions::from_url(url).unwrap()).unwrap()
}

/// Returns the number of failed operations with the error of this name.
pub(crate) fn failures(store: &RedisStore, name: &str) -> u64 {
    let index = StoreError::ALL.iter().position(|error| error.as_str() == name).unwrap();
    store.metrics().faults[index]
}

pub(crate) async fn decide(store: &RedisStore, counters: &[Counter]) -> CheckResponse {
    store.check(check(counters)).await.unwrap()
}

/// Sends a check a number of times, one after another, and returns how many were admitted.
pub(crate) async fn admitted(store: &RedisStore, counters: &[Counter], times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(decide(store, counters).await.admitted);
    }
    admitted
}

/// Returns the records of a counter as they are stored.
pub(crate) fn stored(redis: &Redis, store: &RedisStore, counter: &Counter) -> Vec<Record> {
    let bytes: Vec<u8> = redis.connection().get(store.key(counter)).unwrap();
    Record::decode_all(&bytes).unwrap()
}

/// Returns the usage of a counter's first rate as it is stored.
pub(crate) fn used(connection: &mut redis::Connection, store: &RedisStore, counter: &Counter) -> u64 {
    let bytes: Vec<u8> = redis::cmd("GET").arg(store.key(counter)).query(connection).unwrap();
    Record::decode_all(&bytes).unwrap().first().map_or(0, |record| record.current)
}
