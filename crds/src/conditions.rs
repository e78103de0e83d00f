//! The types and reasons of status conditions: every one that is ever written, in one place.

/// The types of conditions.
pub mod types {
    /// The policy is valid.
    pub const ACCEPTED: &str = "Accepted";
    /// Every counted pod has confirmed this very policy.
    pub const PROGRAMMED: &str = "Programmed";
    /// No Service leads traffic past the sidecars.
    pub const CAPTURED: &str = "Captured";
    /// The store answers the sidecars.
    pub const STORE_HEALTHY: &str = "StoreHealthy";
    /// All of the above but StoreHealthy.
    pub const READY: &str = "Ready";
}

/// The reasons of conditions.
pub mod reasons {
    /// Accepted: it is valid.
    pub const ACCEPTED: &str = "Accepted";
    /// Accepted: it is not; the message says where and why.
    pub const INVALID: &str = "Invalid";
    /// Programmed: all counted pods confirmed.
    pub const PROGRAMMED: &str = "Programmed";
    /// Programmed: pods are selected by a workload that is scaled to zero.
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";
    /// Programmed: just published.
    pub const PENDING: &str = "Pending";
    /// Programmed: some pods have not confirmed.
    pub const PODS_UNCONFIRMED: &str = "PodsUnconfirmed";
    /// Programmed: some pods carry no sidecar.
    pub const NOT_INJECTED: &str = "NotInjected";
    /// Programmed: a sidecar refused the policy.
    pub const REFUSED: &str = "Refused";
    /// Programmed: no pods are selected.
    pub const NO_PODS: &str = "NoPods";
    /// Programmed: the operator has just started and has not heard from all pods.
    pub const AWAITING_REPORTS: &str = "AwaitingReports";
    /// Captured: nothing passes by.
    pub const ALL_TRAFFIC: &str = "AllTraffic";
    /// Captured: a Service leads past the sidecars.
    pub const BYPASSED_BY_SERVICE: &str = "BypassedByService";
    /// Captured: a pod has no named port that could be captured.
    pub const NO_NAMED_PORT: &str = "NoNamedPort";
    /// StoreHealthy: it answers.
    pub const HEALTHY: &str = "Healthy";
    /// StoreHealthy: it cannot be reached.
    pub const UNREACHABLE: &str = "Unreachable";
    /// StoreHealthy: it refuses the sidecars.
    pub const STORE_REFUSED: &str = "Refused";
    /// StoreHealthy: it answers some sidecars only, late, or cannot write.
    pub const DEGRADED: &str = "Degraded";
    /// StoreHealthy: no sidecar has said.
    pub const NO_REPORTS: &str = "NoReports";
    /// Ready: all is well.
    pub const READY: &str = "Ready";
}
