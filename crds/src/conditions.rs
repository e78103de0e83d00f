//! The types and reasons of status conditions.

/// The types of conditions.
pub mod types {
    /// The policy is valid.
    pub const ACCEPTED: &str = "Accepted";
    /// Every selected pod has confirmed this version of the policy.
    pub const PROGRAMMED: &str = "Programmed";
    /// No known route leads requests past the sidecars.
    pub const CAPTURED: &str = "Captured";
    /// Sidecars see the addresses of clients, and not those of proxies in front of them. Only for a policy with a
    /// limit by client address. It has no effect on Ready, because clients can send the headers of proxies.
    pub const CLIENT_ADDRESS: &str = "ClientAddress";
    /// The sidecars can use the store.
    pub const STORE_HEALTHY: &str = "StoreHealthy";
    /// Everything that a policy refers to can be used.
    pub const RESOLVED_REFS: &str = "ResolvedRefs";
    /// All servers of a managed store have the users of the namespaces and the library.
    pub const PROVISIONED: &str = "Provisioned";
    /// All sidecars that use a store can reach it.
    pub const REACHABLE: &str = "Reachable";
    /// The counter has been reset.
    pub const COMPLETE: &str = "Complete";
    /// Accepted, ResolvedRefs, Programmed and Captured are all true; of a store, Accepted, ResolvedRefs, Provisioned and
    /// Reachable.
    pub const READY: &str = "Ready";
}

/// The reasons of conditions. The doc comment of each begins with the type of its condition.
pub mod reasons {
    /// Accepted: the policy is valid.
    pub const ACCEPTED: &str = "Accepted";
    /// Accepted: the policy is not valid. The message names the fields and the reasons.
    pub const INVALID: &str = "Invalid";
    /// Accepted: a domain that the policy names is not granted to its namespace.
    pub const DOMAIN_NOT_GRANTED: &str = "DomainNotGranted";
    /// Accepted: a target of the policy does not exist.
    pub const TARGET_NOT_FOUND: &str = "TargetNotFound";
    /// Accepted, of a store: its namespace may not have stores.
    pub const NOT_ALLOWED: &str = "NotAllowed";
    /// ResolvedRefs: everything that the object refers to can be used.
    pub const RESOLVED_REFS: &str = "ResolvedRefs";
    /// ResolvedRefs: an object does not exist.
    pub const REF_NOT_FOUND: &str = "RefNotFound";
    /// ResolvedRefs: the operator has no right to read an object, or the namespace may not use it.
    pub const REF_NOT_PERMITTED: &str = "RefNotPermitted";
    /// ResolvedRefs: the content of an object cannot be used.
    pub const INVALID_CONTENT: &str = "InvalidContent";
    /// Accepted, ResolvedRefs, Programmed, Reachable: something is still being read.
    pub const WAITING: &str = "Waiting";
    /// Provisioned: all servers have the users of the namespaces and the library.
    pub const PROVISIONED: &str = "Provisioned";
    /// Provisioned: some servers do not have them.
    pub const PARTLY_PROVISIONED: &str = "PartlyProvisioned";
    /// Reachable: all sidecars can use the store, but its memory is nearly full.
    pub const MEMORY_NEARLY_FULL: &str = "MemoryNearlyFull";
    /// Reachable: all sidecars can use the store, but it has lost counters in the last ten minutes. StoreHealthy: the same.
    pub const COUNTERS_LOST: &str = "CountersLost";
    /// Reachable: all sidecars can use the store, but it evicts counters when its memory is full.
    pub const MAY_EVICT: &str = "MayEvictCounters";
    /// Reachable: all sidecars can use the store.
    pub const REACHABLE: &str = "Reachable";
    /// Reachable: only some sidecars can use the store.
    pub const PARTLY_REACHABLE: &str = "PartlyReachable";
    /// Complete: the counter has been removed, and every pod has forgotten the client.
    pub const COMPLETE: &str = "Complete";
    /// Complete: some pods have not forgotten the client yet.
    pub const IN_PROGRESS: &str = "InProgress";
    /// Complete: the namespace has no such policy, or an invalid one.
    pub const POLICY_NOT_FOUND: &str = "PolicyNotFound";
    /// Complete: the policy has no such limit, or one without counters.
    pub const LIMIT_NOT_FOUND: &str = "LimitNotFound";
    /// Complete: a pod that enforces the policy is not connected, or none runs.
    pub const NOT_CONNECTED: &str = "NotConnected";
    /// Complete: a pod could not reset the client. The message has its reason.
    pub const POD_FAILED: &str = "PodFailed";
    /// Complete: the reset was not complete in time, and is given up.
    pub const EXPIRED: &str = "Expired";
    /// Programmed: every selected pod has confirmed the policy.
    pub const PROGRAMMED: &str = "Programmed";
    /// Programmed: a workload whose pods the policy selects is scaled to zero.
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";
    /// Programmed: the policy was published a moment ago.
    pub const PENDING: &str = "Pending";
    /// Programmed: some pods have not confirmed the policy.
    pub const PODS_UNCONFIRMED: &str = "PodsUnconfirmed";
    /// Programmed: some pods have no sidecar.
    pub const NOT_INJECTED: &str = "NotInjected";
    /// Programmed, Captured: something removed the sidecar of a pod after Sluice had added it.
    pub const SIDECAR_REMOVED: &str = "SidecarRemoved";
    /// Programmed: a sidecar nacked the policy.
    pub const REFUSED: &str = "Refused";
    /// Programmed: the policy selects no pods.
    pub const NO_PODS: &str = "NoPods";
    /// Programmed: the service enforces the policy, and no pod of it runs.
    pub const NO_SERVICE: &str = "NoService";
    /// Programmed: the operator has just started and has not received reports from all pods.
    pub const AWAITING_REPORTS: &str = "AwaitingReports";
    /// Captured: all known routes lead through the sidecars.
    pub const ALL_TRAFFIC: &str = "AllTraffic";
    /// Captured: no gateway has asked the service about the policy yet.
    pub const NO_CHECKS_YET: &str = "NoChecksYet";
    /// Captured: gateways ask the service about the policy.
    pub const CHECKS_ARRIVE: &str = "ChecksArrive";
    /// Captured: a Service or an EndpointSlice leads requests past the sidecars.
    pub const BYPASSED_BY_SERVICE: &str = "BypassedByService";
    /// Captured: a Service also has pods without limits, or a pod has a hostPort.
    pub const BYPASSED_BY_POD: &str = "BypassedByPod";
    /// Captured: a NetworkPolicy allows a port of the application and blocks the sidecar's port.
    pub const BLOCKED_BY_NETWORK_POLICY: &str = "BlockedByNetworkPolicy";
    /// Captured: a pod has no named port that could be captured.
    pub const NO_NAMED_PORT: &str = "NoNamedPort";
    /// ClientAddress: requests arrive from clients or through trusted proxies.
    pub const KNOWN: &str = "Known";
    /// ClientAddress: most requests arrive through a proxy that is not trusted, so its clients are counted as one.
    pub const UNTRUSTED_PROXY: &str = "UntrustedProxy";
    /// A trusted proxy reports clients by something that is no address.
    pub const UNREADABLE_ADDRESS: &str = "UnreadableAddress";
    /// StoreHealthy: the store responds to all sidecars.
    pub const HEALTHY: &str = "Healthy";
    /// StoreHealthy: the sidecars cannot reach the store.
    pub const UNREACHABLE: &str = "Unreachable";
    /// StoreHealthy: the store rejects the sidecars' connections or commands.
    pub const STORE_REFUSED: &str = "Refused";
    /// StoreHealthy: the store responds only to some sidecars, is slow, or cannot write.
    pub const DEGRADED: &str = "Degraded";
    /// StoreHealthy: no sidecar has reported yet.
    pub const NO_REPORTS: &str = "NoReports";
    /// Ready: the conditions that it sums up are all true.
    pub const READY: &str = "Ready";
    /// Ready: the same, but the installation turns all policies to Shadow, so no request is rejected.
    pub const SHADOWED_BY_INSTALLATION: &str = "ShadowedByInstallation";
}
