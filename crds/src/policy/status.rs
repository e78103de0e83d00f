//! The observed state of a policy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Observed state of the policy.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitPolicyStatus {
    /// Generation of the policy that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the policy:
    /// - Accepted: the policy is valid.
    /// - Programmed: every selected pod has confirmed this version of the policy.
    /// - Captured: no known route leads requests past the sidecars.
    /// - ClientAddress: sidecars see the addresses of clients, not of proxies. Only with a limit by clientIP; it has no
    ///   effect on Ready.
    /// - StoreHealthy: the sidecars can use the store.
    /// - Ready: Accepted, Programmed and Captured are all true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Numbers of pods that the policy selects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodCounts>,
    /// Summary of the limits, such as "per-customer 10/1m 500/1h".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<String>,
}

/// Numbers of pods. A pod counts if it runs, is not being deleted, is not opted out of injection and does not
/// use the network of its host.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodCounts {
    /// Number of pods that the policy selects.
    pub selected: i32,
    /// Number of selected pods that have a sidecar.
    pub injected: i32,
    /// Number of selected pods whose sidecar has confirmed this version of the policy.
    pub programmed: i32,
    /// Numbers of programmed and selected pods, written as programmed/selected.
    pub summary: String,
}
