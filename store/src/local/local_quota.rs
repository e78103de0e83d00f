//! All counters of this process that enforce local quota.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_limiter::Decision;
use smallvec::SmallVec;

use super::last_known_usage::{FlushedRate, LastKnownUsage, SeenUsage};
use super::local_counter::{LocalCounter, UnflushedUsage};
use crate::bounded_table::{BoundedTable, Room};
use crate::check::{CheckResponse, Counter, KeyHash, LimitSpec, Records, decide_with_overflow};
use crate::pending_call::PendingCall;
use crate::plan::PlannedCounter;

/// Key of the counter that new keys of a limit share when the table is full.
const OVERFLOW_KEY: KeyHash = KeyHash(0);

/// Counts of local quota since the start of the process, and its state now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalQuotaMetrics {
    /// Checks admitted by local quota.
    pub admitted: u64,
    /// Checks denied by local quota.
    pub denied: u64,
    /// Counters whose local usage is not flushed to the store yet.
    pub pending: u64,
    /// Counters whose local usage was flushed to the store.
    pub flushed: u64,
}

/// Counts and decides checks by this replica's share of each limit.
#[derive(Debug)]
pub(crate) struct LocalQuota {
    table: Mutex<BoundedTable<TrackedCounter>>,
    last_known: LastKnownUsage,
    /// Number of counters to flush. It is 0 for nearly all of a process's life.
    pending: AtomicUsize,
    admitted: AtomicU64,
    denied: AtomicU64,
    flushed: AtomicU64,
}

#[derive(Debug)]
struct TrackedCounter {
    counter: LocalCounter,
    /// Whether many keys share this counter.
    is_overflow: bool,
    /// Whether the limit is only counted locally, and never flushed.
    is_local_only: bool,
    /// The running flush.
    flush: Option<Arc<PendingCall>>,
    /// Time of this process's clock before which no flush begins by itself.
    flush_after: u64,
}

/// Local usage of one counter to flush to the store. The caller that receives it must make the calls, and
/// then report the result to [`LocalQuota::finish_flush`].
#[derive(Debug)]
pub(crate) struct UsageFlush {
    counter_id: u128,
    records_id: u128,
    /// For each rate, the limit with that rate alone.
    pub(crate) limits: SmallVec<[Arc<LimitSpec>; 1]>,
    pub(crate) key: KeyHash,
    pub(crate) usages: SmallVec<[UnflushedUsage; 1]>,
    pub(crate) call: Arc<PendingCall>,
}

impl LocalQuota {
    /// Counts at most `max_keys` keys, and keeps the last known usage of about `last_known_keys`.
    pub(crate) fn new(max_keys: usize, last_known_keys: usize) -> Self {
        Self {
            table: Mutex::new(BoundedTable::new(max_keys)),
            last_known: LastKnownUsage::new(last_known_keys),
            pending: AtomicUsize::new(0),
            admitted: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
        }
    }

    /// Keeps the usage in a response of the store. Reports whether the counter was created although it should have been in the store.
    pub(crate) fn record_usage(&self, counter: &PlannedCounter, seen: SeenUsage<'_>) -> bool {
        self.last_known.record(counter.records_id(), &counter.limit.spec.rates, seen)
    }

    /// Notes that this process has refunded a charge of a counter.
    pub(crate) fn refunded(&self, counter: &PlannedCounter) {
        self.last_known.refunded(counter.records_id());
    }

    /// Returns admitting decisions with the last known usage, for a counter that was not checked.
    pub(crate) fn unchecked_decisions(&self, counter: &PlannedCounter) -> impl Iterator<Item = Decision> {
        let last_known = self.last_known.get(counter.records_id());
        counter.limit.spec.rates.iter().enumerate().map(move |(n, rate)| {
            let used = last_known.and_then(|usage| usage.used.get(n).copied()).unwrap_or(0);
            Decision {
                admitted: true,
                limit: rate.requests.get(),
                period: rate.period.millis(),
                remaining: rate.requests.get().saturating_sub(used),
                reset: 0,
                retry_after: None,
                delay: 0,
            }
        })
    }

    /// Decides all of these counters at `at` of the store's clock.
    pub(crate) fn check(&self, planned: &[&PlannedCounter], at: u64) -> CheckResponse {
        let mut table = self.lock();
        let mut ids: SmallVec<[u128; 2]> = SmallVec::new();
        let (mut counters, mut records) = (SmallVec::<[Counter; 2]>::new(), SmallVec::<[Records; 2]>::new());
        // Position in `counters` for each planned counter. Several can share the overflow counter.
        let mut positions: SmallVec<[usize; 2]> = SmallVec::new();
        for planned in planned {
            let (id, tracked) = self.tracked(&mut table, planned, at);
            if let Some(position) = ids.iter().position(|&other| other == id) {
                counters[position].cost = counters[position].cost.saturating_add(planned.cost);
                positions.push(position);
                continue;
            }
            positions.push(ids.len());
            ids.push(id);
            let LocalCounter { limit, key, .. } = &tracked.counter;
            counters.push(Counter { limit: limit.clone(), key: *key, cost: planned.cost });
            records.push(std::mem::take(&mut tracked.counter.records));
        }
        let shared: SmallVec<[bool; 2]> =
            counters.iter().map(|counter| counter.key == OVERFLOW_KEY).collect();
        let response = decide_with_overflow(&counters, &mut records, at, &shared);
        for ((id, records), counter) in ids.iter().zip(records).zip(&counters) {
            if let Some(tracked) = table.get_mut(*id) {
                tracked.counter.records = records;
                if response.admitted {
                    tracked.counter.admitted(at, counter.cost);
                }
            }
        }
        if !planned.is_empty() {
            let metric = if response.admitted { &self.admitted } else { &self.denied };
            metric.fetch_add(1, Relaxed);
        }
        let mut decisions = SmallVec::new();
        for (planned, position) in planned.iter().zip(positions) {
            let before: usize = counters[..position].iter().map(|counter| counter.limit.rates.len()).sum();
            let own = response.decisions.iter().skip(before).zip(&planned.limit.spec.rates);
            // Clients see the limit itself. Its share shows in what remains.
            decisions.extend(own.map(|(d, rate)| Decision { limit: rate.requests.get(), ..*d }));
        }
        CheckResponse { decisions, ..response }
    }

    /// Corrects what was admitted here at `charged`. Returns false if it has been flushed to the store.
    pub(crate) fn correct(&self, counter: &PlannedCounter, charged: u64, delta: i64, at: u64) -> bool {
        match self.lock().get_mut(counter.counter_id()) {
            Some(tracked) => {
                tracked.counter.correct(charged, delta, at);
                true
            }
            None => false,
        }
    }

    /// Forgets a counter that is being reset.
    pub(crate) fn forget(&self, counter: &PlannedCounter) {
        let mut table = self.lock();
        let id = counter.counter_id();
        if table.get_mut(id).is_some_and(|tracked| !tracked.is_local_only) {
            self.pending.fetch_sub(1, Relaxed);
        }
        table.remove(id);
        drop(table);
        self.last_known.forget(counter.records_id());
    }

    /// Returns the number of counters to flush.
    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Relaxed)
    }

    /// Returns up to `most` counters to flush at `at` of this process's clock.
    pub(crate) fn some_pending(&self, most: usize, at: u64) -> Vec<u128> {
        let mut table = self.lock();
        let is_pending = |tracked: &TrackedCounter| {
            !tracked.is_local_only && tracked.flush.is_none() && tracked.flush_after <= at
        };
        table.iter_mut().filter(|(_, tracked)| is_pending(tracked)).map(|(id, _)| id).take(most).collect()
    }

    /// Begins the flush of a counter, or joins the running one. Returns its call, and the flush if this call
    /// began it. Returns `None` if there is nothing to flush.
    pub(crate) fn begin_flush(
        &self,
        counter_id: u128,
        at: u64,
    ) -> Option<(Arc<PendingCall>, Option<UsageFlush>)> {
        let mut table = self.lock();
        let tracked = table.get_mut(counter_id).filter(|tracked| !tracked.is_local_only)?;
        if let Some(call) = &tracked.flush {
            return Some((call.clone(), None));
        }
        let usages = tracked.counter.take_unflushed(at);
        if usages.is_empty() || tracked.is_overflow {
            table.remove(counter_id);
            self.pending.fetch_sub(1, Relaxed);
            return None;
        }
        let call = Arc::new(PendingCall::default());
        tracked.flush = Some(call.clone());
        let (limits, key) = (tracked.counter.widest.clone(), tracked.counter.key);
        let records_id = PlannedCounter { limit: tracked.counter.plan.clone(), key, cost: 0 }.records_id();
        Some((call.clone(), Some(UsageFlush { counter_id, records_id, limits, key, usages, call })))
    }

    /// Ends a flush. The usage of `flushed_rates` is in the store, which then has so much at that time of its clock; the rest
    /// is put back. The next one begins not before
    /// `flush_after`, unless a check needs it.
    pub(crate) fn finish_flush(
        &self,
        flush: &UsageFlush,
        flushed_rates: &[FlushedRate],
        flush_after: u64,
        at: u64,
    ) {
        let mut table = self.lock();
        let is_of = |call: &Arc<PendingCall>| Arc::ptr_eq(call, &flush.call);
        // The counter may have been forgotten meanwhile, and begun anew.
        let Some(tracked) =
            table.get_mut(flush.counter_id).filter(|tracked| tracked.flush.as_ref().is_some_and(is_of))
        else {
            return;
        };
        tracked.flush = None;
        tracked.flush_after = flush_after;
        let mut is_complete = true;
        let is_flushed =
            |usage: &UnflushedUsage| flushed_rates.iter().any(|flushed| flushed.rate == usage.rate);
        for usage in flush.usages.iter().filter(|usage| !is_flushed(usage)) {
            tracked.counter.put_back(usage, at);
            is_complete = false;
        }
        if is_complete {
            self.flushed.fetch_add(1, Relaxed);
            self.last_known.flushed(flush.records_id, flushed_rates);
            if tracked.counter.is_flushed() {
                table.remove(flush.counter_id);
                self.pending.fetch_sub(1, Relaxed);
            }
        }
    }

    pub(crate) fn metrics(&self) -> LocalQuotaMetrics {
        LocalQuotaMetrics {
            admitted: self.admitted.load(Relaxed),
            denied: self.denied.load(Relaxed),
            pending: self.pending() as u64,
            flushed: self.flushed.load(Relaxed),
        }
    }

    /// Returns the counter of a check and its id, and creates it if it is missing. If the table is full, it
    /// is the overflow counter.
    fn tracked<'a>(
        &self,
        table: &'a mut BoundedTable<TrackedCounter>,
        planned: &PlannedCounter,
        at: u64,
    ) -> (u128, &'a mut TrackedCounter) {
        let plan = &planned.limit;
        let replicas = plan.replicas.largest(&plan.spec.rates);
        let is_local_only = plan.consistency.is_local();
        let (mut id, mut key, mut is_overflow) = (planned.counter_id(), planned.key, false);
        if table.get_mut(id).is_none() {
            let is_idle =
                |tracked: &TrackedCounter| tracked.flush.is_none() && tracked.counter.is_expired(at);
            match table.make_room(is_idle) {
                Room::Free => {}
                Room::Evicted(tracked) if tracked.is_local_only => {}
                Room::Evicted(_) => {
                    self.pending.fetch_sub(1, Relaxed);
                }
                Room::Full => {
                    let overflow = PlannedCounter { key: OVERFLOW_KEY, ..planned.clone() };
                    (id, key, is_overflow) = (overflow.counter_id(), OVERFLOW_KEY, true);
                }
            }
        }
        let tracked = table.get_or_insert(id, || {
            if !is_local_only {
                self.pending.fetch_add(1, Relaxed);
            }
            let last_known =
                if is_local_only || is_overflow { None } else { self.last_known.get(planned.records_id()) };
            let counter = LocalCounter::new(plan, key, &replicas, last_known);
            TrackedCounter { counter, is_overflow, is_local_only, flush: None, flush_after: 0 }
        });
        tracked.counter.update(plan, &replicas);
        (id, tracked)
    }

    fn lock(&self) -> MutexGuard<'_, BoundedTable<TrackedCounter>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
