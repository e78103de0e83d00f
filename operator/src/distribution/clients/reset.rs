//! A reset of one client's counter, and how far it is.

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
    /// UID of the pod that removes the counter in the store.
    pub(in crate::distribution) remover: Option<String>,
    /// Time at which a pod has removed it, by the store's clock. It is not removed twice, or requests that were counted in
    /// between would be lost.
    pub(in crate::distribution) removed_at: Option<u64>,
}

/// How far a reset is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResetProgress {
    /// Whether the policy is published.
    pub has_policy: bool,
    /// Number of connected pods that enforce the policy.
    pub pods: usize,
    /// Number of those that have forgotten the client.
    pub forgotten: usize,
    /// Whether the counter in the store has been removed.
    pub is_removed: bool,
    /// Reason why a pod has failed.
    pub failure: Option<String>,
}
