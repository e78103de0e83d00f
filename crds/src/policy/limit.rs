//! A limit on the rate of requests.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::policy::{Algorithm, Enforcement, Key, Match, Mode, Rate};

/// A limit on the rate of requests: the requests that it applies to, how it identifies clients, and the
/// number of requests that it admits.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.algorithm) || has(self.algorithm.slidingWindowCounter) || self.rates.all(r, !has(r.subWindows))").message("subWindows is only allowed with slidingWindowCounter"))]
#[x_kube(validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.soft) || !has(self.algorithm) || has(self.algorithm.slidingWindowCounter) || has(self.algorithm.fixedWindow)").message("soft is only allowed with slidingWindowCounter and fixedWindow"))]
#[x_kube(validation = Rule::new("!has(self.enforcement) || !has(self.enforcement.elastic) || self.rates.size() == 1").message("elastic is only allowed with exactly one rate"))]
pub struct Limit {
    /// Name of the limit, unique in the policy, also among the names in `concurrency`. It identifies the
    /// limit in metrics, response headers and the store: under a new name, counting starts again from zero.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Mode of this limit. The description in the CRD is that of [`Mode`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Requests that the limit applies to: those that match at least one entry. Default: all requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub matches: Vec<Match>,
    /// Identifies the client that sent a request. Each client has a counter of its own. Default: all clients
    /// share one counter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// Numbers of requests that the limit admits. A request must pass all rates. Their periods must differ.
    #[schemars(length(min = 1, max = 8))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub rates: Vec<Rate>,
    /// Algorithm that counts requests. Default: slidingWindowCounter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<Algorithm>,
    /// Strictness with which the rates are enforced. Default: hard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enforcement: Option<Enforcement>,
}
