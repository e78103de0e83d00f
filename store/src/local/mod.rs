//! Share: when the store does not answer, every pod counts on its own, by its share of each limit.
//!
//! - [`live`]: who shares a limit, and how much of it is whose. Pure.
//! - [`known`]: how counters stood when the store was last heard; what local counting begins with.
//! - [`local`]: one counter of this process.
//! - this module: all of them.
//!
//! With k of p pods cut off from the store, no more than N(1 + k/p) are admitted in a period: N by the store, and of each
//! pod that is cut off its share. Those that know how the counter stood begin with their share of that, so that when all
//! are cut off the sum stays near N.
//!
//! # Recovery
//!
//! What was admitted here is added to the store before the first question about the key, and in the background for keys
//! that nobody asks for. It is taken, not settled: a settlement corrects only what is there, and a store that came back
//! empty has nothing; and taking stops at the limit's number, so that the next window does not pay for an outage. What
//! slid into an earlier slot meanwhile is charged to the newest one by its estimate. If the store says less than it must
//! know from before the outage, it has lost that, and the difference is taken first. Two pods that see the same loss in
//! the same instant both mend it: that denies too much until the window ends, never too little.
//!
//! # Bounds
//!
//! At most so many keys are counted; only those whose records have expired give way. Beyond that, new keys of a limit
//! share one counter with one share, and what that counted is not handed over: it belongs to no key.

mod known;
mod live;
mod local;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_limiter::Decision;
use smallvec::SmallVec;

use known::Known;
pub use live::{Replica, Replicas};
use local::Local;
pub(crate) use local::Part;

use crate::bounded_table::BoundedTable;
use crate::check::{CheckResponse, Counter, KeyHash, Records, decide};
use crate::limiter::plan::{Consistency, LimitPlan, PlannedCounter};
use crate::pending_call::PendingCall;

/// What local counting has done since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalQuotaMetrics {
    /// Checks admitted by shares.
    pub admitted: u64,
    /// Checks denied by shares.
    pub denied: u64,
    /// Counters that the store is still to be told of.
    pub pending: u64,
    /// Counters that it was told of.
    pub handed_over: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shares {
    table: Mutex<BoundedTable<Entry>>,
    known: Known,
    /// How many counters the store is to be told of; in almost all of a process's life none.
    pending: AtomicUsize,
    admitted: AtomicU64,
    denied: AtomicU64,
    handed_over: AtomicU64,
}

#[derive(Debug)]
struct Entry {
    local: Local,
    /// Many keys' counter.
    overflow: bool,
    /// It is never handed over: its limit is counted here alone.
    stays: bool,
    /// The store is being told.
    flight: Option<Arc<PendingCall>>,
}

/// What the store is to be told of one counter; whoever holds this must see to it.
#[derive(Debug)]
pub(crate) struct HandOver {
    pub(crate) id: u128,
    pub(crate) plan: Arc<LimitPlan>,
    pub(crate) key: KeyHash,
    pub(crate) parts: SmallVec<[Part; 1]>,
    pub(crate) flight: Arc<PendingCall>,
}

impl Shares {
    /// Of at most `max_keys` keys, knowing about how so many counters stood.
    pub(crate) fn new(max_keys: usize, known: usize) -> Self {
        Self {
            table: Mutex::new(BoundedTable::new(max_keys)),
            known: Known::new(known),
            pending: AtomicUsize::new(0),
            admitted: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            handed_over: AtomicU64::new(0),
        }
    }

    /// The store said this about a counter.
    pub(crate) fn heard(&self, asked: &PlannedCounter, decisions: &[Decision], at: u64) {
        self.known.heard(asked.id(), &asked.limit.spec.rates, decisions, at);
    }

    /// What is known of a counter, for an answer that was not asked of the store.
    pub(crate) fn standing(&self, asked: &PlannedCounter) -> impl Iterator<Item = Decision> {
        let stood = self.known.get(asked.id());
        asked.limit.spec.rates.iter().enumerate().map(move |(n, rate)| {
            let used = stood.and_then(|stood| stood.used.get(n).copied()).unwrap_or(0);
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

    /// Decides about all of these here, at `at` of the store's clock.
    pub(crate) fn check(&self, asked: &[&PlannedCounter], at: u64) -> CheckResponse {
        let mut table = self.lock();
        let mut ids: SmallVec<[u128; 2]> = SmallVec::new();
        let (mut counters, mut records) = (SmallVec::<[Counter; 2]>::new(), SmallVec::<[Records; 2]>::new());
        // Which of the counters is about which question: many keys may have the same one.
        let mut about: SmallVec<[usize; 2]> = SmallVec::new();
        for one in asked {
            let (id, entry) = self.entry(&mut table, one, at);
            if let Some(known) = ids.iter().position(|&known| known == id) {
                counters[known].cost = counters[known].cost.saturating_add(one.cost);
                about.push(known);
                continue;
            }
            about.push(ids.len());
            ids.push(id);
            counters.push(Counter { limit: entry.local.limit.clone(), key: entry.local.key, cost: one.cost });
            records.push(std::mem::take(&mut entry.local.counted));
        }
        let answer = decide(&counters, &mut records, at);
        for ((id, records), counter) in ids.iter().zip(records).zip(&counters) {
            if let Some(entry) = table.get_mut(*id) {
                entry.local.counted = records;
                if answer.admitted {
                    entry.local.admitted(at, counter.cost);
                }
            }
        }
        if !asked.is_empty() {
            let metric = if answer.admitted { &self.admitted } else { &self.denied };
            metric.fetch_add(1, Relaxed);
        }
        let mut decisions = SmallVec::new();
        for (one, about) in asked.iter().zip(about) {
            let before: usize = counters[..about].iter().map(|counter| counter.limit.rates.len()).sum();
            let own = answer.decisions.iter().skip(before).zip(&one.limit.spec.rates);
            // The limit is what it is; the share shows in what remains.
            decisions.extend(own.map(|(d, rate)| Decision { limit: rate.requests.get(), ..*d }));
        }
        CheckResponse { decisions, ..answer }
    }

    /// Corrects what was admitted here at `charged`; false: the store knows of it by now.
    pub(crate) fn correct(&self, asked: &PlannedCounter, charged: u64, delta: i64, at: u64) -> bool {
        match self.lock().get_mut(asked.counter_id()) {
            Some(entry) => {
                entry.local.correct(charged, delta, at);
                true
            }
            None => false,
        }
    }

    /// How many counters the store is to be told of.
    pub(crate) fn pending(&self) -> usize {
        self.pending.load(Relaxed)
    }

    /// Some of them, and all if they are few.
    pub(crate) fn some_pending(&self, most: usize) -> Vec<u128> {
        let mut table = self.lock();
        let waiting = |entry: &Entry| !entry.stays && entry.flight.is_none();
        table.iter_mut().filter(|(_, entry)| waiting(entry)).map(|(id, _)| id).take(most).collect()
    }

    /// Begins to hand a counter over, unless that is under way: whoever is given a [`HandOver`] must do it. `None`: there
    /// is nothing to tell.
    pub(crate) fn hand_over(&self, id: u128, at: u64) -> Option<(Arc<PendingCall>, Option<HandOver>)> {
        let mut table = self.lock();
        let entry = table.get_mut(id).filter(|entry| !entry.stays)?;
        if let Some(flight) = &entry.flight {
            return Some((flight.clone(), None));
        }
        let parts = entry.local.tell(at);
        if parts.is_empty() || entry.overflow {
            table.remove(id);
            self.pending.fetch_sub(1, Relaxed);
            return None;
        }
        let flight = Arc::new(PendingCall::default());
        entry.flight = Some(flight.clone());
        let (plan, key) = (entry.local.plan.clone(), entry.local.key);
        Some((flight.clone(), Some(HandOver { id, plan, key, parts, flight })))
    }

    /// The store was told of these rates of it.
    pub(crate) fn handed_over(&self, hand_over: &HandOver, told: &[usize], at: u64) {
        let mut table = self.lock();
        let Some(entry) = table.get_mut(hand_over.id) else { return };
        entry.flight = None;
        let untold = hand_over.parts.iter().filter(|part| !told.contains(&part.rate));
        let all = untold.fold(true, |_, part| {
            entry.local.untold(*part, at);
            false
        });
        if all {
            self.handed_over.fetch_add(1, Relaxed);
            if entry.local.is_told() {
                table.remove(hand_over.id);
                self.pending.fetch_sub(1, Relaxed);
            }
        }
    }

    pub(crate) fn metrics(&self) -> LocalQuotaMetrics {
        LocalQuotaMetrics {
            admitted: self.admitted.load(Relaxed),
            denied: self.denied.load(Relaxed),
            pending: self.pending() as u64,
            handed_over: self.handed_over.load(Relaxed),
        }
    }

    /// The counter of a question, made if need be.
    fn entry<'a>(
        &self,
        table: &'a mut BoundedTable<Entry>,
        asked: &PlannedCounter,
        at: u64,
    ) -> (u128, &'a mut Entry) {
        let plan = &asked.limit;
        let lives = plan.replicas.largest(&plan.spec.rates);
        let stays = plan.consistency == Consistency::Local;
        let (mut id, mut key, mut overflow) = (asked.counter_id(), asked.key, false);
        if table.get_mut(id).is_none() {
            let over = |entry: &Entry| entry.flight.is_none() && entry.local.is_over(at);
            let (room, gone) = table.make_room(over);
            if gone.is_some_and(|gone| !gone.stays) {
                self.pending.fetch_sub(1, Relaxed);
            }
            if !room {
                let none = PlannedCounter { key: KeyHash(0), ..asked.clone() };
                (id, key, overflow) = (none.counter_id(), none.key, true);
            }
        }
        let entry = table.get_or_insert(id, || {
            if !stays {
                self.pending.fetch_add(1, Relaxed);
            }
            let stood = if stays || overflow { None } else { self.known.get(asked.id()) };
            Entry { local: Local::new(plan, key, &lives, stood), overflow, stays, flight: None }
        });
        entry.local.refresh(plan, &lives);
        (id, entry)
    }

    fn lock(&self) -> MutexGuard<'_, BoundedTable<Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
