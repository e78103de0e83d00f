//! The question and the answer, and the reference definition of how one becomes the other: [`decide`]. The memory
//! store runs it; the Redis script repeats it and is tested against it.

use std::sync::Arc;

use sluice_limiter::{Decision, Rate, Record};
use smallvec::SmallVec;

use crate::memory::Prepared;

/// How many counters one check may name.
pub const MAX_COUNTERS: usize = 32;

/// How many rates one limit may have.
pub const MAX_RATES: usize = 8;

/// A client's key, hashed with the store's secret to 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u128);

/// What a store needs to know about a limit, made once a snapshot.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct LimitSpec {
    /// `NAMESPACE/POLICY/LIMIT`: names the limit's counters among all of the store's.
    pub scope: String,
    /// The rates; all must hold. At least one, at most [`MAX_RATES`], no two with the same tag.
    pub rates: Vec<Rate>,
    /// What the memory store needs of them.
    pub(crate) prepared: Prepared,
}

impl LimitSpec {
    /// A limit of this scope with these rates.
    #[must_use]
    pub fn new(scope: impl Into<String>, rates: Vec<Rate>) -> Self {
        let scope = scope.into();
        let prepared = Prepared::new(&scope, &rates);
        Self { scope, rates, prepared }
    }

    /// Whether several who ask the same at the same instant can be decided at once, knowing only how many.
    #[must_use]
    pub fn is_mergeable(&self) -> bool {
        self.rates.iter().all(Rate::is_mergeable)
    }

    /// Whether a denied check changes a counter of this limit.
    #[must_use]
    pub fn counts_denied(&self) -> bool {
        self.rates.iter().any(Rate::counts_denied)
    }
}

/// One counter of a check.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Counter {
    /// The limit.
    pub limit: Arc<LimitSpec>,
    /// The key.
    pub key: KeyHash,
    /// How much this request costs; 0 asks without taking.
    pub cost: u64,
}

/// All counters of one request; no counter twice.
pub type CheckRequest = SmallVec<[Counter; 2]>;

/// The answer to a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResponse {
    /// Whether every rate of every counter has room. Only then was anything charged.
    pub admitted: bool,
    /// When, by the store's clock, in microseconds since the Unix epoch: names what was charged in a [`Settlement`].
    pub at: u64,
    /// One decision for each rate of each counter, in the check's order.
    pub decisions: SmallVec<[Decision; 2]>,
}

impl CheckResponse {
    /// The answer to a check of one counter with one rate.
    #[inline]
    pub(crate) fn of_one(decision: Decision, at: u64) -> Self {
        // Cheaper than to push it.
        let decisions = SmallVec::from_slice(&[decision]);
        Self { admitted: decision.admitted, at, decisions }
    }
}

/// What was taken of a counter at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// How many times the cost, at most as many as were wanted.
    pub granted: u64,
    /// How the counter stands afterwards, as the next one who asks the same would be told.
    pub answer: CheckResponse,
}

/// The correction of a charge: the request cost more, or less, than was taken. Made of a charge once and given away with
/// it, so that no charge is corrected twice.
#[derive(Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The limit that was charged.
    pub limit: Arc<LimitSpec>,
    /// The key that was charged.
    pub key: KeyHash,
    /// [`CheckResponse::at`] of the check that charged it.
    pub charged: u64,
    /// More, or less if it is negative. A refund never goes below nothing used.
    pub delta: i64,
}

/// The records of one counter, one for each of its rates, in the order of the rates.
pub type Records = SmallVec<[Record; 1]>;

/// Decides a check at `now`. `stored` holds what is known of each counter and is replaced by what is known
/// afterwards: charged everywhere if admitted, otherwise only rolled to now, and with the denial where denials count.
pub fn decide(check: &[Counter], stored: &mut [Records], now: u64) -> CheckResponse {
    let mut rooms: SmallVec<[(u64, bool); 4]> = SmallVec::new();
    for (counter, records) in check.iter().zip(stored.iter_mut()) {
        let before = std::mem::take(records);
        for rate in &counter.limit.rates {
            let found = before.iter().find(|record| record.tag == rate.tag()).cloned();
            let found = found.or_else(|| rate.seeded(&before, now));
            let (record, at) = rate.roll(found, now + rate.phase(counter.key.0));
            rooms.push((at, rate.has_room(&record, at, counter.cost)));
            records.push(record);
        }
    }
    let admitted = rooms.iter().all(|&(_, room)| room);
    let mut rooms = rooms.into_iter();
    let mut decisions = SmallVec::new();
    for (counter, records) in check.iter().zip(stored.iter_mut()) {
        for (rate, stored) in counter.limit.rates.iter().zip(records.iter_mut()) {
            if let Some((at, room)) = rooms.next() {
                let record = std::mem::replace(stored, Record::empty(rate.tag(), 0));
                *stored = if admitted {
                    rate.charge(record, at, counter.cost)
                } else {
                    rate.charge_denied(record, at, counter.cost)
                };
                // A denial that counts may take the room that there was.
                let room =
                    room && (admitted || !rate.counts_denied() || rate.has_room(stored, at, counter.cost));
                decisions.push(rate.decision(stored, at, counter.cost, room, admitted));
            }
        }
    }
    CheckResponse { admitted, at: now, decisions }
}

/// Whether a record was rebased after a wrong clock. Then it is stored even if the check was denied: or each denial would
/// rebase it again, until the clock has caught up.
#[must_use]
pub fn rebased(before: &Record, after: &Record) -> bool {
    let empty = after.tag.has_view() && after.tail.is_empty();
    before.tag == after.tag && after.window < before.window && !empty
}

/// Corrects a counter's records at `now`, those of the limit's rates; what is not there is not made.
pub fn settle(settlement: &Settlement, stored: &mut [Record], now: u64) {
    for rate in &settlement.limit.rates {
        let phase = rate.phase(settlement.key.0);
        if let Some(stored) = stored.iter_mut().find(|record| record.tag == rate.tag()) {
            let record = std::mem::replace(stored, Record::empty(rate.tag(), 0));
            let (record, at) = rate.roll(Some(record), now + phase);
            *stored = rate.settle(record, at, settlement.charged + phase, settlement.delta);
        }
    }
}
