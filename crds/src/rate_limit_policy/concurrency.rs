//! `spec.concurrency`: how many requests at a time.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{Key, Match, Mode};
use crate::duration;

/// So many requests at a time: its name and exactly one of max and adaptive.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.max), has(self.adaptive)].filter(x, x).size() == 1").message("exactly one of max, adaptive is needed"))]
#[x_kube(validation = Rule::new("!(has(self.adaptive) && has(self.key))").message("an adaptive limit has no key: it is the pod's"))]
pub struct Concurrency {
    /// Its name, unique in this policy, also among the names of limits. Metrics carry it.
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Overrides the policy's mode for this limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Which requests: those that any entry matches. Absent: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub matches: Vec<Match>,
    /// How clients are told apart: each has max places of its own. Absent: all share them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Key>,
    /// How many requests may be under way at a time in all pods together, from admission to the end of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max: Option<i64>,
    /// As many as this pod finds that its application bears, by how long it takes to answer. Each pod has its own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<Adaptive>,
}

/// How a pod learns what its application bears: exactly one of its fields.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.aimd), has(self.vegas), has(self.gradient2)].filter(x, x).size() == 1").message("exactly one of aimd, vegas, gradient2 is needed"))]
pub struct Adaptive {
    /// Additive increase, multiplicative decrease: a little more while answers are quick, a tenth less when they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aimd: Option<Aimd>,
    /// By the number of requests that wait in the application, as the times to answer tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vegas: Option<Vegas>,
    /// By the ratio of the time to answer without a queue to the current one. The usual choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient2: Option<Gradient2>,
}

/// Additive increase, multiplicative decrease.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minimum <= self.maximum && (!has(self.initial) || (self.minimum <= self.initial && self.initial <= self.maximum))").message("minimum <= initial <= maximum is needed"))]
pub struct Aimd {
    /// Never fewer requests at a time.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub minimum: i64,
    /// Never more.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub maximum: i64,
    /// The number before anything is known. Default 20, within minimum and maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub initial: Option<i64>,
    /// Answers that take so many percent longer than without a queue mean overload. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub tolerance_percent: Option<i64>,
    /// An answer that takes longer than this means overload, whatever else: a duration such as 500ms or 5s, up to 1h.
    /// Default 5s. It ends no request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub timeout: Option<String>,
}

/// By the number of requests that wait in the application.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minimum <= self.maximum && (!has(self.initial) || (self.minimum <= self.initial && self.initial <= self.maximum))").message("minimum <= initial <= maximum is needed"))]
pub struct Vegas {
    /// Never fewer requests at a time.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub minimum: i64,
    /// Never more.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub maximum: i64,
    /// The number before anything is known. Default 20, within minimum and maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub initial: Option<i64>,
    /// The longest queue in the application to bear, in percent of the limit. Default 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub queue_percent: Option<i64>,
}

/// By the ratio of the time to answer without a queue to the current one.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minimum <= self.maximum && (!has(self.initial) || (self.minimum <= self.initial && self.initial <= self.maximum))").message("minimum <= initial <= maximum is needed"))]
pub struct Gradient2 {
    /// Never fewer requests at a time.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub minimum: i64,
    /// Never more.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub maximum: i64,
    /// The number before anything is known. Default 20, within minimum and maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub initial: Option<i64>,
    /// Answers that take so many percent longer than without a queue are no reason yet to lower the limit. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 900))]
    pub tolerance_percent: Option<i64>,
    /// The queue in the application to allow, in percent of the limit, at least one request. Default 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub queue_percent: Option<i64>,
}
