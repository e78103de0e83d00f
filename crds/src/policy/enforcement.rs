//! Hard, soft and elastic enforcement of rates.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration;

/// Strictness with which the rates are enforced. Exactly one field is required.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.hard), has(self.soft), has(self.elastic)].filter(x, x).size() == 1").message("exactly one of hard, soft, elastic must be set"))]
pub struct Enforcement {
    /// Admits no more than the rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard: Option<Hard>,
    /// Admits more than the rates for some time; only for slidingWindowCounter and fixedWindow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft: Option<Soft>,
    /// Admits more requests in a pod while that pod has spare capacity; only for a limit with exactly one
    /// rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Elastic>,
}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Hard {}

/// Additional requests for some time.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Soft {
    /// Number of additional requests, 1 to 1000 percent of the rate, rounded down.
    #[schemars(range(min = 1, max = 1000))]
    pub over_percent: i64,
    /// Time for which additional requests are admitted, beginning with the first: a duration from 1ms to
    /// 8784h. They are available again one whole period after the window of the last additional request.
    #[serde(rename = "for")]
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub duration: String,
}

/// A higher number of requests while the pod has spare capacity.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Elastic {
    /// Number of requests per period of the rate while the pod has spare capacity. Must be higher than the
    /// rate's own number.
    #[schemars(range(min = 1, max = 1_099_511_627_776i64))]
    pub requests: i64,
    /// Percentage of its capacity below which a pod has spare capacity, 1 to 100, measured over the last
    /// second.
    #[schemars(range(min = 1, max = 100))]
    pub utilization_below_percent: i64,
    /// Capacity of a pod, 100 percent of utilization.
    pub capacity: Capacity,
}

/// The capacity of a pod. Exactly one field is required.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.inFlight)].filter(x, x).size() == 1").message("inFlight must be set"))]
pub struct Capacity {
    /// Number of requests that the application of a pod can process at the same time, 1 to 1000000. A request
    /// is in flight from the moment when it is forwarded until its response is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub in_flight: Option<i64>,
}
