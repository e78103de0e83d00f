//! The limits, the clock and the stored values.

use std::collections::HashMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use sluice_limiter::{KeyRegistry, MAX_PERIOD_MS, Record};
use sluice_store::{Counter, KeyHash, LimitSpec, Lookup, Settlement, Taking};

use super::keys::CallState;

/// The year 2096 in milliseconds. It lies in the future, so that Redis expires nothing, and it is constant,
/// so that a seed repeats a run.
pub(super) const EARLIEST: u64 = 4_000_000_000_000;
pub(super) const DAY: u64 = 86_400_000;
/// The algorithm of most of the rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Focus {
    TwoWindows,
    SubWindows,
    Guaranteed,
    FixedClock,
    FixedFirstRequest,
    FixedSpread,
    Log,
    TokenBucket,
    Gcra,
    LeakyBucket,
    WarmUp,
    Soft,
    Concurrency,
    /// Reservations, which are taken in part of the operations.
    Reservations,
    /// Limits that block clients which they deny too often.
    Block,
    /// Plain windows, mostly with a cost of 1: the short forms of the script.
    Everyday,
    /// Plain windows, each check with a counter that all checks of the batch share.
    Shared,
    /// Limits of one plain window: the checks of the plain script.
    Plain,
    /// Many clients of one limit of several plain windows, with values of the same layout: the short form of
    /// the script for runs.
    Runs,
    /// Any algorithm, with stored values that are mostly damaged.
    Damaged,
    /// Sliding windows with numbers whose products exceed 2^53.
    Huge,
    /// Plain windows with large limits and short periods, and counts about to take another byte.
    Widths,
    /// Logs and concurrency limits, some with values as large as they may be.
    Large,
    /// Mostly plain windows, of limits with few keys.
    Keys,
}

pub(crate) const ALL: [Focus; 24] = [
    Focus::TwoWindows,
    Focus::SubWindows,
    Focus::Guaranteed,
    Focus::FixedClock,
    Focus::FixedFirstRequest,
    Focus::FixedSpread,
    Focus::Log,
    Focus::TokenBucket,
    Focus::Gcra,
    Focus::LeakyBucket,
    Focus::WarmUp,
    Focus::Soft,
    Focus::Concurrency,
    Focus::Everyday,
    Focus::Shared,
    Focus::Plain,
    Focus::Runs,
    Focus::Damaged,
    Focus::Huge,
    Focus::Widths,
    Focus::Large,
    Focus::Keys,
    Focus::Block,
    Focus::Reservations,
];
/// Number of those whose rates other limits may have too.
pub(super) const COMMON: usize = ALL.len() - 2;

/// Number of clients in a batch on a single limit.
pub(super) const CROWD: u128 = 20;

/// A value that Redis must hold.
pub(crate) enum Stored {
    Records(Vec<Record>),
    /// Bytes that are not records.
    Garbage(Vec<u8>),
    /// A list.
    List,
    /// A registry of keys.
    Registry(KeyRegistry),
}

/// The limits, the clock and the stored values.
pub(crate) struct World {
    pub(crate) rng: StdRng,
    /// Each limit and its edits.
    pub(super) limits: Vec<Vec<Arc<LimitSpec>>>,
    /// The only limit of this batch, if there is only one.
    pub(super) one: Option<Arc<LimitSpec>>,
    /// The shared counter of this batch, if there is one.
    pub(super) shared: Option<Counter>,
    pub(crate) stored: HashMap<String, Stored>,
    /// Time in microseconds.
    pub(crate) now: u64,
    /// Whether GET fails in this batch.
    pub(crate) get_fails: bool,
    pub(super) focus: Focus,
    /// Everything that the current call knows about keys.
    pub(crate) call: CallState,
    /// Whether the general script decides now, by overflow counters too.
    pub(crate) is_general: bool,
    /// Names of the values that the batch wrote.
    pub(super) written: Vec<String>,
    /// Numbers of compared checks, to prove that the run is not vacuous.
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
}

#[derive(Debug)]
pub(crate) enum BatchEntry {
    Check {
        counters: Vec<Counter>,
        callers: u64,
    },
    Settle(Settlement),
    /// A charge that is made whether or not there is room.
    Charge(Counter),
    /// A reset.
    Reset(Arc<LimitSpec>, KeyHash),
    /// A look at a reservation.
    Find(Lookup),
    /// The settlement of a reservation, by a settlement or by a charge.
    Take(Taking, Option<Counter>),
}

impl BatchEntry {
    /// Returns the names of the counters that the entry reads in any case.
    pub(crate) fn names_in_any_case(&self) -> Vec<String> {
        let mut names = self.names();
        if let Self::Take(..) = self {
            names.truncate(1);
        }
        names
    }

    /// Returns the names of all counters that the entry may change.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Check { counters, .. } => {
                counters.iter().map(|counter| name(&counter.limit, counter.key)).collect()
            }
            Self::Settle(settlement) => vec![name(&settlement.limit, settlement.key)],
            Self::Charge(counter) => vec![name(&counter.limit, counter.key)],
            Self::Reset(limit, key) => vec![name(limit, *key)],
            Self::Find(lookup) => vec![name(&lookup.ledger, lookup.key)],
            Self::Take(Taking { ledger, correction, .. }, _) => {
                vec![name(ledger, correction.key), name(&correction.limit, correction.key)]
            }
        }
    }
}

impl World {
    pub(crate) fn new(seed: u64, focus: Focus) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let (limits, stored, written) = (vec![], HashMap::new(), vec![]);
        Self {
            rng,
            limits,
            one: None,
            shared: None,
            stored,
            now: EARLIEST * 1000,
            get_fails: false,
            focus,
            call: CallState::default(),
            is_general: false,
            written,
            admitted: 0,
            denied: 0,
        }
    }

    /// Reports whether most checks are of plain windows.
    pub(super) fn is_everyday(&self) -> bool {
        matches!(
            self.focus,
            Focus::Keys | Focus::Everyday | Focus::Shared | Focus::Plain | Focus::Runs | Focus::Widths
        )
    }

    /// Reports whether most checks are of buckets.
    pub(super) fn is_of_buckets(&self) -> bool {
        matches!(self.focus, Focus::TokenBucket | Focus::Gcra | Focus::LeakyBucket)
    }

    /// Reports whether each check has a single counter, most of them with a new value.
    pub(crate) fn is_focused_on_values(&self) -> bool {
        matches!(self.focus, Focus::Damaged | Focus::Huge)
    }

    pub(crate) fn broken(&self, name: &str) -> Option<i64> {
        match self.stored.get(name) {
            Some(Stored::Garbage(_)) => Some(-2),
            Some(Stored::List) => Some(-1),
            _ => None,
        }
    }

    /// Reports whether Redis holds no string with this name.
    pub(crate) fn is_missing(&self, name: &str) -> bool {
        matches!(self.stored.get(name), None | Some(Stored::List))
    }

    pub(super) fn records(&self, name: &str) -> &[Record] {
        match self.stored.get(name) {
            Some(Stored::Records(records)) => records,
            _ => &[],
        }
    }
}

/// Returns the key of a client. Keys differ in all of their bits.
pub(super) fn key_of(client: u128) -> KeyHash {
    KeyHash(client.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

pub(crate) fn name(limit: &LimitSpec, key: KeyHash) -> String {
    format!("{}:{}", limit.scope, key.0)
}

/// Reports whether a value has expired long before the earliest instant here.
pub(super) fn ended(records: &[Record]) -> bool {
    !records.is_empty() && records.iter().all(|record| record.expires_at() < EARLIEST - 5 * MAX_PERIOD_MS)
}

/// Returns the expiry of a value: the latest one of its records. Damaged records may expire in the past or
/// too far in the future; their values are stored without an expiry.
pub(crate) fn expires(records: &[Record]) -> Option<i64> {
    let sane = EARLIEST - 5 * MAX_PERIOD_MS..1 << 60;
    records.iter().map(Record::expires_at).max().filter(|end| sane.contains(end)).map(|end| end as i64)
}

pub(crate) fn encode(records: &[Record]) -> Vec<u8> {
    let mut bytes = vec![];
    records.iter().for_each(|record| record.encode(&mut bytes));
    bytes
}
