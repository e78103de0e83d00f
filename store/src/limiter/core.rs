//! The state that checks and background work share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sluice_limiter::Decision;
use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::denial_cache::DenialCache;
use super::losses::Losses;
use super::store_time::StoreTime;
use crate::check::CheckResponse;
use crate::lease::Leases;
use crate::local::{LocalQuota, SeenUsage};
use crate::plan::PlannedCounter;

/// The state of a limiter in front of a remote store.
#[derive(Debug)]
pub(super) struct LimiterCore<S> {
    pub(super) store: Arc<S>,
    /// Runtime of the background calls. The runtime of a request can end before such a call does.
    pub(super) runtime: Handle,
    pub(super) time: StoreTime,
    /// Longest time that a request waits for the store.
    pub(super) latency_budget: Duration,
    pub(super) leases: Leases,
    pub(super) denials: DenialCache,
    pub(super) losses: Losses,
    /// Shared with the successor, once there is one.
    pub(super) local_quota: Arc<LocalQuota>,
    /// Whether a successor flushes the local usage.
    pub(super) has_successor: AtomicBool,
    /// Held while the limiter is being closed.
    pub(super) closing: Mutex<()>,
}

impl<S> LimiterCore<S> {
    /// Records that a response with the store's time `at` arrived at `now`.
    pub(super) fn record_time(&self, at: u64, now: u64) {
        if self.time.record(at, now) {
            self.losses.begin_epoch();
        }
    }

    /// Records what a response says about a counter: its number in the response, and its decisions.
    pub(super) fn record_usage(
        &self,
        counter: &PlannedCounter,
        (n, decisions): (usize, &[Decision]),
        response: &CheckResponse,
        now: u64,
    ) {
        let seen = SeenUsage {
            decisions,
            at: response.at,
            charged: response.admitted && counter.cost > 0,
            created: response.created.contains(n),
            epoch: self.losses.epoch(),
        };
        if self.local_quota.record_usage(counter, seen) {
            self.losses.add(now);
        }
    }

    /// Reports whether this limiter has local usage to flush.
    pub(super) fn has_usage_to_flush(&self) -> bool {
        self.local_quota.pending() > 0 && !self.has_successor.load(Relaxed)
    }
}
