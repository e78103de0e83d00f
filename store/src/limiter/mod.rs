//! The entry point to all counters, the [`Limiter`]. A caller describes each limit once as a [`LimitPlan`]
//! and then checks requests against plans; it does not need to know which store counts them.
//!
//! - [`core`]: the state that checks and background work share.
//! - [`check`]: one check from top to bottom, with the [`denial_cache`], and its result. A store in this process decides it at once.
//! - [`background`]: acquires and returns leased quota, and adds local usage to the store.
//! - [`losses`]: counters that the store has lost.

mod background;
mod check;
mod core;
mod denial_cache;
mod losses;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures::FutureExt as _;
use sluice_limiter::{Rate, Reserved, SlotsFound};
use smallvec::smallvec;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

pub use self::check::{CheckOutcome, LimiterMetrics, LimiterOptions, Reservation, Source};
use self::core::{LimiterCore, StoreTime};
use self::denial_cache::DenialCache;
use self::losses::Losses;
use crate::check::{
    CheckRequest, CheckResponse, Counter, Decisions, Grant, KeyHash, LimitSpec, Lookup, Settlement, Taking,
};
use crate::failure::{StoreError, StoreFault, StoreHealth};
use crate::fault_cause::FaultCause;
use crate::lease::Leases;
use crate::local::LocalQuota;
use crate::memory::MemoryStore;
use crate::plan::{LimitPlan, PlannedCounter};
use crate::redis::RedisStore;
use crate::store::Store;

/// Number of blocks that are returned concurrently when the limiter is closed.
const CONCURRENT_RETURNS: usize = 256;

/// Counts requests in a store and decides them, with leases, remembered denials and local quota in front of a store that other
/// processes share. Call [`Limiter::close`] before dropping it, or leased quota is lost until its window ends.
#[derive(Debug)]
pub struct Limiter<S: Store = AnyStore> {
    core: Arc<LimiterCore<S>>,
    /// The background task; a store in this process needs none.
    background: Option<JoinHandle<()>>,
}

impl Limiter {
    /// Counts in the memory of this process. Must be called within a tokio runtime.
    #[must_use]
    pub fn in_memory(store: MemoryStore) -> Self {
        Self::start(Arc::new(AnyStore::Memory(store)), &LimiterOptions::default(), None)
    }

    /// Counts in Redis. Must be called within a tokio runtime, which runs the background work.
    ///
    /// If it has a `predecessor` whose keys identify the same counters, this limiter continues with the
    /// predecessor's local usage and flushes it to the new store. The predecessor still decides the checks of
    /// requests that hold it, and must be closed.
    #[must_use]
    pub fn in_redis(store: Arc<RedisStore>, options: &LimiterOptions, predecessor: Option<&Self>) -> Self {
        Self::start(Arc::new(AnyStore::Redis(store)), options, predecessor)
    }

    /// Counts without a store: local quota or `onStoreFailure` decides every check. The arguments are those
    /// of [`Limiter::in_redis`].
    #[must_use]
    pub fn unconfigured(options: &LimiterOptions, predecessor: Option<&Self>) -> Self {
        Self::start(Arc::new(AnyStore::Unconfigured), options, predecessor)
    }

    /// Returns the memory store, if this limiter counts in memory.
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryStore> {
        match &*self.core.store {
            AnyStore::Memory(store) => Some(store),
            AnyStore::Redis(_) | AnyStore::Unconfigured => None,
        }
    }

    /// Returns the Redis store, if this limiter counts in Redis.
    #[must_use]
    pub fn redis(&self) -> Option<&Arc<RedisStore>> {
        match &*self.core.store {
            AnyStore::Redis(store) => Some(store),
            AnyStore::Memory(_) | AnyStore::Unconfigured => None,
        }
    }
}

impl<S: Store> Limiter<S> {
    /// Starts a limiter, with the local usage of its predecessor if that has some.
    fn start(store: Arc<S>, options: &LimiterOptions, predecessor: Option<&Self>) -> Self {
        let predecessor = predecessor.filter(|limiter| !limiter.core.store.is_in_process());
        let (local_quota, time) = match predecessor {
            Some(Self { core, .. }) => {
                // It still decides checks, but the local usage is flushed by this limiter from now on.
                core.has_successor.store(true, Relaxed);
                (core.local_quota.clone(), core.time.for_successor())
            }
            None => {
                let local_quota = LocalQuota::new(options.local_quota_keys, options.last_known_keys);
                (Arc::new(local_quota), StoreTime::new())
            }
        };
        let runtime = Handle::current();
        let core = Arc::new(LimiterCore {
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
        let background = (!core.store.is_in_process()).then(|| runtime.spawn(core.clone().run_background()));
        Self { core, background }
    }

    /// Decides a request: every counter is charged, or none. A counter must not occur twice.
    ///
    /// # Errors
    /// The store did not answer and at least one of the limits denies in that case.
    #[inline]
    pub async fn check(&self, counters: &[PlannedCounter]) -> Result<CheckOutcome, StoreError> {
        self.check_within(counters, Duration::MAX).await
    }

    /// Decides a request as [`Limiter::check`] does, for a caller that waits only so long: the call to the store takes at most
    /// `budget`, and at most the latency budget.
    ///
    /// # Errors
    /// The store did not answer and at least one of the limits denies in that case.
    #[inline]
    pub async fn check_within(
        &self,
        counters: &[PlannedCounter],
        budget: Duration,
    ) -> Result<CheckOutcome, StoreError> {
        if self.core.store.is_in_process() {
            self.core.check_in_process(counters).await
        } else {
            self.core.check(counters, budget).await
        }
    }

    /// Corrects what a check charged to one of its counters by `delta`. Each reservation may be settled once.
    ///
    /// # Errors
    /// The store did not answer. The correction may or may not have been made, and is not retried.
    pub async fn settle(
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
        let settlement = Settlement { limit, key: counter.key, charged, delta, overflowed, least: 0 };
        self.core.store.settle(settlement).await.map(drop)
    }

    /// Returns an open reservation. Returns `None` if there is no such one: it was settled before, or has expired.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        self.core.store.find(lookup).await
    }

    /// Settles a reservation of this limit: takes it out of its ledger and corrects its charge, or neither. Returns whether there was
    /// such one.
    ///
    /// # Errors
    /// The store did not answer. The reservation may or may not have been settled; the call can be repeated.
    pub async fn take(&self, limit: &Arc<LimitPlan>, taking: Taking) -> Result<bool, StoreError> {
        // The refund makes room, so no denial is remembered beyond it.
        let (limit, key) = (limit.clone(), taking.correction.key);
        self.core.denials.clear();
        self.core.local_quota.refunded(&PlannedCounter { limit, key, cost: 0 });
        self.core.store.take(taking).await
    }

    /// Decides one counter in the store itself, past leases, remembered denials and local quota.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn check_in_store(&self, counter: Counter) -> Result<CheckResponse, StoreError> {
        self.core.store.check(smallvec![counter]).await
    }

    /// Reads the rates of a counter for an operator. Unlike a check without a cost, it never counts as a denial. Returns `None`
    /// if only this process counts the limit, and the limit counts denials or blocks clients.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn peek(&self, limit: &Arc<LimitPlan>, key: KeyHash) -> Result<Option<Decisions>, StoreError> {
        let rates = &limit.spec.rates;
        if limit.consistency.is_local() {
            if rates.iter().any(|rate| rate.counts_only_own_denials() || rate.count_denied) {
                return Ok(None);
            }
            let peek = PlannedCounter { limit: limit.clone(), key, cost: 0 };
            return Ok(Some(self.check(&[peek]).await?.response.decisions));
        }
        // The denial by one rate must not count in another, which may block the client, nor in itself.
        let mut decisions = Decisions::new();
        for rate in rates {
            let spec = Arc::new(limit.spec.with_rate(Rate { count_denied: false, ..*rate }));
            decisions.extend(self.check_in_store(Counter { limit: spec, key, cost: 0 }).await?.decisions);
        }
        Ok(Some(decisions))
    }

    /// Forgets what this process knows about a client whose counter was removed at this time, see
    /// [`Limiter::reset_in_store`]: quota leased before, remembered denials and local usage. `limits` are all limits that
    /// count in this counter, such as tiers. A counter of this process alone is removed now.
    pub fn forget(&self, limits: &[Arc<LimitPlan>], key: KeyHash, removed_at: u64) {
        let core = &self.core;
        for limit in limits {
            if core.store.is_in_process() {
                // It is ready at once.
                let _ = core.store.reset(&limit.spec, key).now_or_never();
            }
            let counter = PlannedCounter { limit: limit.clone(), key, cost: 0 };
            core.leases.forget(&counter, removed_at, core.time.now());
            core.local_quota.forget(&counter);
        }
        core.denials.clear();
    }

    /// Removes a client's counter in the store, for all tiers of its limit. Returns the time by the store's clock, in
    /// microseconds since the Unix epoch. Every process must then forget the client, see [`Limiter::forget`]. Does nothing
    /// if no store counts the limit.
    ///
    /// # Errors
    /// The store did not answer. The counter may or may not have been removed.
    pub async fn reset_in_store(&self, limit: &LimitPlan, key: KeyHash) -> Result<u64, StoreError> {
        // A counter of this process alone is removed when it is told to forget, and must not be removed twice.
        if limit.consistency.is_local() || self.core.store.is_in_process() {
            return Ok(0);
        }
        self.core.store.reset(&limit.spec, key).await
    }

    /// Corrects one counter in the store itself. Returns what was found of the slots that must be there.
    ///
    /// # Errors
    /// The store did not answer. The correction may or may not have been made.
    pub async fn settle_in_store(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        self.core.store.settle(settlement).await
    }

    /// Notes that the store has lost a counter. A store in this process loses none: they expire.
    pub fn note_loss(&self) {
        if !self.core.store.is_in_process() {
            self.core.losses.add(self.core.time.now());
        }
    }

    /// Returns the state of the store as the last calls found it.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        self.core.store.health()
    }

    /// Returns the cause of the store's fault while it fails.
    #[must_use]
    pub fn fault_cause(&self) -> Option<FaultCause> {
        self.core.store.fault_cause()
    }

    /// Reports whether the store has lost counters in the last ten minutes: it had to create them although they could not have
    /// expired.
    #[must_use]
    pub fn has_lost_counters(&self) -> bool {
        self.core.losses.has_lost_recently(self.core.time.now())
    }

    /// Returns the metrics of leases, remembered denials and local quota. A limiter in memory has none.
    #[must_use]
    pub fn metrics(&self) -> Option<LimiterMetrics> {
        let core = &self.core;
        (!core.store.is_in_process()).then(|| LimiterMetrics {
            leases: core.leases.metrics(),
            local_quota: core.local_quota.metrics(),
            remembered_denials: core.denials.hits(),
            lost_counters: core.losses.lost(),
        })
    }

    /// Returns leased quota to the store and flushes local usage to it. No check may follow. Each call to the
    /// store takes at most the latency budget. Concurrent callers all return when the work is done.
    pub async fn close(&self) {
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

impl<S: Store> Drop for Limiter<S> {
    fn drop(&mut self) {
        if let Some(background) = &self.background {
            background.abort();
        }
    }
}

/// One of the stores, or none: every call then fails, so that local quota or `onStoreFailure` decides.
#[derive(Debug)]
pub enum AnyStore {
    /// Counters in the memory of this process.
    Memory(MemoryStore),
    /// Counters in Redis.
    Redis(Arc<RedisStore>),
    /// No store.
    Unconfigured,
}

/// Calls the store, if there is one.
macro_rules! call {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            AnyStore::Memory($store) => $call.await,
            AnyStore::Redis($store) => {
                let $store = &**$store;
                $call.await
            }
            AnyStore::Unconfigured => Err(StoreError::Unavailable(StoreFault::Unconfigured)),
        }
    };
}

impl Store for AnyStore {
    #[inline]
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        call!(self, store => Store::check(store, check))
    }

    async fn acquire(&self, counter: Counter, times: u64) -> Result<Grant, StoreError> {
        call!(self, store => Store::acquire(store, counter, times))
    }

    async fn settle(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        call!(self, store => Store::settle(store, settlement))
    }

    async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        call!(self, store => Store::find(store, lookup))
    }

    async fn take(&self, taking: Taking) -> Result<bool, StoreError> {
        call!(self, store => Store::take(store, taking))
    }

    async fn reset(&self, limit: &Arc<LimitSpec>, key: KeyHash) -> Result<u64, StoreError> {
        call!(self, store => Store::reset(store, limit, key))
    }

    fn health(&self) -> StoreHealth {
        match self {
            Self::Memory(store) => store.health(),
            Self::Redis(store) => store.health(),
            Self::Unconfigured => StoreHealth::Failing(StoreFault::Unconfigured),
        }
    }

    fn fault_cause(&self) -> Option<FaultCause> {
        match self {
            Self::Redis(store) => store.fault_cause(),
            Self::Memory(_) | Self::Unconfigured => None,
        }
    }

    fn is_in_process(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}
