//! The limits, the clock and the stored values.

use std::collections::HashMap;
use std::sync::Arc;

use rand::SeedableRng;
use rand::rngs::StdRng;
use sluice_limiter::{MAX_PERIOD_MS, Record};
use sluice_store::{Counter, KeyHash, LimitSpec, Settlement};

/// The year 2096 in milliseconds: the future, so that Redis expires nothing, and the same for everybody, so that a
/// seed repeats a run.
pub(super) const EARLIEST: u64 = 4_000_000_000_000;
pub(super) const DAY: u64 = 86_400_000;
/// Which algorithm most of the rates have.
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
    /// Plain windows, most of them asked for one: the script's short forms.
    Everyday,
}

pub(crate) const ALL: [Focus; 14] = [
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
];

/// How many clients there are where a batch is about one limit.
pub(super) const CROWD: u128 = 20;

/// What Redis must hold.
pub(crate) enum Stored {
    Records(Vec<Record>),
    /// Bytes that are no records.
    Garbage(Vec<u8>),
    /// A list.
    List,
}

/// Limits, clients, and what is known of their counters.
pub(crate) struct World {
    pub(crate) rng: StdRng,
    /// The versions of each limit, as edits make them: (limit, version).
    pub(super) limits: Vec<Vec<Arc<LimitSpec>>>,
    /// If this batch is about one limit only.
    pub(super) one: Option<Arc<LimitSpec>>,
    /// And about this counter besides.
    pub(super) besides: Option<Counter>,
    pub(crate) stored: HashMap<String, Stored>,
    /// In microseconds.
    pub(crate) now: u64,
    pub(super) focus: Focus,
    /// Names of what the batch wrote.
    pub(super) written: Vec<String>,
    /// Counts what was compared, to see that the runs are not vacuous.
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
}

#[derive(Debug)]
pub(crate) enum BatchEntry {
    Check { counters: Vec<Counter>, callers: u64 },
    Settle(Settlement),
}

impl BatchEntry {
    /// Of all counters that it is about.
    pub(crate) fn names(&self) -> Vec<String> {
        match self {
            Self::Check { counters, .. } => counters.iter().map(|one| name(&one.limit, one.key)).collect(),
            Self::Settle(settlement) => vec![name(&settlement.limit, settlement.key)],
        }
    }
}

impl World {
    pub(crate) fn new(seed: u64, focus: Focus) -> Self {
        let rng = StdRng::seed_from_u64(seed);
        let (limits, stored, written) = (vec![], HashMap::new(), vec![]);
        let mut world = Self {
            rng,
            limits,
            one: None,
            besides: None,
            stored,
            now: EARLIEST * 1000,
            focus,
            written,
            admitted: 0,
            denied: 0,
        };
        world.rebuild();
        world
    }

    pub(crate) fn broken(&self, name: &str) -> Option<i64> {
        match self.stored.get(name) {
            Some(Stored::Garbage(_)) => Some(-2),
            Some(Stored::List) => Some(-1),
            _ => None,
        }
    }

    pub(super) fn records(&self, name: &str) -> &[Record] {
        match self.stored.get(name) {
            Some(Stored::Records(records)) => records,
            _ => &[],
        }
    }
}

/// Clients, different in all of their bits.
pub(super) fn key_of(client: u128) -> KeyHash {
    KeyHash(client.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

pub(crate) fn name(limit: &LimitSpec, key: KeyHash) -> String {
    format!("{}:{}", limit.scope, key.0)
}

/// Whether a value has ended long before all that happens here.
pub(super) fn ended(records: &[Record]) -> bool {
    !records.is_empty() && records.iter().all(|record| record.expires_at() < EARLIEST - 5 * MAX_PERIOD_MS)
}

/// When a value expires: at its records' latest end. Only damaged ones end in the past or beyond all time; those
/// are put without an end.
pub(crate) fn expires(records: &[Record]) -> Option<i64> {
    let sane = EARLIEST - 5 * MAX_PERIOD_MS..1 << 60;
    records.iter().map(Record::expires_at).max().filter(|end| sane.contains(end)).map(|end| end as i64)
}

pub(crate) fn encode(records: &[Record]) -> Vec<u8> {
    let mut bytes = vec![];
    records.iter().for_each(|record| record.encode(&mut bytes));
    bytes
}
