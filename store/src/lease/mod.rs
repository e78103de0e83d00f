//! Leases: a holder takes quota in blocks, and decides on its own until a block is used up. A grant counts in the store
//! at once, so that all holders together never pass the limit; it ends before its slot does, is renewed before it is
//! used up, and what is not used goes back.
//!
//! In the order in which a request meets them:
//! - [`terms`]: which limits can be leased, and until when a block may be used.
//! - [`holding`]: what this holder has of one key, and all decisions about it. Pure.
//! - [`pace`]: what the size of a block is made of. Pure.
//! - this module: the holdings of all keys, bounded in number, and when to look at each again. A key beyond the bound is
//!   asked for with a call a request.
//!
//! A holder that dies takes its blocks with it until their slots end: less is admitted, never more.

mod holding;
mod pace;
#[cfg(test)]
mod simulation;
mod terms;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_limiter::Decision;
use tokio::sync::Notify;

pub(crate) use holding::Decisions;
use holding::{Holding, Return, Step};
pub(crate) use terms::{Terms, used};

use crate::bounded_table::BoundedTable;
use crate::check::{CheckResponse, Counter, Grant, KeyHash, Settlement};
use crate::limiter::plan::{LimitPlan, PlannedCounter};
use crate::pending_call::PendingCall;

const SHARDS: usize = 16;

/// Takings come in so many units at most; a larger block is made of larger units.
const UNITS: u64 = 2048;

/// A key that nobody asked for during this time, in microseconds, gives way to another one.
const QUIET: u64 = 1_000_000;

/// What leases have done since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseMetrics {
    /// Requests about leased limits: each counter of each request.
    pub requests: u64,
    /// Of those, admitted from a block.
    pub admitted_locally: u64,
    /// Of those, denied without asking.
    pub denied_locally: u64,
    /// Calls that took a block.
    pub takes: u64,
    /// Requests that were asked for with a call of their own.
    pub single_calls: u64,
    /// Calls that gave something back.
    pub returns: u64,
    /// Quota taken in blocks.
    pub taken: u64,
    /// Of that, given back.
    pub returned: u64,
    /// Of that, ended unused.
    pub lost: u64,
    /// Blocks that are being taken now.
    pub under_way: u64,
    /// Keys held.
    pub keys: u64,
}

impl LeaseMetrics {
    /// Questions to the store for each request about a leased limit.
    #[must_use]
    pub fn calls_a_request(&self) -> f64 {
        (self.takes + self.single_calls + self.returns) as f64 / self.requests.max(1) as f64
    }
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    admitted: AtomicU64,
    denied: AtomicU64,
    takes: AtomicU64,
    single_calls: AtomicU64,
    returns: AtomicU64,
    taken: AtomicU64,
    returned: AtomicU64,
    lost: AtomicU64,
}

/// The holdings of this process.
#[derive(Debug)]
pub(crate) struct Leases {
    shards: [Mutex<BoundedTable<Entry>>; SHARDS],
    /// When which holding is to be looked at; each is in here at most once.
    reviews: Mutex<BinaryHeap<Reverse<(u64, u128)>>>,
    /// Rung when there is an earlier one.
    earlier: Notify,
    counters: Counters,
}

#[derive(Debug)]
struct Entry {
    plan: Arc<LimitPlan>,
    key: KeyHash,
    holding: Holding,
    flight: Option<Arc<PendingCall>>,
    reviewed: bool,
    asked_at: u64,
}

/// What becomes of a request's counter.
#[derive(Debug)]
pub(crate) enum Reserved {
    /// It was taken from the block.
    Held(Held),
    /// There is nothing, as far as is known.
    Denied(Decisions),
    /// Wait for this, and ask again.
    Wait(Arc<PendingCall>),
    /// Ask the store.
    Call,
}

/// What was taken from a block.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) decisions: Decisions,
    /// The instant of the store's clock that names the charge.
    pub(crate) charged: u64,
    slot: u64,
}

/// A block to be taken from the store; whoever holds this must see to it.
#[derive(Debug)]
pub(crate) struct Taking {
    pub(crate) id: u128,
    pub(crate) counter: Counter,
    /// How many times the counter's cost.
    pub(crate) times: u64,
    pub(crate) flight: Arc<PendingCall>,
}

impl Leases {
    /// Of at most about `max_keys` keys.
    pub(crate) fn new(max_keys: usize) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::new(BoundedTable::new(max_keys.div_ceil(SHARDS)))),
            reviews: Mutex::default(),
            earlier: Notify::new(),
            counters: Counters::default(),
        }
    }

    /// Asks for a request's counter; `waited`: again. Any taking that comes with the answer has to be started.
    /// `holders`: how many there are supposed to be, when nothing else is known.
    pub(crate) fn reserve(
        &self,
        asked: &PlannedCounter,
        terms: &Terms,
        now: u64,
        waited: bool,
        holders: u64,
    ) -> (Reserved, Option<Taking>) {
        let id = asked.id();
        let mut shard = self.lock(id);
        if !waited {
            self.counters.requests.fetch_add(1, Relaxed);
        }
        let entry = shard.entry(
            id,
            |entry| entry.holding.is_idle() && !entry.reviewed && entry.asked_at + QUIET < now,
            || Entry {
                plan: asked.limit.clone(),
                key: asked.key,
                holding: Holding::new(now, holders),
                flight: None,
                reviewed: false,
                asked_at: now,
            },
        );
        let Some(entry) = entry else { return (Reserved::Call, None) };
        entry.asked_at = now;
        let spec = &entry.plan.spec;
        let step = if waited {
            entry.holding.again(spec, terms, now, asked.cost)
        } else {
            entry.holding.ask(spec, terms, now, asked.cost)
        };
        match step {
            Step::Admit(more) => {
                self.counters.admitted.fetch_add(1, Relaxed);
                let held = Held {
                    decisions: entry.holding.decisions(spec, now, true),
                    charged: entry.holding.charged(),
                    slot: entry.holding.slot(),
                };
                (Reserved::Held(held), (more > 0).then(|| entry.taking(id, more)))
            }
            Step::Deny => {
                self.counters.denied.fetch_add(1, Relaxed);
                (Reserved::Denied(entry.holding.decisions(spec, now, false)), None)
            }
            Step::Take(wanted) => {
                let taking = entry.taking(id, wanted);
                (Reserved::Wait(taking.flight.clone()), Some(taking))
            }
            Step::Wait => match &entry.flight {
                Some(flight) => (Reserved::Wait(flight.clone()), None),
                None => (Reserved::Call, None),
            },
            Step::Call => (Reserved::Call, None),
        }
    }

    /// Gives back to the block what a request took that was not admitted after all.
    pub(crate) fn put_back(&self, asked: &PlannedCounter, held: &Held, now: u64) {
        self.counters.admitted.fetch_sub(1, Relaxed);
        if let Some(entry) = self.lock(asked.id()).get_mut(asked.id()) {
            entry.holding.put_back(now, asked.cost, held.slot);
        }
    }

    /// What came of a taking that was sent at `sent`; returns whose it was.
    pub(crate) fn took(
        &self,
        taking: &Taking,
        granted: &Grant,
        sent: u64,
        now: u64,
    ) -> Option<PlannedCounter> {
        let mut shard = self.lock(taking.id);
        let entry = shard.get_mut(taking.id).filter(|entry| entry.waits_for(taking))?;
        entry.flight = None;
        self.counters.takes.fetch_add(1, Relaxed);
        let unit = taking.counter.cost;
        let (wanted, got) = (taking.times * unit, granted.granted * unit);
        self.counters.taken.fetch_add(got, Relaxed);
        let plan = entry.plan.clone();
        let terms = plan.terms.as_ref()?;
        let Grant { answer, .. } = granted;
        entry.holding.took(&plan.spec, entry.key, terms, wanted, got, answer, sent, now);
        self.note_lost(entry);
        let asked = PlannedCounter { limit: plan, key: entry.key, cost: 0 };
        if entry.holding.left() > 0 && !std::mem::replace(&mut entry.reviewed, true) {
            drop(shard);
            self.schedule(now, taking.id);
        }
        Some(asked)
    }

    /// Nothing came of a taking, or nothing is known of it; or it has ended already.
    pub(crate) fn not_taken(&self, taking: &Taking) {
        let mut shard = self.lock(taking.id);
        if let Some(entry) = shard.get_mut(taking.id).filter(|entry| entry.waits_for(taking)) {
            entry.flight = None;
            entry.holding.failed();
        }
    }

    /// What came of a call of a request's own.
    pub(crate) fn called(
        &self,
        asked: &PlannedCounter,
        terms: &Terms,
        answer: &CheckResponse,
        own: &[Decision],
        now: u64,
    ) {
        self.counters.single_calls.fetch_add(1, Relaxed);
        if let Some(entry) = self.lock(asked.id()).get_mut(asked.id()) {
            entry.holding.called(&asked.limit.spec, terms, asked.cost, answer, own, now);
        }
    }

    /// What is to be given back now, and when to look again.
    pub(crate) fn review(&self, now: u64) -> (Vec<Settlement>, Option<u64>) {
        let mut back = Vec::new();
        loop {
            let id = {
                let mut reviews = self.reviews.lock().unwrap_or_else(PoisonError::into_inner);
                match reviews.peek() {
                    Some(&Reverse((at, _))) if at > now => return (back, Some(at)),
                    None => return (back, None),
                    Some(_) => reviews.pop().map(|Reverse((_, id))| id),
                }
            };
            let Some(id) = id else { continue };
            let mut shard = self.lock(id);
            let Some(entry) = shard.get_mut(id) else { continue };
            let Some(terms) = &entry.plan.terms else { continue };
            let (settlement, next) = entry.holding.review(terms, now);
            back.extend(settlement.map(|settlement| self.settlement(entry, settlement)));
            self.note_lost(entry);
            entry.reviewed = next.is_some();
            drop(shard);
            if let Some(next) = next {
                // No oftener than the clock can tell apart.
                self.schedule(next.max(now + 1_000), id);
            }
        }
    }

    /// Everything that is held, to be given back. What is being taken must have come before.
    pub(crate) fn return_all(&self, now: u64) -> Vec<Settlement> {
        let mut back = Vec::new();
        self.each(|shard| {
            for (_, entry) in shard.iter_mut() {
                let settlement = entry.holding.return_all(now);
                back.extend(settlement.map(|settlement| self.settlement(entry, settlement)));
            }
        });
        back
    }

    /// What is being taken.
    pub(crate) fn flights(&self) -> Vec<Arc<PendingCall>> {
        let mut flights = Vec::new();
        self.each(|shard| flights.extend(shard.iter_mut().filter_map(|(_, entry)| entry.flight.clone())));
        flights
    }

    /// Waits until there may be an earlier review than [`Leases::review`] said.
    pub(crate) async fn earlier(&self) {
        self.earlier.notified().await;
    }

    pub(crate) fn metrics(&self) -> LeaseMetrics {
        let c = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        let (mut keys, mut under_way) = (0, 0);
        self.each(|shard| {
            keys += shard.len() as u64;
            under_way += shard.iter_mut().filter(|(_, entry)| entry.flight.is_some()).count() as u64;
        });
        LeaseMetrics {
            requests: get(&c.requests),
            admitted_locally: get(&c.admitted),
            denied_locally: get(&c.denied),
            takes: get(&c.takes),
            single_calls: get(&c.single_calls),
            returns: get(&c.returns),
            taken: get(&c.taken),
            returned: get(&c.returned),
            lost: get(&c.lost),
            under_way,
            keys,
        }
    }

    fn settlement(&self, entry: &Entry, back: Return) -> Settlement {
        self.counters.returns.fetch_add(1, Relaxed);
        self.counters.returned.fetch_add(back.amount, Relaxed);
        Settlement {
            limit: entry.plan.spec.clone(),
            key: entry.key,
            charged: back.charged,
            delta: -i64::try_from(back.amount).unwrap_or(i64::MAX),
        }
    }

    fn note_lost(&self, entry: &mut Entry) {
        self.counters.lost.fetch_add(std::mem::take(&mut entry.holding.lost), Relaxed);
    }

    fn schedule(&self, at: u64, id: u128) {
        let mut reviews = self.reviews.lock().unwrap_or_else(PoisonError::into_inner);
        let first = reviews.peek().is_none_or(|&Reverse((first, _))| at < first);
        reviews.push(Reverse((at, id)));
        if first {
            self.earlier.notify_one();
        }
    }

    fn each(&self, mut look: impl FnMut(&mut BoundedTable<Entry>)) {
        for shard in &self.shards {
            look(&mut shard.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn lock(&self, id: u128) -> MutexGuard<'_, BoundedTable<Entry>> {
        // A holding is consistent between any two statements that can panic.
        self.shards[(id >> 124) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn waits_for(&self, taking: &Taking) -> bool {
        self.flight.as_ref().is_some_and(|flight| Arc::ptr_eq(flight, &taking.flight))
    }

    fn taking(&mut self, id: u128, wanted: u64) -> Taking {
        let flight = Arc::new(PendingCall::default());
        self.flight = Some(flight.clone());
        let unit = wanted.div_ceil(UNITS).max(1);
        let counter = Counter { limit: self.plan.spec.clone(), key: self.key, cost: unit };
        Taking { id, counter, times: (wanted / unit).max(1), flight }
    }
}
