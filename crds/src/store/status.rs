//! The observed state of a store.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Observed state of the store.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitStoreStatus {
    /// Generation of the store that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the store:
    /// - Accepted: the store is valid, and its namespace may have one.
    /// - ResolvedRefs: the Secret exists, the operator may read it, and its content can be used.
    /// - Provisioned: all servers have the users of the namespaces and the function library. Only with access Managed.
    /// - Reachable: every sidecar that uses the store can. The reason names the cause otherwise.
    /// - Ready: all of the above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Numbers of sidecars that use the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecars: Option<SidecarCounts>,
    /// Passwords of the users of the namespaces. Only with access Managed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passwords: Option<PasswordEpoch>,
}

/// Passwords of the users of a managed store.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PasswordEpoch {
    /// The passwordEpoch of the store to which they belong.
    pub epoch: i64,
    /// Time since which they are used. Those of the number before are accepted for five minutes more.
    pub since: Time,
}

/// Numbers of sidecars. A sidecar reports on a store when a policy of its pod counts there.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SidecarCounts {
    /// Number of sidecars that have reported on the store.
    pub reporting: i32,
    /// Number of sidecars that can use it.
    pub healthy: i32,
    /// Both numbers, written as healthy/reporting.
    pub summary: String,
}
