//! The leases of all keys in this process.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_limiter::Decision;

use super::metrics::{LeaseCounts, LeaseMetrics};
use super::quota_lease::{BlockReturn, LeaseStep, QuotaLease};
use super::review_schedule::{NextReview, ReviewSchedule};
use crate::bounded_table::BoundedTable;
use crate::check::{CheckResponse, Counter, Decisions, Grant, KeyHash, Settlement};
use crate::pending_call::PendingCall;
use crate::plan::lease_terms::LeaseTerms;
use crate::plan::{LimitPlan, PlannedCounter};

const SHARDS: usize = 16;

/// Largest number of units that one call acquires. A larger block is made of larger units.
const MAX_UNITS: u64 = 2048;

/// Time without a request, in microseconds, after which a key may be replaced by another one.
const IDLE_AFTER: u64 = 1_000_000;

/// Shortest time between two reviews of a lease, in microseconds. Timers are no more precise.
const LEAST_REVIEW_INTERVAL: u64 = 1_000;

/// All leases of this process, at most about `max_keys`.
#[derive(Debug)]
pub(crate) struct Leases {
    shards: [Mutex<BoundedTable<LeasedKey>>; SHARDS],
    schedule: ReviewSchedule,
    counts: LeaseCounts,
}

#[derive(Debug)]
struct LeasedKey {
    plan: Arc<LimitPlan>,
    key: KeyHash,
    lease: QuotaLease,
    /// The call that acquires a block.
    acquisition: Option<Arc<PendingCall>>,
    /// Whether a review is scheduled.
    scheduled: bool,
    last_request: u64,
}

/// Result of [`Leases::reserve`].
#[derive(Debug)]
pub(crate) enum LeaseOutcome {
    /// Quota was reserved from the block.
    Reserved(LeasedQuota),
    /// The counter in the store is believed to be exhausted.
    Denied(Decisions),
    /// Wait for this call and try again.
    Wait(Arc<PendingCall>),
    /// Check this request in the store.
    CallStore,
}

/// Quota that a request reserved from a block.
#[derive(Debug)]
pub(crate) struct LeasedQuota {
    pub(crate) decisions: Decisions,
    /// Instant of the store's clock that identifies the charge.
    pub(crate) charged_at: u64,
    /// Identifies the block.
    window_end: u64,
    /// How often the counter had been reset.
    resets: u32,
}

/// A block to acquire from the store. The caller that receives it must make the call, and then report the
/// result to [`Leases::acquired`] or [`Leases::acquisition_failed`].
#[derive(Debug)]
pub(crate) struct BlockAcquisition {
    id: u128,
    /// The counter; its cost is the size of one unit.
    pub(crate) counter: Counter,
    /// Number of units.
    pub(crate) units: u64,
    pub(crate) call: Arc<PendingCall>,
}

impl Leases {
    pub(crate) fn new(max_keys: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(BoundedTable::new(max_keys.div_ceil(SHARDS)))),
            schedule: ReviewSchedule::default(),
            counts: LeaseCounts::default(),
        }
    }

    /// Reserves the cost of a request. `has_waited` is set when a request tries again. The caller must start
    /// the acquisition, if one is returned.
    pub(crate) fn reserve(
        &self,
        counter: &PlannedCounter,
        terms: &LeaseTerms,
        now: u64,
        has_waited: bool,
    ) -> (LeaseOutcome, Option<BlockAcquisition>) {
        let id = counter.id();
        let mut shard = self.lock(id);
        if !has_waited {
            self.counts.requests.fetch_add(1, Relaxed);
        }
        let leased = shard.get_or_try_insert(
            id,
            |leased| leased.is_idle(now),
            || LeasedKey {
                plan: counter.limit.clone(),
                key: counter.key,
                lease: QuotaLease::new(now, counter.limit.replicas.count()),
                acquisition: None,
                scheduled: false,
                last_request: now,
            },
        );
        let Some(leased) = leased else { return (LeaseOutcome::CallStore, None) };
        leased.last_request = now;
        let spec = &leased.plan.spec;
        let step = if has_waited {
            leased.lease.retry(spec, terms, now, counter.cost)
        } else {
            leased.lease.request(spec, terms, now, counter.cost)
        };
        match step {
            LeaseStep::Admit { acquire } => {
                self.counts.admitted.fetch_add(1, Relaxed);
                let quota = LeasedQuota {
                    decisions: leased.lease.decisions(spec, now, true),
                    charged_at: leased.lease.block().charged_at(),
                    window_end: leased.lease.block().window_end(),
                    resets: leased.lease.resets(),
                };
                let acquisition = (acquire > 0).then(|| leased.start_acquisition(id, acquire));
                (LeaseOutcome::Reserved(quota), acquisition)
            }
            LeaseStep::Deny => {
                self.counts.denied.fetch_add(1, Relaxed);
                (LeaseOutcome::Denied(leased.lease.decisions(spec, now, false)), None)
            }
            LeaseStep::Acquire(size) => {
                let acquisition = leased.start_acquisition(id, size);
                (LeaseOutcome::Wait(acquisition.call.clone()), Some(acquisition))
            }
            LeaseStep::Wait => match &leased.acquisition {
                Some(call) => (LeaseOutcome::Wait(call.clone()), None),
                None => (LeaseOutcome::CallStore, None),
            },
            LeaseStep::CallStore => (LeaseOutcome::CallStore, None),
        }
    }

    /// Returns reserved quota to its block, because the request was not admitted after all.
    pub(crate) fn put_back(&self, counter: &PlannedCounter, quota: &LeasedQuota, now: u64) {
        self.counts.admitted.fetch_sub(1, Relaxed);
        if let Some(leased) = self.lock(counter.id()).get_mut(counter.id()) {
            leased.lease.put_back(now, counter.cost, quota.window_end, quota.resets);
        }
    }

    /// Adds the grant of an acquisition that was sent at `sent`. Returns the counter, or `None` if the lease
    /// no longer waits for this acquisition.
    pub(crate) fn acquired(
        &self,
        acquisition: &BlockAcquisition,
        grant: &Grant,
        sent: u64,
        now: u64,
    ) -> Option<PlannedCounter> {
        let mut shard = self.lock(acquisition.id);
        let leased = shard.get_mut(acquisition.id).filter(|leased| leased.waits_for(acquisition))?;
        leased.acquisition = None;
        let unit = acquisition.counter.cost;
        let (wanted, granted) = (acquisition.units * unit, grant.granted * unit);
        self.counts.acquisitions.fetch_add(1, Relaxed);
        self.counts.acquired.fetch_add(granted, Relaxed);
        let plan = leased.plan.clone();
        let terms = plan.lease_terms.as_ref()?;
        leased.lease.acquired(&plan.spec, leased.key, terms, wanted, granted, &grant.response, sent, now);
        self.count_expired(leased);
        let counter = PlannedCounter { limit: plan, key: leased.key, cost: 0 };
        if leased.lease.block().left() > 0 && !std::mem::replace(&mut leased.scheduled, true) {
            drop(shard);
            self.schedule.add(now, acquisition.id);
        }
        Some(counter)
    }

    /// Forgets a key whose block was charged to the overflow counter, which many keys share. Returns the settlement that
    /// gives the block back. The key's requests are then checked in the store one by one.
    pub(crate) fn overflowed(&self, acquisition: &BlockAcquisition, grant: &Grant) -> Settlement {
        let Counter { limit, key, cost } = &acquisition.counter;
        let mut shard = self.lock(acquisition.id);
        if shard.get_mut(acquisition.id).is_some_and(|leased| leased.waits_for(acquisition)) {
            shard.remove(acquisition.id);
        }
        let delta = -i64::try_from(grant.granted.saturating_mul(*cost)).unwrap_or(i64::MAX);
        let (limit, charged) = (limit.clone(), grant.response.at);
        Settlement { limit, key: *key, charged, delta, overflowed: true, least: 0 }
    }

    /// Records that an acquisition failed or was abandoned. Does nothing if it has succeeded.
    pub(crate) fn acquisition_failed(&self, acquisition: &BlockAcquisition) {
        let mut shard = self.lock(acquisition.id);
        if let Some(leased) = shard.get_mut(acquisition.id).filter(|leased| leased.waits_for(acquisition)) {
            leased.acquisition = None;
            leased.lease.acquisition_failed();
        }
    }

    /// Forgets the denials of a counter that was removed at this time of the store, and the quota leased before.
    pub(crate) fn forget(&self, counter: &PlannedCounter, removed_at: u64, now: u64) {
        if let Some(leased) = self.lock(counter.id()).get_mut(counter.id()) {
            leased.lease.forget(removed_at, now);
        }
    }

    /// Records the response to a request that was checked in the store. `decisions` are those of this
    /// counter.
    pub(crate) fn called(
        &self,
        counter: &PlannedCounter,
        terms: &LeaseTerms,
        response: &CheckResponse,
        decisions: &[Decision],
        now: u64,
    ) {
        self.counts.single_calls.fetch_add(1, Relaxed);
        if let Some(leased) = self.lock(counter.id()).get_mut(counter.id()) {
            leased.lease.called(&counter.limit.spec, terms, counter.cost, response, decisions, now);
        }
    }

    /// Reviews the leases that are due. Returns the quota to return to the store, and the time of the next
    /// review.
    pub(crate) fn review(&self, now: u64) -> (Vec<Settlement>, Option<u64>) {
        let mut returns = Vec::new();
        loop {
            let id = match self.schedule.next(now) {
                NextReview::Due(id) => id,
                NextReview::At(at) => return (returns, Some(at)),
                NextReview::None => return (returns, None),
            };
            let mut shard = self.lock(id);
            let Some(leased) = shard.get_mut(id) else { continue };
            let Some(terms) = &leased.plan.lease_terms else { continue };
            let (block_return, next) = leased.lease.review(terms, now);
            returns.extend(block_return.map(|block_return| self.settlement(leased, block_return)));
            self.count_expired(leased);
            leased.scheduled = next.is_some();
            drop(shard);
            if let Some(next) = next {
                self.schedule.add(next.max(now + LEAST_REVIEW_INTERVAL), id);
            }
        }
    }

    /// Removes all blocks and returns them. Acquisitions must have completed.
    pub(crate) fn return_all(&self, now: u64) -> Vec<Settlement> {
        let mut returns = Vec::new();
        self.for_each_shard(|shard| {
            for (_, leased) in shard.iter_mut() {
                let block_return = leased.lease.return_all(now);
                returns.extend(block_return.map(|block_return| self.settlement(leased, block_return)));
            }
        });
        returns
    }

    /// Returns the calls that are acquiring blocks now.
    pub(crate) fn pending_acquisitions(&self) -> Vec<Arc<PendingCall>> {
        let mut calls = Vec::new();
        self.for_each_shard(|shard| {
            calls.extend(shard.iter_mut().filter_map(|(_, leased)| leased.acquisition.clone()));
        });
        calls
    }

    /// Waits until a review is due earlier than [`Leases::review`] returned.
    pub(crate) async fn earlier_review(&self) {
        self.schedule.earlier().await;
    }

    pub(crate) fn metrics(&self) -> LeaseMetrics {
        let (mut keys, mut pending) = (0, 0);
        self.for_each_shard(|shard| {
            keys += shard.len() as u64;
            pending += shard.iter_mut().filter(|(_, leased)| leased.acquisition.is_some()).count() as u64;
        });
        self.counts.metrics(keys, pending)
    }

    fn settlement(&self, leased: &LeasedKey, block_return: BlockReturn) -> Settlement {
        self.counts.returns.fetch_add(1, Relaxed);
        self.counts.returned.fetch_add(block_return.amount, Relaxed);
        Settlement {
            limit: leased.plan.spec.clone(),
            key: leased.key,
            // Rule: lease.return-names-charge.
            charged: block_return.charged_at,
            delta: -i64::try_from(block_return.amount).unwrap_or(i64::MAX),
            overflowed: false,
            least: 0,
        }
    }

    fn count_expired(&self, leased: &mut LeasedKey) {
        self.counts.expired.fetch_add(std::mem::take(&mut leased.lease.expired), Relaxed);
    }

    fn for_each_shard(&self, mut visit: impl FnMut(&mut BoundedTable<LeasedKey>)) {
        for shard in &self.shards {
            visit(&mut shard.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn lock(&self, id: u128) -> MutexGuard<'_, BoundedTable<LeasedKey>> {
        // A lease is consistent between any two statements that can panic.
        self.shards[(id >> 124) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeasedKey {
    fn is_idle(&self, now: u64) -> bool {
        self.lease.is_idle() && !self.scheduled && self.last_request + IDLE_AFTER < now
    }

    fn waits_for(&self, acquisition: &BlockAcquisition) -> bool {
        self.acquisition.as_ref().is_some_and(|call| Arc::ptr_eq(call, &acquisition.call))
    }

    fn start_acquisition(&mut self, id: u128, size: u64) -> BlockAcquisition {
        let call = Arc::new(PendingCall::default());
        self.acquisition = Some(call.clone());
        let unit = size.div_ceil(MAX_UNITS).max(1);
        let counter = Counter { limit: self.plan.spec.clone(), key: self.key, cost: unit };
        BlockAcquisition { id, counter, units: (size / unit).max(1), call }
    }
}
