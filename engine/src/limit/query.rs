//! A query: what a request, descriptors or named limits ask of which counters. Whoever asks builds one, and [`decide`] answers it.
//!
//! [`decide`]: crate::limit::decide::decide

use std::time::Duration;

use sluice_config::prepared::Refusal;
use sluice_limiter::{Holder, Period};
use sluice_store::{MAX_COUNTERS, PlannedCounter};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::limit::adaptive::Origin;
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;

/// The use of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Intent {
    /// The cost is charged if there is room.
    Consume,
    /// The cost is charged if there is room, and can be settled for this time.
    Reserve(Period),
    /// The counter is read, and counts nothing.
    Peek,
    /// The cost was used: it is charged whether or not there is room.
    Charge,
    /// The cost is given back.
    GiveBack,
    /// A reservation is settled: the cost is what was used. The one that an id names, or else the oldest.
    Settle(Option<NamedReservation>),
}

impl Intent {
    /// Reports whether there must be room, so that the counter is asked for together with others, or alone if its limit denies nothing.
    pub(crate) fn needs_room(self) -> bool {
        match self {
            Self::Consume | Self::Reserve(_) => true,
            Self::Peek | Self::Charge | Self::GiveBack | Self::Settle(_) => false,
        }
    }
}

/// The reservation in a counter, as an id names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NamedReservation {
    pub(crate) number: Holder,
    /// Index of the rates that it was charged by.
    pub(crate) rates: u16,
    /// Whether the charge went to the counter that new keys share.
    pub(crate) overflowed: bool,
}

/// How much of a request is seen by whoever asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View {
    /// The request and its response.
    Exchange,
    /// The head of the request alone.
    Head,
}

/// Counters that are checked by one call of a store: all of them are charged, or none.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    /// Position of the store in the snapshot.
    store: usize,
    pub(crate) limits: SmallVec<[LimitIndex; 2]>,
    /// A counter for each of the limits, and then the ledgers of what is reserved.
    pub(crate) counters: SmallVec<[PlannedCounter; 2]>,
    /// The number under which something is reserved, and in which counters, in the order of their ledgers.
    pub(crate) reserved: Option<Box<(Holder, Vec<usize>)>>,
    /// Whether any of the counters holds slots of this process.
    pub(crate) has_slots: bool,
}

/// The parts of a query. Nearly all have one.
pub(crate) type Parts = SmallVec<[Part; 1]>;

/// A counter that is asked alone, because the others count whatever it answers.
#[derive(Debug)]
pub(crate) struct Beside {
    pub(crate) part: Part,
    pub(crate) intent: Intent,
    /// Whether the request is denied without room. It is not, if the limit, its rule or the question only observes.
    pub(crate) denies: bool,
}

/// A query.
#[derive(Debug, Default)]
pub(crate) struct Query {
    /// The counters that are asked together: all of them are charged, or none. Several stores are asked at the same time.
    pub(crate) parts: Parts,
    /// The counters beside them: limits that deny nothing, and those that are charged, given back, settled or read in any case.
    pub(crate) beside: Vec<Beside>,
    /// Limits that only mark or observe, and would deny the request without counting it.
    pub(crate) beside_refused: SmallVec<[LimitIndex; 1]>,
    /// Adaptive limits, enforced or in Shadow, with the origin of the request.
    pub(crate) adaptive: SmallVec<[(LimitIndex, Origin); 1]>,
    /// The first enforced limit that denies the request without counting it, and why.
    pub(crate) refused: Option<(LimitIndex, Refusal)>,
    /// A limit that denies and that whoever asks cannot decide, because it needs more than the head of the request.
    pub(crate) undecidable: Option<LimitIndex>,
    /// Whether more limits are met than a query has. It is refused: a client must not choose which limits are left out.
    pub(crate) meets_too_many: bool,
    /// Whether the request may wait in the queue of a limit.
    pub(crate) has_queue: bool,
    /// Whether whoever asks forwards the request: it holds it back for as long as its limits say, and sees its outcome.
    pub(crate) is_forwarded: bool,
    /// Whether the outcome corrects any charge, or somebody settles it.
    pub(crate) settles: bool,
    /// Whether the body is counted as it passes, because its length is a part of a cost and is not known.
    pub(crate) counts_upload: bool,
    /// Longest time for which slots and permits are held when the client has left.
    pub(crate) abandoned_for: Duration,
    /// The time until which a store may answer, if the caller has one of its own.
    pub(crate) deadline: Option<Instant>,
}

impl Part {
    fn new(store: usize) -> Self {
        Self { store, limits: SmallVec::new(), counters: SmallVec::new(), reserved: None, has_slots: false }
    }

    /// Creates the part of one counter, with its ledger if something is reserved under a number.
    pub(crate) fn of_one(
        store: usize,
        limit: LimitIndex,
        counter: PlannedCounter,
        reserved: Option<(Holder, Period)>,
    ) -> Self {
        let mut part = Self::new(store);
        part.push(limit, counter);
        if let Some(reserved) = reserved {
            part.add_ledgers(&[(0, reserved)]);
        }
        part
    }

    fn push(&mut self, limit: LimitIndex, counter: PlannedCounter) {
        self.limits.push(limit);
        self.counters.push(counter);
    }

    /// Adds the ledgers of what is reserved, when all counters are there.
    fn add_ledgers(&mut self, reserved: &[(usize, (Holder, Period))]) {
        for &(n, (number, lasts)) in reserved {
            let PlannedCounter { limit, key, cost } = &self.counters[n];
            let ledger = PlannedCounter { limit: limit.ledger(number, lasts).into(), key: *key, cost: *cost };
            self.counters.push(ledger);
            self.reserved.get_or_insert_with(|| (number, Vec::new()).into()).1.push(n);
        }
    }

    /// Iterates over the limits with their counters.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LimitIndex, &PlannedCounter)> {
        self.limits.iter().copied().zip(&self.counters)
    }

    /// Returns a part with the same counters that charges nothing, of the limits that pass.
    pub(crate) fn read_only(&self, passes: impl Fn(LimitIndex) -> bool) -> Option<Self> {
        let mut part = Self::new(self.store);
        for (limit, counter) in self.iter().filter(|(limit, _)| passes(*limit)) {
            part.push(limit, PlannedCounter { cost: 0, ..counter.clone() });
        }
        (!part.limits.is_empty()).then_some(part)
    }
}

impl Query {
    /// Returns the number of counters that are asked for together.
    pub(crate) fn together(&self) -> usize {
        self.parts.iter().map(|part| part.limits.len()).sum()
    }

    /// Returns the number of all counters.
    pub(crate) fn counters(&self) -> usize {
        self.together() + self.beside.len()
    }

    /// Adds the counter of a request's limit, which is asked for together with the others.
    #[inline]
    pub(crate) fn ask(&mut self, snapshot: &Snapshot, limit: LimitIndex, counter: PlannedCounter) {
        if self.together() == MAX_COUNTERS {
            self.meets_too_many = true;
            return;
        }
        let store = snapshot.store(limit);
        let at = match self.parts.iter().position(|part| part.store == store) {
            Some(at) => at,
            None => {
                self.parts.push(Part::new(store));
                self.parts.len() - 1
            }
        };
        let active = snapshot.limit(limit);
        self.parts[at].has_slots |= active.concurrency.is_some();
        self.has_queue |= active.queue.is_some();
        self.parts[at].push(limit, counter);
    }

    /// Adds a part of its own, with the ledgers of what is reserved in which of its counters.
    pub(crate) fn ask_part(
        &mut self,
        store: usize,
        counters: impl Iterator<Item = (LimitIndex, PlannedCounter)>,
        reserved: &[(usize, (Holder, Period))],
    ) {
        let mut part = Part::new(store);
        counters.for_each(|(limit, counter)| part.push(limit, counter));
        part.add_ledgers(reserved);
        self.settles |= !reserved.is_empty();
        self.parts.push(part);
    }

    /// Adds a counter of a limit that denies nothing.
    pub(crate) fn observe(&mut self, snapshot: &Snapshot, limit: LimitIndex, counter: PlannedCounter) {
        let mut part = Part::of_one(snapshot.store(limit), limit, counter, None);
        part.has_slots = snapshot.limit(limit).concurrency.is_some();
        self.beside.push(Beside { part, intent: Intent::Consume, denies: false });
    }

    /// Returns this query with nothing but what is read of some of its limits.
    pub(crate) fn read_only(&self, passes: impl Fn(LimitIndex) -> bool) -> Parts {
        self.parts.iter().filter_map(|part| part.read_only(&passes)).collect()
    }
}
