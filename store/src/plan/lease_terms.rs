//! The limits that can be leased, and the lifetime of their blocks.
//!
//! A limit with several rates is leased if each of them can be. A block is charged to all rates and expires
//! with the first.

use sluice_limiter::{Decision, Rate};

use crate::check::{KeyHash, LimitSpec};

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChargedWindow {
    /// End of the window by the store's clock, in microseconds. `u64::MAX` if no rate has windows.
    pub end: u64,
    /// Time after the charge in which the block can be used, in microseconds.
    pub usable_for: u64,
}

impl LeaseTerms {
    /// Returns the terms of a limit, or `None` if it cannot be leased.
    pub(crate) fn of(spec: &LimitSpec) -> Option<Self> {
        let rates = &spec.rates;
        Some(Self {
            longest_block: rates.iter().map(Rate::longest_lease).min().flatten()?,
            measured_rate: (0..rates.len()).max_by_key(|&n| rates[n].period.millis())?,
            capacity: rates.iter().map(Rate::capacity).min()?,
            refill_time: rates.iter().map(Rate::refill_time).min()?,
            refills_gradually: rates.iter().any(Rate::refills_gradually),
        })
    }

    /// Returns the longest time that past requests count for the demand, in microseconds.
    pub(crate) fn demand_memory(&self) -> u64 {
        self.longest_block / 4
    }
}

impl ChargedWindow {
    /// Returns the window of a charge at `at`, in microseconds of the store's clock.
    #[must_use]
    pub fn of(spec: &LimitSpec, key: KeyHash, at: u64, decisions: &[Decision]) -> Self {
        let mut window = Self { end: u64::MAX, usable_for: u64::MAX };
        for (rate, decision) in spec.rates.iter().zip(decisions) {
            let left = rate.left_of_window(key.0, at, decision);
            window.end = window.end.min(left.map_or(u64::MAX, |left| at + left));
            let usable_for = left.or_else(|| rate.longest_lease()).unwrap_or(0);
            // Rule: lease.first-window-of-rates.
            window.usable_for = window.usable_for.min(usable_for);
        }
        window
    }
}
