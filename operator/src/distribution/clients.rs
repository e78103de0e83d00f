//! Single clients, as far as the hub knows them: resets of their counters, and those whom a limit in Shadow would have denied.

use std::time::Duration;

use sluice_config::distinct::DistinctSketch;
use tokio::time::Instant;

use crate::names::PolicyKey;

/// A reset that pods carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// Namespace of the policy.
    pub namespace: String,
    /// Name of the policy.
    pub policy: String,
    /// Name of the limit.
    pub limit: String,
    /// Hash of the client's key.
    pub key: String,
}

/// A reset in the hub.
pub(in crate::distribution) struct ActiveReset {
    pub(in crate::distribution) reset: Reset,
    /// UID of the pod that removes the counter in the store, and the time at which it was chosen.
    pub(in crate::distribution) remover: Option<(String, Instant)>,
    /// Time at which a pod has removed it, by the store's clock. As long as this replica leads, it is not removed twice:
    /// requests that were counted in between would be lost.
    pub(in crate::distribution) removed_at: Option<u64>,
}

/// How far a reset is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetProgress {
    /// The policy is not published.
    NoPolicy,
    /// The policy has no such limit.
    NoLimit,
    /// The limit has no counters.
    NoCounters,
    /// The pods carry it out.
    Pods(PodProgress),
}

/// How far the pods are that enforce the policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodProgress {
    /// Whether the running pods have been counted.
    pub is_counted: bool,
    /// Number of running or connected pods.
    pub pods: usize,
    /// Number of those that are not connected.
    pub not_connected: usize,
    /// Number of those that have forgotten the client.
    pub forgotten: usize,
    /// Whether the counter in the store has been removed.
    pub is_removed: bool,
    /// A pod that has failed, and the reason that it gives.
    pub failure: Option<(String, String)>,
}

impl PodProgress {
    /// Reports whether every pod has forgotten the client.
    pub fn is_complete(&self) -> bool {
        self.is_counted && self.is_removed && self.pods > 0 && self.forgotten == self.pods
    }
}

/// Half of the time for which a client that a pod has reported counts at most. Pods report those of 5 to 10 minutes.
pub(in crate::distribution) const HALF: Duration = Duration::from_secs(300);

/// A limit of a policy.
pub(crate) type LimitKey = (PolicyKey, String);

/// The clients that a limit would have denied recently.
pub(in crate::distribution) struct RecentClients {
    older: DistinctSketch,
    newer: DistinctSketch,
    /// Begin of the newer half.
    begun: Instant,
}

impl RecentClients {
    pub(in crate::distribution) fn new(now: Instant) -> Self {
        Self { older: DistinctSketch::default(), newer: DistinctSketch::default(), begun: now }
    }

    /// Begins another half if the newer one is over.
    fn turn(&mut self, now: Instant) {
        let passed = now - self.begun;
        if passed >= HALF {
            let newer = std::mem::take(&mut self.newer);
            self.older = if passed < 2 * HALF { newer } else { DistinctSketch::default() };
            self.begun = now;
        }
    }

    /// Adds the clients that a pod reports.
    pub(in crate::distribution) fn merge(&mut self, clients: &DistinctSketch, now: Instant) {
        self.turn(now);
        self.newer.merge(clients);
    }

    /// Reports whether there are no clients any more.
    pub(in crate::distribution) fn is_empty(&mut self, now: Instant) -> bool {
        self.turn(now);
        self.older.is_empty() && self.newer.is_empty()
    }

    /// Returns all clients.
    pub(in crate::distribution) fn all(&self) -> DistinctSketch {
        let mut all = self.older.clone();
        all.merge(&self.newer);
        all
    }
}
