//! The question and the answer, and the reference definition of how one becomes the other: [`decide`]. The memory
//! store runs it; the Redis script repeats it and is tested against it.

use std::sync::Arc;

use sluice_limiter::{Decision, Rate, Record};
use smallvec::SmallVec;

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
}

impl LimitSpec {
    /// A limit of this scope with these rates.
    #[must_use]
    pub fn new(scope: impl Into<String>, rates: Vec<Rate>) -> Self {
        Self { scope: scope.into(), rates }
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
pub type Check = SmallVec<[Counter; 2]>;

/// The answer to a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Whether every rate of every counter has room. Only then was anything charged.
    pub admitted: bool,
    /// One decision for each rate of each counter, in the check's order.
    pub decisions: SmallVec<[Decision; 2]>,
}

/// The records of one counter, one for each of its rates, in the order of the rates.
pub type Records = SmallVec<[Record; 1]>;

/// Decides a check at `now`. `stored` holds what is known of each counter and is replaced by what is known
/// afterwards: charged everywhere if admitted, otherwise only rolled to now.
pub fn decide(check: &[Counter], stored: &mut [Records], now: u64) -> Answer {
    let mut rooms: SmallVec<[(u64, bool); 4]> = SmallVec::new();
    for (counter, records) in check.iter().zip(stored.iter_mut()) {
        let before = std::mem::take(records);
        for rate in &counter.limit.rates {
            let found = before.iter().find(|record| record.tag == rate.tag()).copied();
            let (record, at) = rate.roll(found, now);
            rooms.push((at, rate.has_room(&record, at, counter.cost)));
            records.push(record);
        }
    }
    let admitted = rooms.iter().all(|&(_, room)| room);
    let mut rooms = rooms.into_iter();
    let mut decisions = SmallVec::new();
    for (counter, records) in check.iter().zip(stored.iter_mut()) {
        for (rate, record) in counter.limit.rates.iter().zip(records.iter_mut()) {
            if let Some((at, room)) = rooms.next() {
                if admitted {
                    *record = rate.charge(*record, counter.cost);
                }
                decisions.push(rate.decision(record, at, counter.cost, room));
            }
        }
    }
    Answer { admitted, decisions }
}
