//! A limit on concurrent requests.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::policy::{Adaptive, Key, Match, Mode};

/// A limit on concurrent requests: its name and exactly one of max and adaptive.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.max), has(self.adaptive)].filter(x, x).size() == 1").message("exactly one of max, adaptive must be set"))]
#[x_kube(validation = Rule::new("!(has(self.adaptive) && has(self.key))").message("key is not allowed with adaptive, which limits all clients of a pod together"))]
pub struct Concurrency {
    /// Name of the limit, unique in the policy, also among the names in `limits`. It identifies the limit in
    /// metrics, response headers and the store.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Mode of this limit. The description in the CRD is that of [`Mode`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Requests that the limit applies to: those that match at least one entry. Default: all requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub matches: Vec<Match>,
    /// Identifies the client that sent a request. Each client may have max concurrent requests. Default: all
    /// clients share max. Not allowed with adaptive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// Largest number of concurrent requests in all pods together, 1 to 1000000. A request counts from its
    /// admission until its response is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max: Option<i64>,
    /// A limit that each pod adjusts to the capacity of its application, by measuring response times.
    /// Requests over the limit are rejected with status 503.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<Adaptive>,
}
