//! A store in memory whose calls can be blocked and can fail.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use sluice_limiter::Rate;
use tokio::sync::Semaphore;

use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Records, Settlement, decide, settle,
};
use crate::failure::{StoreError, StoreFault, StoreHealth};
use crate::limiter::plan::LimitPlan;
use crate::limiter::remote::backend::Backend;

#[derive(Debug)]
pub(super) struct FakeStore {
    pub(super) counters: Mutex<HashMap<(String, u128), Records>>,
    /// Each call takes a permit and waits for one.
    pub(super) permits: Semaphore,
    pub(super) unreachable: AtomicBool,
    /// Whether acquisitions time out although the store reports that it is healthy.
    pub(super) acquire_fails: AtomicBool,
    now: AtomicU64,
    pub(super) acquisitions: AtomicU64,
    pub(super) settlements: AtomicU64,
}

impl FakeStore {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            counters: Mutex::default(),
            permits: Semaphore::new(Semaphore::MAX_PERMITS),
            unreachable: AtomicBool::new(false),
            acquire_fails: AtomicBool::new(false),
            now: AtomicU64::new(1_700_000_000_000_000),
            acquisitions: AtomicU64::new(0),
            settlements: AtomicU64::new(0),
        })
    }

    /// Makes further calls wait until permits are added.
    pub(super) fn block_calls(&self) {
        self.permits.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Returns the usage of each rate.
    pub(super) fn used(&self, plan: &LimitPlan, key: u128) -> Vec<u64> {
        let counters = self.counters.lock().unwrap();
        let records = counters.get(&(plan.spec.scope.clone(), key)).cloned().unwrap_or_default();
        let used = |rate: &Rate| {
            records.iter().find(|record| record.tag == rate.tag()).map_or(0, |record| record.current)
        };
        plan.spec.rates.iter().map(used).collect()
    }

    async fn call(&self) -> Result<(), StoreError> {
        if self.unreachable.load(SeqCst) {
            return Err(StoreError::Unavailable(StoreFault::Unreachable));
        }
        let Ok(permit) = self.permits.acquire().await else { return Err(StoreError::Timeout) };
        permit.forget();
        Ok(())
    }

    fn decide(&self, check: &[Counter]) -> CheckResponse {
        let mut counters = self.counters.lock().unwrap();
        let key = |counter: &Counter| (counter.limit.scope.clone(), counter.key.0);
        let mut stored: Vec<Records> =
            check.iter().map(|counter| counters.get(&key(counter)).cloned().unwrap_or_default()).collect();
        // Records of rates that the limit no longer has are kept.
        let others: Vec<Records> = check
            .iter()
            .zip(&stored)
            .map(|(counter, records)| {
                let is_own = |tag| counter.limit.rates.iter().any(|rate| rate.tag() == tag);
                records.iter().filter(|record| !is_own(record.tag)).cloned().collect()
            })
            .collect();
        let response = decide(check, &mut stored, self.now.load(SeqCst));
        for ((counter, mut records), others) in check.iter().zip(stored).zip(others) {
            records.extend(others);
            counters.insert(key(counter), records);
        }
        response
    }
}

impl Backend for FakeStore {
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        self.call().await?;
        Ok(self.decide(&check))
    }

    async fn acquire(&self, counter: Counter, times: u64) -> Result<Grant, StoreError> {
        self.acquisitions.fetch_add(1, SeqCst);
        if self.acquire_fails.load(SeqCst) {
            return Err(StoreError::Timeout);
        }
        self.call().await?;
        let counter = [counter];
        let granted = (0..times).take_while(|_| self.decide(&counter).admitted).count() as u64;
        let peek = [Counter { cost: 0, ..counter[0].clone() }];
        Ok(Grant { granted, response: self.decide(&peek) })
    }

    async fn settle(&self, settlement: Settlement) -> Result<(), StoreError> {
        self.settlements.fetch_add(1, SeqCst);
        self.call().await?;
        let mut counters = self.counters.lock().unwrap();
        if let Some(records) = counters.get_mut(&(settlement.limit.scope.clone(), settlement.key.0)) {
            settle(&settlement, records, self.now.load(SeqCst));
        }
        Ok(())
    }

    async fn reset(&self, limit: &Arc<LimitSpec>, key: KeyHash) -> Result<u64, StoreError> {
        self.call().await?;
        self.counters.lock().unwrap().remove(&(limit.scope.clone(), key.0));
        Ok(self.now.load(SeqCst))
    }

    fn health(&self) -> StoreHealth {
        if self.unreachable.load(SeqCst) {
            StoreHealth::Failing(StoreFault::Unreachable)
        } else {
            StoreHealth::Healthy
        }
    }
}
