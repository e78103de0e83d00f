//! [`Limiter`]: one type in front of all stores.

use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::{Rate, Reserved, SlotsFound};
use smallvec::{SmallVec, smallvec};

use super::outcome::{CheckOutcome, LimiterMetrics, LimiterOptions, Reservation, Source};
use super::remote::{LocalState, RemoteLimiter, Unconfigured};
use crate::check::{CheckRequest, CheckResponse, Counter, Decisions, KeyHash, Lookup, Settlement, Taking};
use crate::failure::{StoreError, StoreHealth};
use crate::fault_cause::FaultCause;
use crate::memory::MemoryStore;
use crate::plan::{LimitPlan, PlannedCounter};
use crate::redis::RedisStore;

/// Counts requests and decides them: in the memory of this process, or in Redis with leases, remembered
/// denials and local quota in front of it. Call [`Limiter::close`] before dropping it, or leased quota is
/// lost until its window ends.
#[derive(Debug)]
pub struct Limiter(Kind);

#[derive(Debug)]
enum Kind {
    Memory(MemoryStore),
    Redis(RemoteLimiter<RedisStore>),
    Unconfigured(RemoteLimiter<Unconfigured>),
}

impl Limiter {
    /// Counts in the memory of this process.
    #[must_use]
    pub fn in_memory(store: MemoryStore) -> Self {
        Self(Kind::Memory(store))
    }

    /// Counts in Redis. Must be called within a tokio runtime, which runs the background work.
    ///
    /// If it has a `predecessor` whose keys identify the same counters, this limiter continues with the
    /// predecessor's local usage and flushes it to the new store. The predecessor still decides the checks of
    /// requests that hold it, and must be closed.
    #[must_use]
    pub fn in_redis(store: Arc<RedisStore>, options: &LimiterOptions, predecessor: Option<&Self>) -> Self {
        let local = predecessor.and_then(Self::hand_over);
        Self(Kind::Redis(RemoteLimiter::new(store, options, local)))
    }

    /// Counts without a store: local quota or `onStoreFailure` decides every check. The arguments are those
    /// of [`Limiter::in_redis`].
    #[must_use]
    pub fn unconfigured(options: &LimiterOptions, predecessor: Option<&Self>) -> Self {
        let local = predecessor.and_then(Self::hand_over);
        Self(Kind::Unconfigured(RemoteLimiter::new(Arc::new(Unconfigured), options, local)))
    }

    fn hand_over(&self) -> Option<LocalState> {
        match &self.0 {
            Kind::Memory(_) => None,
            Kind::Redis(limiter) => Some(limiter.hand_over()),
            Kind::Unconfigured(limiter) => Some(limiter.hand_over()),
        }
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
        match &self.0 {
            Kind::Memory(store) => {
                let check: CheckRequest = counters.iter().map(PlannedCounter::counter).collect();
                let response = store.check(&check);
                let charged =
                    if response.admitted { Reservation::Store(response.at) } else { Reservation::Nothing };
                let reservations = SmallVec::from_elem(charged, counters.len());
                Ok(CheckOutcome { response, reservations, source: Source::Store, failure: None })
            }
            Kind::Redis(limiter) => limiter.check_within(counters, budget).await,
            Kind::Unconfigured(limiter) => limiter.check_within(counters, budget).await,
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
        match &self.0 {
            Kind::Memory(store) => {
                if let Reservation::Store(charged) | Reservation::Overflow(charged) = reservation {
                    let overflowed = matches!(reservation, Reservation::Overflow(_));
                    let limit = counter.limit.spec.clone();
                    store.settle(&Settlement {
                        limit,
                        key: counter.key,
                        charged,
                        delta,
                        overflowed,
                        least: 0,
                    });
                }
                Ok(())
            }
            Kind::Redis(limiter) => limiter.settle(counter, reservation, delta).await,
            Kind::Unconfigured(limiter) => limiter.settle(counter, reservation, delta).await,
        }
    }

    /// Returns an open reservation. Returns `None` if there is no such one: it was settled before, or has expired.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        match &self.0 {
            Kind::Memory(store) => Ok(store.find(&lookup)),
            Kind::Redis(limiter) => limiter.find(lookup).await,
            Kind::Unconfigured(limiter) => limiter.find(lookup).await,
        }
    }

    /// Settles a reservation of this limit: takes it out of its ledger and corrects its charge, or neither. Returns whether there was
    /// such one.
    ///
    /// # Errors
    /// The store did not answer. The reservation may or may not have been settled; the call can be repeated.
    pub async fn take(&self, limit: &Arc<LimitPlan>, taking: Taking) -> Result<bool, StoreError> {
        match &self.0 {
            Kind::Memory(store) => Ok(store.take(&taking)),
            Kind::Redis(limiter) => limiter.take(limit, taking).await,
            Kind::Unconfigured(limiter) => limiter.take(limit, taking).await,
        }
    }

    /// Decides one counter in the store itself, past leases, remembered denials and local quota.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn check_in_store(&self, counter: Counter) -> Result<CheckResponse, StoreError> {
        match &self.0 {
            Kind::Memory(store) => Ok(store.check(&[counter])),
            Kind::Redis(limiter) => limiter.check_in_store(smallvec![counter]).await,
            Kind::Unconfigured(limiter) => limiter.check_in_store(smallvec![counter]).await,
        }
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
            let counter = Counter { limit: spec, key, cost: 0 };
            decisions.extend(match &self.0 {
                Kind::Memory(store) => store.peek(&counter),
                Kind::Redis(_) | Kind::Unconfigured(_) => self.check_in_store(counter).await?.decisions,
            });
        }
        Ok(Some(decisions))
    }

    /// Forgets what this process knows about a client whose counter was removed at this time, see
    /// [`Limiter::reset_in_store`]: quota leased before, remembered denials and local usage. `limits` are all limits that
    /// count in this counter, such as tiers. A counter of this process alone is removed now.
    pub fn forget(&self, limits: &[Arc<LimitPlan>], key: KeyHash, removed_at: u64) {
        match &self.0 {
            Kind::Memory(store) => {
                limits.iter().for_each(|limit| store.reset(&limit.spec, key));
            }
            Kind::Redis(limiter) => limiter.forget(limits, key, removed_at),
            Kind::Unconfigured(limiter) => limiter.forget(limits, key, removed_at),
        }
    }

    /// Removes a client's counter in the store, for all tiers of its limit. Returns the time by the store's clock, in
    /// microseconds since the Unix epoch. Every process must then forget the client, see [`Limiter::forget`]. Does nothing
    /// if no store counts the limit.
    ///
    /// # Errors
    /// The store did not answer. The counter may or may not have been removed.
    pub async fn reset_in_store(&self, limit: &LimitPlan, key: KeyHash) -> Result<u64, StoreError> {
        if limit.consistency.is_local() {
            return Ok(0);
        }
        match &self.0 {
            Kind::Memory(_) => Ok(0),
            Kind::Redis(limiter) => limiter.reset_in_store(&limit.spec, key).await,
            Kind::Unconfigured(limiter) => limiter.reset_in_store(&limit.spec, key).await,
        }
    }

    /// Corrects one counter in the store itself. Returns what was found of the slots that must be there.
    ///
    /// # Errors
    /// The store did not answer. The correction may or may not have been made.
    pub async fn settle_in_store(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        match &self.0 {
            Kind::Memory(store) => Ok(store.settle(&settlement)),
            Kind::Redis(limiter) => limiter.settle_in_store(settlement).await,
            Kind::Unconfigured(limiter) => limiter.settle_in_store(settlement).await,
        }
    }

    /// Notes that the store has lost a counter.
    pub fn note_loss(&self) {
        match &self.0 {
            Kind::Memory(_) => {}
            Kind::Redis(limiter) => limiter.note_loss(),
            Kind::Unconfigured(limiter) => limiter.note_loss(),
        }
    }

    /// Returns the state of the store as the last calls found it.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        match &self.0 {
            Kind::Memory(_) => StoreHealth::Healthy,
            Kind::Redis(limiter) => limiter.health(),
            Kind::Unconfigured(limiter) => limiter.health(),
        }
    }

    /// Returns the cause of the store's fault while it fails.
    #[must_use]
    pub fn fault_cause(&self) -> Option<FaultCause> {
        self.redis()?.fault_cause()
    }

    /// Reports whether the store has lost counters in the last ten minutes: it had to create them although they could not have
    /// expired.
    #[must_use]
    pub fn has_lost_counters(&self) -> bool {
        match &self.0 {
            Kind::Memory(_) => false,
            Kind::Redis(limiter) => limiter.has_lost_counters(),
            Kind::Unconfigured(limiter) => limiter.has_lost_counters(),
        }
    }

    /// Returns the metrics of leases, remembered denials and local quota. A limiter in memory has none.
    #[must_use]
    pub fn metrics(&self) -> Option<LimiterMetrics> {
        match &self.0 {
            Kind::Memory(_) => None,
            Kind::Redis(limiter) => Some(limiter.metrics()),
            Kind::Unconfigured(limiter) => Some(limiter.metrics()),
        }
    }

    /// Returns the memory store, if this limiter counts in memory.
    #[must_use]
    pub fn memory(&self) -> Option<&MemoryStore> {
        match &self.0 {
            Kind::Memory(store) => Some(store),
            Kind::Redis(_) | Kind::Unconfigured(_) => None,
        }
    }

    /// Returns the Redis store, if this limiter counts in Redis.
    #[must_use]
    pub fn redis(&self) -> Option<&Arc<RedisStore>> {
        match &self.0 {
            Kind::Redis(limiter) => Some(limiter.store()),
            Kind::Memory(_) | Kind::Unconfigured(_) => None,
        }
    }

    /// Returns leased quota to the store and flushes local usage to it. No check may follow. Each call to the
    /// store takes at most the latency budget. Concurrent callers all return when the work is done.
    pub async fn close(&self) {
        match &self.0 {
            Kind::Memory(_) => {}
            Kind::Redis(limiter) => limiter.close().await,
            Kind::Unconfigured(limiter) => limiter.close().await,
        }
    }
}
