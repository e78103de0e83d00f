//! A store in memory whose calls can be blocked and can fail.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sluice_limiter::{Rate, Reserved, SlotsFound};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, Records, Settlement, Taking,
    charge, decide, find, reset, settle, take,
};
use crate::failure::{StoreError, StoreFault, StoreHealth};
use crate::key_usage::CounterSet;
use crate::plan::LimitPlan;
use crate::store::Store;

#[derive(Debug)]
pub(super) struct FakeStore {
    pub(super) counters: Mutex<HashMap<(String, u128), Records>>,
    /// Each call takes a permit and waits for one.
    pub(super) permits: Semaphore,
    pub(super) unreachable: AtomicBool,
    /// Whether acquisitions and charges time out although the store reports that it is healthy.
    pub(super) flush_fails: AtomicBool,
    now: AtomicU64,
    /// Time since which the store's clock goes on with the one of tokio.
    began: Mutex<Option<Instant>>,
    pub(super) acquisitions: AtomicU64,
    pub(super) settlements: AtomicU64,
    /// Calls, also those that wait.
    pub(super) calls: AtomicU64,
}

impl FakeStore {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            counters: Mutex::default(),
            permits: Semaphore::new(Semaphore::MAX_PERMITS),
            unreachable: AtomicBool::new(false),
            flush_fails: AtomicBool::new(false),
            now: AtomicU64::new(1_700_000_000_000_000),
            began: Mutex::default(),
            acquisitions: AtomicU64::new(0),
            settlements: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        })
    }

    /// Makes further calls wait until permits are added.
    pub(super) fn block_calls(&self) {
        self.permits.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Makes the clock go on from now on.
    pub(super) fn start_clock(&self) {
        *self.began.lock().unwrap() = Some(Instant::now());
    }

    /// Moves the clock, in microseconds.
    pub(super) fn step(&self, by: i64) {
        self.now.fetch_add(by as u64, SeqCst);
    }

    fn now(&self) -> u64 {
        let since = self.began.lock().unwrap().map_or(Duration::ZERO, |began| began.elapsed());
        self.now.load(SeqCst) + since.as_micros() as u64
    }

    /// Returns the counters without those that have expired, as Redis would have them.
    fn counters(&self) -> MutexGuard<'_, HashMap<(String, u128), Records>> {
        let (mut counters, now) = (self.counters.lock().unwrap(), self.now() / 1000);
        counters.retain(|_, records| records.iter().any(|record| record.expires_at() > now));
        counters
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
        self.calls.fetch_add(1, SeqCst);
        if self.unreachable.load(SeqCst) {
            return Err(StoreError::Unavailable(StoreFault::Unreachable));
        }
        let Ok(permit) = self.permits.acquire().await else { return Err(StoreError::Timeout) };
        permit.forget();
        Ok(())
    }

    /// Decides a check by the definition.
    fn decide(&self, check: &[Counter]) -> CheckResponse {
        self.decide_by(decide, check)
    }

    fn decide_by(
        &self,
        by: impl Fn(&[Counter], &mut [Records], u64) -> CheckResponse,
        check: &[Counter],
    ) -> CheckResponse {
        let mut counters = self.counters();
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
        let mut response = by(check, &mut stored, self.now());
        for (n, ((counter, mut records), others)) in check.iter().zip(stored).zip(others).enumerate() {
            let is_new = !counters.contains_key(&key(counter));
            if is_new && !(response.admitted && counter.cost > 0) {
                continue;
            }
            if is_new {
                response.created.insert(n);
            }
            records.extend(others);
            counters.insert(key(counter), records);
        }
        response
    }
}

impl Store for FakeStore {
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        self.call().await?;
        Ok(self.decide(&check))
    }

    async fn acquire(&self, counter: Counter, times: u64) -> Result<Grant, StoreError> {
        self.acquisitions.fetch_add(1, SeqCst);
        if self.flush_fails.load(SeqCst) {
            return Err(StoreError::Timeout);
        }
        self.call().await?;
        let counter = [counter];
        let (mut granted, mut created) = (0, CounterSet::default());
        while granted < times {
            let response = self.decide(&counter);
            if !response.admitted {
                break;
            }
            granted += 1;
            created |= response.created;
        }
        let peek = [Counter { cost: 0, ..counter[0].clone() }];
        Ok(Grant { granted, response: CheckResponse { created, ..self.decide(&peek) } })
    }

    async fn settle(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        let more = settlement.more();
        if more.is_none() {
            self.settlements.fetch_add(1, SeqCst);
        }
        if more.is_some() && self.flush_fails.load(SeqCst) {
            return Err(StoreError::Timeout);
        }
        self.call().await?;
        if let Some(counter) = more {
            self.decide_by(charge, &[counter]);
            return Ok(SlotsFound::Enough);
        }
        let mut counters = self.counters();
        let records = counters.get_mut(&(settlement.limit.scope.clone(), settlement.key.0));
        Ok(records.map_or(SlotsFound::Enough, |records| settle(&settlement, records, self.now())))
    }

    async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        self.call().await?;
        let records = self.counters().get(&(lookup.ledger.scope.clone(), lookup.key.0)).cloned();
        Ok(records.and_then(|records| find(lookup.id, &records, self.now())))
    }

    async fn take(&self, taking: Taking) -> Result<bool, StoreError> {
        let Taking { ledger, id, correction } = taking;
        self.call().await?;
        let mut counters = self.counters();
        let records = counters.get_mut(&(ledger.scope.clone(), correction.key.0));
        let is_taken = records.is_some_and(|records| take(id, records, self.now()));
        if let (true, Some(records)) =
            (is_taken, counters.get_mut(&(correction.limit.scope.clone(), correction.key.0)))
        {
            settle(&correction, records, self.now());
        }
        Ok(is_taken)
    }

    async fn reset(&self, limit: &Arc<LimitSpec>, key: KeyHash) -> Result<u64, StoreError> {
        self.call().await?;
        let now = self.now();
        if let Some(records) = self.counters.lock().unwrap().get_mut(&(limit.scope.clone(), key.0)) {
            *records = reset(limit, records, now);
        }
        Ok(now)
    }

    fn health(&self) -> StoreHealth {
        if self.unreachable.load(SeqCst) {
            StoreHealth::Failing(StoreFault::Unreachable)
        } else {
            StoreHealth::Healthy
        }
    }
}
