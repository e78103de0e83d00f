//! The task that sends releases and renewals of slots to the store.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, MaybeDone, join_all, maybe_done};
use sluice_limiter::{MAX_CONCURRENT, SlotsFound};
use sluice_store::{Counter, KeyHash, LimitSpec, Limiter, Settlement, StoreError, StoreFault, StoreHealth};
use tokio::time::Instant;

use super::limit::{ConcurrencyLimit, ExpiredMark};
use super::slot::Slot;
use super::table::{CounterId, CounterSlots, Slots, Table};

/// Interval at which the task searches for slots to renew, and for releases that the store did not
/// acknowledge.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of concurrent calls, because the queue of the store serves requests too.
const CALLS_TOGETHER: usize = 256;
/// Longest time for which a counter in use is not told how many slots it must have. A check of a busy counter is sent with a release
/// anyway, which tells it.
pub(super) const TELL: Duration = Duration::from_secs(1);
/// Time that the final releases may take.
const FINAL_RELEASE: Duration = Duration::from_secs(2);
/// Interval at which the progress of the final releases is read.
const FINAL_INTERVAL: Duration = Duration::from_millis(5);

/// The change that a call makes to the slots of one holder. Every call renews the slots that remain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotOperation {
    Renew,
    Release(u32),
    ReleaseAll,
}

impl SlotOperation {
    /// Returns the correction of the number of slots in the store.
    fn delta(self) -> i64 {
        match self {
            Self::Renew => 0,
            Self::Release(slots) => -i64::from(slots),
            Self::ReleaseAll => -(MAX_CONCURRENT as i64),
        }
    }
}

/// A release or a renewal.
pub(super) struct SlotCall {
    id: CounterId,
    limit: Arc<ConcurrencyLimit>,
    spec: Arc<LimitSpec>,
    limiter: Arc<Limiter>,
    pub(super) operation: SlotOperation,
    /// Time at which the first of the slots was granted.
    since: u64,
    /// Whether the lease had ended before, so that the store may have forgotten the slots.
    is_late: bool,
    /// Time until which the store keeps the other slots after this call.
    until: Instant,
    answer: MaybeDone<BoxFuture<'static, Result<SlotsFound, StoreError>>>,
}

impl SlotCall {
    /// Makes a call. One that says how many slots the store must have is in the store's queue at once, while the table is locked: a
    /// later one that says fewer must not overtake it.
    fn new(id: CounterId, counter: &mut CounterSlots, operation: SlotOperation, until: Instant) -> Self {
        counter.told = Instant::now();
        // Rule: slots.tells-least.
        let least = match operation {
            SlotOperation::Renew => counter.least(),
            // They have been taken out of the released ones.
            SlotOperation::Release(slots) => counter.least() + u64::from(slots),
            SlotOperation::ReleaseAll => 0,
        };
        let CounterSlots { limit, spec, limiter, since, .. } = &*counter;
        let (limit, spec, limiter, since) = (limit.clone(), spec.clone(), limiter.clone(), *since);
        let settlement = Settlement {
            limit: spec.clone(),
            key: KeyHash(id.1),
            // Rule: slots.since-first.
            charged: since,
            delta: operation.delta(),
            overflowed: false,
            least,
        };
        let called = limiter.clone();
        let mut answer = maybe_done(async move { called.settle_in_store(settlement).await }.boxed());
        // Rule: slots.in-order.
        if least > 0 {
            // It is polled again for its answer.
            let _ = answer.poll_unpin(&mut Context::from_waker(Waker::noop()));
        }
        let is_late = counter.until <= counter.told;
        Self { id, limit, spec, limiter, operation, since, is_late, until, answer }
    }
}

/// Slots to acquire again under a new holder.
pub(super) struct HolderChange {
    id: CounterId,
    spec: Arc<LimitSpec>,
    limiter: Arc<Limiter>,
    /// Number of slots that requests hold.
    held: u32,
    /// Number of slots that had been released when the change began.
    released: u32,
}

/// Takes the release of a counter, and the counter if nothing uses it any more.
fn take_release(
    counters: &mut HashMap<CounterId, CounterSlots>,
    id: CounterId,
    now: Instant,
) -> Option<SlotCall> {
    let counter = counters.get_mut(&id).filter(|counter| counter.released > 0 && !counter.moving)?;
    let release = std::mem::take(&mut counter.released);
    if !counter.is_unused() {
        let until = now + counter.limit.lease();
        return Some(SlotCall::new(id, counter, SlotOperation::Release(release), until));
    }
    // A call that fails inserts the counter again.
    let mut counter = counters.remove(&id)?;
    let operation =
        if counter.uncertain { SlotOperation::ReleaseAll } else { SlotOperation::Release(release) };
    let until = counter.until;
    Some(SlotCall::new(id, &mut counter, operation, until))
}

impl Slots {
    /// Sends releases and renewals to the store. Never returns.
    pub(crate) async fn run(self) {
        let mut next = Instant::now() + INTERVAL;
        loop {
            // Requests that end during a call are released together by the next one.
            let _ = tokio::time::timeout_at(next, self.0.released.notified()).await;
            let rounds = self.0.lock().released.len().div_ceil(CALLS_TOGETHER);
            for _ in 0..rounds {
                self.send_all(self.releases()).await;
            }
            if Instant::now() >= next {
                loop {
                    let calls = self.renewals();
                    let are_all = calls.len() < CALLS_TOGETHER;
                    self.send_all(calls).await;
                    if are_all {
                        break;
                    }
                }
                let changes = self.holder_changes();
                join_all(changes.into_iter().map(|change| self.change_holder(change))).await;
                next = Instant::now() + INTERVAL;
            }
        }
    }

    /// Takes releases out of the table, at most [`CALLS_TOGETHER`].
    pub(super) fn releases(&self) -> Vec<SlotCall> {
        let now = Instant::now();
        let mut table = self.0.lock();
        let Table { counters, released } = &mut *table;
        let mut calls = Vec::with_capacity(released.len());
        let some = released.len().min(CALLS_TOGETHER);
        for id in released.drain(..some) {
            if let Some(counter) = counters.get_mut(&id) {
                counter.listed = false;
                // A check has taken the release.
                if counter.is_forgettable() {
                    counters.remove(&id);
                }
            }
            calls.extend(take_release(counters, id, now));
        }
        self.0.calls.fetch_add(calls.len(), Ordering::AcqRel);
        calls
    }

    /// Takes the releases of counters that a check needs, so that the store makes them before it. Otherwise a client that sends
    /// one request after another would hold the slots that nobody has released yet. A counter that has not been told for a while how
    /// many slots it must have is told, because a check alone would not notice that it has lost them.
    pub(super) fn releases_before(&self, pending: &[Slot]) -> Vec<SlotCall> {
        let now = Instant::now();
        let mut table = self.0.lock();
        let calls: Vec<_> = pending
            .iter()
            .filter_map(|slot| {
                let id = slot.id();
                take_release(&mut table.counters, id, now).or_else(|| {
                    let counter = table.counters.get_mut(&id)?;
                    let is_due = counter.held > 0 && !counter.moving && counter.told + TELL <= now;
                    let until = now + counter.limit.lease();
                    is_due.then(|| SlotCall::new(id, counter, SlotOperation::Renew, until))
                })
            })
            .collect();
        self.0.calls.fetch_add(calls.len(), Ordering::AcqRel);
        calls
    }

    /// Returns renewals that are due, and releases of unused counters whose state in the store is uncertain: at most
    /// [`CALLS_TOGETHER`], and none twice in a short time.
    pub(super) fn renewals(&self) -> Vec<SlotCall> {
        let now = Instant::now();
        let mut calls = Vec::new();
        self.0.lock().counters.retain(|&id, counter| {
            if counter.moving || calls.len() == CALLS_TOGETHER {
                return true;
            }
            if counter.is_unused() {
                if counter.released > 0 {
                    return true;
                }
                // After its lease, the store forgets the slots without a call.
                if counter.uncertain && now < counter.until {
                    let until = counter.until;
                    calls.push(SlotCall::new(id, counter, SlotOperation::ReleaseAll, until));
                }
                return false;
            }
            let lease = counter.limit.lease();
            if counter.held > 0 && counter.until <= now && counter.expired.is_none() {
                counter.expired = Some(ExpiredMark::new(&counter.limit.totals));
                counter.mark_uncertain();
            }
            if counter.held > 0 && counter.until <= now + lease * 2 / 3 && counter.told + INTERVAL <= now {
                calls.push(SlotCall::new(id, counter, SlotOperation::Renew, now + lease));
            }
            true
        });
        self.0.calls.fetch_add(calls.len(), Ordering::AcqRel);
        calls
    }

    /// Returns the held slots whose state in the store is uncertain and that can be acquired again.
    pub(super) fn holder_changes(&self) -> Vec<HolderChange> {
        let now = Instant::now();
        let mut changes = Vec::new();
        for (&id, counter) in &mut self.0.lock().counters {
            let ready = counter.uncertain && !counter.moving && counter.pending == 0 && counter.held > 0;
            if !ready || now < counter.move_after || counter.limiter.health() != StoreHealth::Healthy {
                continue;
            }
            counter.moving = true;
            changes.push(HolderChange {
                id,
                spec: counter.limit.under_new_holder().spec.clone(),
                limiter: counter.limiter.clone(),
                held: counter.held,
                released: counter.released,
            });
            if changes.len() == CALLS_TOGETHER {
                break;
            }
        }
        changes
    }

    /// Acquires held slots under a new holder, and releases everything under the old one.
    pub(super) async fn change_holder(&self, change: HolderChange) {
        let HolderChange { id, spec, limiter, held, released } = change;
        let began = Instant::now();
        let counter = Counter { limit: spec.clone(), key: KeyHash(id.1), cost: u64::from(held) };
        let result = limiter.check_in_store(counter).await;
        let release_old = {
            let mut table = self.0.lock();
            let Table { counters, released: released_counters } = &mut *table;
            let Some(counter) = counters.get_mut(&id) else { return };
            counter.moving = false;
            let moved = matches!(&result, Ok(response) if response.admitted);
            // Rule: slots.moves-first.
            let release_old = moved.then(|| SlotCall::new(id, counter, SlotOperation::ReleaseAll, began));
            if let Ok(response) = &result
                && moved
            {
                counter.spec = spec;
                counter.since = response.at;
                counter.uncertain = false;
                counter.expired = None;
                counter.until = began + counter.limit.lease();
                // Slots released before are released with the rest of the old holder.
                counter.released -= released.min(counter.released);
            } else {
                // After a lost answer the slots may count twice until the attempt's lease ends.
                counter.move_after = began + if result.is_ok() { INTERVAL } else { counter.limit.lease() };
            }
            if counter.released > 0 {
                released_counters.push(id);
            }
            release_old
        };
        self.0.released.notify_one();
        if let Some(call) = release_old {
            self.0.calls.fetch_add(1, Ordering::AcqRel);
            self.send_all(vec![call]).await;
        }
    }

    /// Sends calls, at most [`CALLS_TOGETHER`] at a time, and notes their results in the table.
    pub(super) async fn send_all(&self, calls: Vec<SlotCall>) {
        let mut calls = calls.into_iter();
        loop {
            let some: Vec<_> = calls.by_ref().take(CALLS_TOGETHER).map(|call| self.send(call)).collect();
            if some.is_empty() {
                return;
            }
            join_all(some).await;
        }
    }

    async fn send(&self, call: SlotCall) {
        let SlotCall { id, limit, spec, limiter, operation, since, is_late, until, mut answer } = call;
        (&mut answer).await;
        // It is taken once.
        let lost = Err(StoreError::Unavailable(StoreFault::Unreachable));
        let result = Pin::new(&mut answer).take_output().unwrap_or(lost);
        if let Ok(SlotsFound::Fewer(_)) = result
            && !is_late
        {
            limiter.note_loss();
        }
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
        let mut table = self.0.lock();
        let Table { counters, released } = &mut *table;
        match (result, operation) {
            (Ok(found), _) => {
                let Some(counter) = counters.get_mut(&id) else { return };
                counter.until = counter.until.max(until);
                if counter.until > Instant::now() {
                    counter.expired = None;
                }
                match found {
                    // They have moved meanwhile.
                    _ if !Arc::ptr_eq(&counter.spec, &spec) || counter.moving => {}
                    SlotsFound::Enough => {}
                    // In a cluster whose hash slots move, a release may have overtaken it, so that it has said too much.
                    SlotsFound::Fewer(_) => counter.mark_uncertain(),
                    SlotsFound::Reset if counter.since == since => counter.forget(),
                    // The next call learns it.
                    SlotsFound::Reset => {}
                }
            }
            // The next search finds slots whose renewal is late.
            (Err(_), SlotOperation::Renew) => {}
            // The call was not sent.
            (Err(StoreError::Overloaded), SlotOperation::Release(release)) => {
                let new = || CounterSlots::new(limit, spec, limiter, until);
                let counter = counters.entry(id).or_insert_with(new);
                counter.released += release;
                counter.since = counter.since.min(since);
                released.push(id);
            }
            (Err(_), SlotOperation::Release(_) | SlotOperation::ReleaseAll) => {
                let new = || CounterSlots::new(limit, spec, limiter, until);
                counters.entry(id).or_insert_with(new).mark_uncertain();
            }
        }
    }

    /// Waits until `deadline` for the last slot to be released, then releases all that are left.
    pub(crate) async fn release_all(&self, deadline: Instant) {
        let unused = async {
            while self.0.lock().counters.values().any(|counter| !counter.is_unused()) {
                tokio::time::sleep(FINAL_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout_at(deadline, unused).await;
        let left: Vec<SlotCall> = {
            let mut table = self.0.lock();
            let mut counters: Vec<_> = table.counters.drain().collect();
            let release = |(id, counter): &mut (CounterId, CounterSlots)| {
                let until = counter.until;
                SlotCall::new(*id, counter, SlotOperation::ReleaseAll, until)
            };
            counters.iter_mut().map(release).collect()
        };
        self.0.calls.fetch_add(left.len(), Ordering::AcqRel);
        let sent = async {
            self.send_all(left).await;
            while self.0.calls.load(Ordering::Acquire) > 0 {
                tokio::time::sleep(FINAL_INTERVAL).await;
            }
        };
        if tokio::time::timeout(FINAL_RELEASE, sent).await.is_err() {
            tracing::warn!("some slots could not be released: they are free again when their leases end");
        }
    }
}
