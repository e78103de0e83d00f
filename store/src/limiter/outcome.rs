//! What a limiter is given and what it answers.

use std::time::Duration;

use smallvec::SmallVec;

use crate::check::CheckResponse;
use crate::failure::StoreError;
use crate::lease::LeaseMetrics;
use crate::local::LocalQuotaMetrics;

/// How much the layers may hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterOptions {
    /// How long a request may wait for another one's call to the store, as it may for its own.
    pub latency_budget: Duration,
    /// Keys that are leased; others are asked for with a call a request. About 500 bytes each.
    pub leased_keys: usize,
    /// Denials that are remembered. About 350 bytes each.
    pub denials: usize,
    /// Keys that are counted locally while the store does not answer; others share a counter a limit. About 500 bytes
    /// each.
    pub shared_keys: usize,
    /// Keys of which it is known how they stood in the store. 80 bytes each.
    pub known_keys: usize,
}

impl Default for LimiterOptions {
    fn default() -> Self {
        Self {
            latency_budget: Duration::from_millis(50),
            leased_keys: 8_192,
            denials: 2_048,
            shared_keys: 65_536,
            known_keys: 16_384,
        }
    }
}

/// Who answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The store, at least in part.
    Store,
    /// Blocks taken from the store before.
    Lease,
    /// A denial of the store that is still valid.
    DenialCache,
    /// This process's own counters, at least in part.
    Share,
    /// Nobody: the store failed, and the limits say to admit then.
    Nobody,
}

/// What was charged for one counter of a request, to be named when it is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// In the store, at this instant of its clock.
    Store(u64),
    /// In this process, at this instant of the store's clock as far as it is known here.
    Local(u64),
    /// Nothing.
    Nothing,
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOutcome {
    /// The answer, of one form wherever it comes from. What did not come from the store is an estimate in its numbers.
    pub response: CheckResponse,
    /// What was charged for each counter; all nothing if it is denied.
    pub reservations: SmallVec<[Reservation; 2]>,
    /// Who answered.
    pub source: Source,
    /// Why the store did not, if it was asked and did not.
    pub failure: Option<StoreError>,
}

/// What the layers have done since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimiterMetrics {
    /// Leases.
    pub lease: LeaseMetrics,
    /// Local counting.
    pub share: LocalQuotaMetrics,
    /// Denied by the denial cache.
    pub denials_remembered: u64,
}
