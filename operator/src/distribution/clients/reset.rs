//! A reset of one client's counter, and how far it is.

use tokio::time::Instant;

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
#[derive(Debug)]
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
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_counted && self.is_removed && self.pods > 0 && self.forgotten == self.pods
    }
}
