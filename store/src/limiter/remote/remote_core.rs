//! The state that checks and background work share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;

use super::denial_cache::DenialCache;
use super::store_time::StoreTime;
use crate::lease::Leases;
use crate::local::LocalQuota;

/// The state of a limiter in front of a remote store.
#[derive(Debug)]
pub(super) struct RemoteCore<S> {
    pub(super) store: Arc<S>,
    /// Runtime of the background calls. The runtime of a request can end before such a call does.
    pub(super) runtime: Handle,
    pub(super) time: StoreTime,
    /// Longest time that a request waits for the store.
    pub(super) latency_budget: Duration,
    pub(super) leases: Leases,
    pub(super) denials: DenialCache,
    /// Shared with the successor, once there is one.
    pub(super) local_quota: Arc<LocalQuota>,
    /// Whether a successor flushes the local usage.
    pub(super) has_successor: AtomicBool,
    /// Held while the limiter is being closed.
    pub(super) closing: Mutex<()>,
}

impl<S> RemoteCore<S> {
    /// Reports whether this limiter has local usage to flush.
    pub(super) fn has_usage_to_flush(&self) -> bool {
        self.local_quota.pending() > 0 && !self.has_successor.load(Relaxed)
    }
}
