//! The API types of a `CounterReset`: the request to reset one client's counter.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// Resets the counter of one client, as if it had never sent a request. A block ends too.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "CounterReset",
    plural = "counterresets",
    shortname = "slreset",
    category = "sluice",
    namespaced,
    status = "CounterResetStatus",
    derive = "PartialEq",
    doc = "Resets the counter of one client, as if it had never sent a request. A block ends too. `sluice reset` and `sluice unblock` create it. It is given up if it is not complete within ten minutes, and deleted ten minutes after it is complete or was given up.",
    printcolumn = r#"{"name":"Policy","type":"string","jsonPath":".spec.policy"}"#,
    printcolumn = r#"{"name":"Limit","type":"string","jsonPath":".spec.limit"}"#,
    printcolumn = r#"{"name":"Complete","type":"string","jsonPath":".status.conditions[?(@.type==\"Complete\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Complete\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Complete\")].message","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("a reset cannot be changed: create another one"))]
pub struct CounterResetSpec {
    /// RateLimitPolicy of this namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub policy: String,
    /// Limit of the policy.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub limit: String,
    /// Hash of the client's key, as `sluice peek` and `sluice top` print it: 22 characters. The key itself, which may be
    /// secret, is not stored.
    #[schemars(length(min = 22, max = 22), regex(pattern = "^[-_A-Za-z0-9]{22}$"))]
    pub key: String,
}

/// Observed state of the reset.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CounterResetStatus {
    /// Conditions of the reset:
    /// - Complete: the counter has been removed, and every running pod that enforces the policy has forgotten the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
