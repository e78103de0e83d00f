//! The limits that can be leased, and the lifetime of their blocks.
//!
//! | rate | lease |
//! |---|---|
//! | `slidingWindowCounter` | to the end of the sub-window that was charged. Aligned periods are exact; the estimate never knew where in a sub-window its requests fell |
//! | `fixedWindow` | to the end of the window that was charged: exact |
//! | `tokenBucket`, `gcra` | for at most a twentieth of the period and a quarter of the time in which the bucket refills. That share of the rate can come on top of a burst |
//! | `slidingWindowLog`, `minInterval` | none: a log records the instant of each request, which is unknown in advance |
//! | `leakyBucket`, warm-up | none: every admitted request waits for its own delay |
//! | soft | none: the extra requests begin with the request that exceeds the number |
//! | windows (or twentieths) shorter than 50 ms | none: a block would expire before it arrives |
//!
//! A limit with several rates is leased if each of them can be. A block is charged to all rates and expires
//! with the first.

use sluice_limiter::{Algorithm, Alignment, Decision, Rate};

use crate::check::{KeyHash, LimitSpec};
use crate::usage::capacity;

/// Shortest lifetime of a block that is worth a lease, in microseconds.
const SHORTEST_BLOCK: u64 = 50_000;

/// Properties of a limit that its leases depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    /// Smallest capacity of the limit's rates, and so the largest block.
    pub(crate) capacity: u64,
    /// Longest lifetime of a block, in microseconds.
    pub(crate) longest_block: u64,
    /// Shortest time in which an exhausted rate refills, in microseconds.
    pub(crate) refill_time: u64,
    /// Index of the rate with the longest period. The holder's share of the usage is measured on it.
    pub(crate) measured_rate: usize,
    /// Whether quota comes back gradually rather than only at the end of a window.
    pub(crate) refills_gradually: bool,
}

/// The window that a block was charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChargedWindow {
    /// End of the window by the store's clock, in microseconds. `u64::MAX` if no rate has windows.
    pub(crate) end: u64,
    /// Time after the charge in which the block can be used, in microseconds.
    pub(crate) usable_for: u64,
}

impl LeaseTerms {
    /// Returns the terms of a limit, or `None` if it cannot be leased.
    pub(crate) fn of(spec: &LimitSpec) -> Option<Self> {
        let longest_block = |rate| longest_block(rate).filter(|&micros| micros >= SHORTEST_BLOCK);
        Some(Self {
            longest_block: spec.rates.iter().map(longest_block).min().flatten()?,
            measured_rate: (0..spec.rates.len()).max_by_key(|&n| spec.rates[n].period.millis())?,
            capacity: spec.rates.iter().map(capacity).min()?,
            refill_time: spec.rates.iter().map(refill_time).min()?,
            refills_gradually: !spec
                .rates
                .iter()
                .all(|rate| matches!(rate.algorithm, Algorithm::FixedWindow(_))),
        })
    }

    /// Returns the longest time that past requests count for the demand, in microseconds.
    pub(crate) fn demand_memory(&self) -> u64 {
        self.longest_block / 4
    }
}

impl ChargedWindow {
    /// Returns the window of a charge at `at`, in microseconds of the store's clock.
    pub(crate) fn of(spec: &LimitSpec, key: KeyHash, at: u64, decisions: &[Decision]) -> Self {
        let mut window = Self { end: u64::MAX, usable_for: u64::MAX };
        for (rate, decision) in spec.rates.iter().zip(decisions) {
            let length = longest_block(rate).unwrap_or(1).max(1);
            let left = match rate.algorithm {
                Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => {
                    window.usable_for = window.usable_for.min(length);
                    continue;
                }
                Algorithm::FixedWindow(Alignment::FirstRequest) if decision.reset > 0 => decision.reset,
                _ => length - (at + rate.phase(key.0)) % length,
            };
            window.end = window.end.min(at + left);
            window.usable_for = window.usable_for.min(left);
        }
        window
    }
}

/// Returns the time in which an exhausted rate refills, in microseconds.
fn refill_time(rate: &Rate) -> u64 {
    let periods = capacity(rate) as f64 / rate.requests.get().max(1) as f64;
    (rate.period.micros() as f64 * periods) as u64
}

/// Returns the longest lifetime of a block of this rate, in microseconds, or `None` if it cannot be leased.
fn longest_block(rate: &Rate) -> Option<u64> {
    if rate.soft.is_some() {
        return None;
    }
    match rate.algorithm {
        Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_) => {
            Some(rate.tag().window_millis() * 1000)
        }
        Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => {
            Some((rate.period.micros() / 20).min(refill_time(rate) / 4))
        }
        _ => None,
    }
}
