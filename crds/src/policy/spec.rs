//! The whole policy.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::policy::{
    ClientAddress, Concurrency, Consistency, Limit, Mode, OnStoreFailure, RateLimitPolicyStatus,
};

/// The limits of a policy, and the pods that enforce them. At least one of limits and concurrency is
/// required.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "RateLimitPolicy",
    plural = "ratelimitpolicies",
    shortname = "slp",
    category = "sluice",
    namespaced,
    status = "RateLimitPolicyStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Limits for the requests to pods of a namespace, enforced by the sidecars of these pods.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Programmed","type":"string","jsonPath":".status.conditions[?(@.type==\"Programmed\")].status"}"#,
    printcolumn = r#"{"name":"Pods","type":"string","jsonPath":".status.pods.summary","description":"Number of pods that have confirmed this version of the policy, and of pods that it selects."}"#,
    printcolumn = r#"{"name":"Store","type":"string","jsonPath":".status.conditions[?(@.type==\"StoreHealthy\")].reason"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason","priority":1}"#,
    printcolumn = r#"{"name":"Limits","type":"string","jsonPath":".status.limits","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.limits) || has(self.concurrency)").message("at least one of limits, concurrency must be set"))]
#[x_kube(validation = Rule::new("!has(self.limits) || !has(self.concurrency) || self.concurrency.all(c, self.limits.all(l, l.name != c.name))").message("names must be unique among limits and concurrency together"))]
pub struct RateLimitPolicySpec {
    /// Pods of this namespace that the policy applies to. Default: all pods. If several policies select a
    /// pod, a request must pass the limits of all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<LabelSelector>,
    /// Effect of the limits:
    /// - Enforce (default): requests over a limit are rejected.
    /// - Shadow: decisions are counted in the metrics, and every request passes.
    #[serde(default)]
    pub mode: Mode,
    /// Where the requests of `limits` are counted. Limits in `concurrency` always use the store.
    /// - Strict (default): in the store (Redis), with one call per request. Limits hold exactly over all
    ///   pods.
    /// - Leased: in the store, but pods acquire quota in blocks, so most requests need no call. Limits hold
    ///   exactly in windows aligned to the clock, and to a few percent in any other period.
    /// - Local: in each pod, without the store. Each pod admits the limit divided by the number of pods that
    ///   the policy selects.
    #[serde(default)]
    pub consistency: Consistency,
    /// Decision about a request when the store does not answer within the latency budget:
    /// - Allow (default): the request passes and is not counted.
    /// - Deny: the request is rejected.
    /// - Share: the pod counts the request and admits up to the limit divided by the number of pods that the
    ///   policy selects. When the store is back, it adds what the pod counted.
    #[serde(default)]
    pub on_store_failure: OnStoreFailure,
    /// Source of a client's address. Default: the address of the peer that opened the connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<ClientAddress>,
    /// Limits on the rate of requests. A request must pass all limits that match it. If one denies it, it is
    /// not charged to the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub limits: Vec<Limit>,
    /// Limits on concurrent requests. A request must pass all that match it, in addition to those in
    /// `limits`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub concurrency: Vec<Concurrency>,
}
