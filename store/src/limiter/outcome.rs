//! The options of a limiter, the result of a check, and the metrics.

use std::time::Duration;

use smallvec::SmallVec;

use crate::check::CheckResponse;
use crate::failure::StoreError;
use crate::lease::LeaseMetrics;
use crate::local::LocalQuotaMetrics;

/// Bounds of a limiter's waiting time and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterOptions {
    /// Longest time that a request waits for the store.
    pub latency_budget: Duration,
    /// Number of keys with quota leases, of about 500 bytes each. Other keys cost a call per request.
    pub leased_keys: usize,
    /// Number of remembered denials, of about 600 bytes each.
    pub remembered_denials: usize,
    /// Number of keys that are counted locally while the store does not answer, of about 500 bytes each.
    /// Beyond it, the new keys of a limit share one counter.
    pub local_quota_keys: usize,
    /// Number of keys whose last usage in the store is kept, of 80 bytes each.
    pub last_known_keys: usize,
}

impl Default for LimiterOptions {
    fn default() -> Self {
        Self {
            latency_budget: Duration::from_millis(50),
            leased_keys: 8_192,
            remembered_denials: 2_048,
            local_quota_keys: 65_536,
            last_known_keys: 16_384,
        }
    }
}

/// The part of a limiter that decided a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The store, at least in part.
    Store,
    /// Blocks of leased quota.
    Lease,
    /// A remembered denial of the store.
    DenialCache,
    /// Local quota, at least in part.
    LocalQuota,
    /// `onStoreFailure: Allow`: the store did not answer, and the limits admit in that case.
    FailOpen,
}

/// The charge to one counter of a request. It is passed back to settle the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// Charged in the store at this instant of its clock, in microseconds.
    Store(u64),
    /// Charged in the store at this instant of its clock, in microseconds, to the counter that new keys share beyond the
    /// limit's maximum number of keys.
    Overflow(u64),
    /// Charged to local quota at this instant of the store's clock as estimated here, in microseconds.
    Local(u64),
    /// Not charged.
    Nothing,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOutcome {
    /// The decisions. Numbers that do not come from the store are estimates.
    pub response: CheckResponse,
    /// The charge to each counter. All are `Nothing` if the request is denied.
    pub reservations: SmallVec<[Reservation; 2]>,
    /// The part of the limiter that decided the check.
    pub source: Source,
    /// Error of the store, if it should have decided and did not answer.
    pub failure: Option<StoreError>,
}

/// Counts since the start of a limiter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimiterMetrics {
    /// Quota leases.
    pub leases: LeaseMetrics,
    /// Local quota.
    pub local_quota: LocalQuotaMetrics,
    /// Checks denied by a remembered denial.
    pub remembered_denials: u64,
    /// Counters that the store has lost before they expired.
    pub lost_counters: u64,
}
