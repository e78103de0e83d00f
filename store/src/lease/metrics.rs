//! Counts of what leases do.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of leases since the start of the process, and their state now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseMetrics {
    /// Requests to leased limits. A request counts once per leased limit.
    pub requests: u64,
    /// Number of these that were admitted from a block.
    pub admitted_locally: u64,
    /// Number of these that were denied without a call.
    pub denied_locally: u64,
    /// Calls that acquired a block, including those that were granted nothing.
    pub acquisitions: u64,
    /// Requests that were checked in the store with a call of their own.
    pub single_calls: u64,
    /// Calls that returned quota.
    pub returns: u64,
    /// Quota acquired in blocks.
    pub acquired: u64,
    /// Part of the acquired quota that was returned.
    pub returned: u64,
    /// Part of the acquired quota that expired unused.
    pub expired: u64,
    /// Blocks that are being acquired now.
    pub pending_acquisitions: u64,
    /// Keys that have a lease now.
    pub keys: u64,
}

impl LeaseMetrics {
    /// Returns the number of calls to the store per request to a leased limit.
    #[must_use]
    pub fn calls_per_request(&self) -> f64 {
        (self.acquisitions + self.single_calls + self.returns) as f64 / self.requests.max(1) as f64
    }
}

/// The counters behind [`LeaseMetrics`].
#[derive(Debug, Default)]
pub(super) struct LeaseCounts {
    pub(super) requests: AtomicU64,
    pub(super) admitted: AtomicU64,
    pub(super) denied: AtomicU64,
    pub(super) acquisitions: AtomicU64,
    pub(super) single_calls: AtomicU64,
    pub(super) returns: AtomicU64,
    pub(super) acquired: AtomicU64,
    pub(super) returned: AtomicU64,
    pub(super) expired: AtomicU64,
}

impl LeaseCounts {
    /// Returns the counts, with the given state of now.
    pub(super) fn metrics(&self, keys: u64, pending_acquisitions: u64) -> LeaseMetrics {
        LeaseMetrics {
            requests: self.requests.load(Relaxed),
            admitted_locally: self.admitted.load(Relaxed),
            denied_locally: self.denied.load(Relaxed),
            acquisitions: self.acquisitions.load(Relaxed),
            single_calls: self.single_calls.load(Relaxed),
            returns: self.returns.load(Relaxed),
            acquired: self.acquired.load(Relaxed),
            returned: self.returned.load(Relaxed),
            expired: self.expired.load(Relaxed),
            pending_acquisitions,
            keys,
        }
    }
}
