//! A limiter in front of a remote store: its start, its succession and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sluice_limiter::{Reserved, SlotsFound};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

use super::backend::Backend;
use super::denial_cache::DenialCache;
use super::losses::Losses;
use super::remote_core::RemoteCore;
use super::store_time::StoreTime;
use crate::check::{CheckRequest, CheckResponse, KeyHash, LimitSpec, Lookup, Settlement, Taking};
use crate::failure::{StoreError, StoreHealth};
use crate::lease::Leases;
use crate::limiter::outcome::{CheckOutcome, LimiterMetrics, LimiterOptions, Reservation};
use crate::local::LocalQuota;
use crate::plan::{LimitPlan, PlannedCounter};

/// Number of blocks that are returned concurrently when the limiter is closed.
const CONCURRENT_RETURNS: usize = 256;

/// A limiter in front of a remote store. Dropping it ends its background task; call [`RemoteLimiter::close`]
/// before.
#[derive(Debug)]
pub(in crate::limiter) struct RemoteLimiter<S: Backend> {
    core: Arc<RemoteCore<S>>,
    background: JoinHandle<()>,
}

/// The state of a limiter that its successor continues with.
pub(in crate::limiter) struct LocalState {
    local_quota: Arc<LocalQuota>,
    time: StoreTime,
}

impl<S: Backend> RemoteLimiter<S> {
    /// Starts a limiter, with the state of its predecessor if it has one. Must be called within a tokio
    /// runtime.
    pub(in crate::limiter) fn new(
        store: Arc<S>,
        options: &LimiterOptions,
        local: Option<LocalState>,
    ) -> Self {
        let LocalState { local_quota, time } = local.unwrap_or_else(|| LocalState {
            local_quota: Arc::new(LocalQuota::new(options.local_quota_keys, options.last_known_keys)),
            time: StoreTime::new(),
        });
        let runtime = Handle::current();
        let core = Arc::new(RemoteCore {
            store,
            runtime: runtime.clone(),
            time,
            latency_budget: options.latency_budget,
            leases: Leases::new(options.leased_keys),
            denials: DenialCache::new(options.remembered_denials),
            losses: Losses::new(),
            local_quota,
            has_successor: AtomicBool::new(false),
            closing: Mutex::default(),
        });
        let background = runtime.spawn(core.clone().run_background());
        Self { core, background }
    }

    /// Returns the state for a successor, which flushes the local usage from now on. This limiter still
    /// decides checks.
    pub(in crate::limiter) fn hand_over(&self) -> LocalState {
        self.core.has_successor.store(true, Relaxed);
        LocalState { local_quota: self.core.local_quota.clone(), time: self.core.time.for_successor() }
    }

    /// Decides a request: every counter is charged, or none. A counter must not occur twice. The call to the store takes at most
    /// `budget`, and at most the latency budget.
    ///
    /// # Errors
    /// The store did not answer and at least one of the limits denies in that case.
    pub(in crate::limiter) async fn check_within(
        &self,
        counters: &[PlannedCounter],
        budget: Duration,
    ) -> Result<CheckOutcome, StoreError> {
        self.core.check(counters, budget).await
    }

    /// Decides a request within the latency budget.
    #[cfg(test)]
    pub(in crate::limiter) async fn check(
        &self,
        counters: &[PlannedCounter],
    ) -> Result<CheckOutcome, StoreError> {
        self.check_within(counters, Duration::MAX).await
    }

    /// Corrects what a check charged to one of its counters by `delta`. Each reservation may be settled once.
    ///
    /// # Errors
    /// The store did not answer. The correction is not retried.
    pub(in crate::limiter) async fn settle(
        &self,
        counter: &PlannedCounter,
        reservation: Reservation,
        delta: i64,
    ) -> Result<(), StoreError> {
        let charged = match reservation {
            Reservation::Nothing => return Ok(()),
            Reservation::Store(at) | Reservation::Overflow(at) => at,
            Reservation::Local(at) => {
                if self.core.local_quota.correct(counter, at, delta, self.core.time.store_now()) {
                    return Ok(());
                }
                // The charge has been flushed to the store.
                at
            }
        };
        if delta < 0 {
            self.core.local_quota.refunded(counter);
        }
        let limit = counter.limit.spec.clone();
        let overflowed = matches!(reservation, Reservation::Overflow(_));
        self.core
            .store
            .settle(Settlement { limit, key: counter.key, charged, delta, overflowed, least: 0 })
            .await?;
        Ok(())
    }

    pub(in crate::limiter) async fn check_in_store(
        &self,
        check: CheckRequest,
    ) -> Result<CheckResponse, StoreError> {
        self.core.store.check(check).await
    }

    pub(in crate::limiter) async fn settle_in_store(
        &self,
        settlement: Settlement,
    ) -> Result<SlotsFound, StoreError> {
        self.core.store.settle(settlement).await
    }

    pub(in crate::limiter) async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        self.core.store.find(lookup).await
    }

    /// Settles a reservation. The refund makes room, so no denial is remembered beyond it.
    pub(in crate::limiter) async fn take(
        &self,
        limit: &Arc<LimitPlan>,
        taking: Taking,
    ) -> Result<bool, StoreError> {
        let (limit, key) = (limit.clone(), taking.correction.key);
        self.core.denials.clear();
        self.core.local_quota.refunded(&PlannedCounter { limit, key, cost: 0 });
        self.core.store.take(taking).await
    }

    /// Forgets what this process knows about a client under these limits, whose counter was removed at this time of the
    /// store: quota leased before, denials and local usage.
    pub(in crate::limiter) fn forget(&self, limits: &[Arc<LimitPlan>], key: KeyHash, removed_at: u64) {
        let core = &self.core;
        for limit in limits {
            let counter = PlannedCounter { limit: limit.clone(), key, cost: 0 };
            core.leases.forget(&counter, removed_at, core.time.now());
            core.local_quota.forget(&counter);
        }
        core.denials.clear();
    }

    pub(in crate::limiter) async fn reset_in_store(
        &self,
        limit: &Arc<LimitSpec>,
        key: KeyHash,
    ) -> Result<u64, StoreError> {
        self.core.store.reset(limit, key).await
    }

    pub(in crate::limiter) fn health(&self) -> StoreHealth {
        self.core.store.health()
    }

    pub(in crate::limiter) fn metrics(&self) -> LimiterMetrics {
        LimiterMetrics {
            leases: self.core.leases.metrics(),
            local_quota: self.core.local_quota.metrics(),
            remembered_denials: self.core.denials.hits(),
            lost_counters: self.core.losses.lost(),
        }
    }

    /// Notes that the store has lost a counter.
    pub(in crate::limiter) fn note_loss(&self) {
        self.core.losses.add(self.core.time.now());
    }

    /// Reports whether the store has lost counters in the last ten minutes.
    pub(in crate::limiter) fn has_lost_counters(&self) -> bool {
        self.core.losses.has_lost_recently(self.core.time.now())
    }

    pub(in crate::limiter) fn store(&self) -> &Arc<S> {
        &self.core.store
    }

    /// Returns leased quota to the store and flushes local usage to it. No check may follow. Each call to the
    /// store takes at most the latency budget. Concurrent callers all return when the work is done.
    pub(in crate::limiter) async fn close(&self) {
        let _closing = self.core.closing.lock().await;
        for call in self.core.leases.pending_acquisitions() {
            let _ = call.wait().await;
        }
        self.return_all_quota().await;
        self.flush_all_usage().await;
    }

    async fn return_all_quota(&self) {
        let core = &self.core;
        let mut returns = core.leases.return_all(core.time.now()).into_iter();
        loop {
            let mut calls = JoinSet::new();
            for settlement in returns.by_ref().take(CONCURRENT_RETURNS) {
                let store = core.store.clone();
                calls.spawn(async move { store.settle(settlement).await });
            }
            if calls.is_empty() {
                return;
            }
            // Quota that cannot be returned expires with its window.
            while calls.join_next().await.is_some() {}
        }
    }

    async fn flush_all_usage(&self) {
        let core = &self.core;
        while core.has_usage_to_flush() && core.store.health() == StoreHealth::Healthy {
            let before = core.local_quota.pending();
            core.flush_some(u64::MAX).await;
            if core.local_quota.pending() == before {
                return;
            }
        }
    }
}

impl<S: Backend> Drop for RemoteLimiter<S> {
    fn drop(&mut self) {
        self.background.abort();
    }
}
