//! Limits on concurrent requests that each pod adjusts to its application.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::duration;

/// Algorithm that adjusts the limit. Exactly one field is required.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.aimd), has(self.vegas), has(self.gradient2)].filter(x, x).size() == 1").message("exactly one of aimd, vegas, gradient2 must be set"))]
pub struct Adaptive {
    /// Additive increase, multiplicative decrease: raises the limit a little while responses are fast, and
    /// lowers it by a tenth when they are slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aimd: Option<Aimd>,
    /// Estimates the number of requests that wait in the application from the response times, and keeps it
    /// low.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vegas: Option<Vegas>,
    /// Compares the current response time with the response time without a queue. The best choice for most
    /// applications.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gradient2: Option<Gradient2>,
}

/// Additive increase, multiplicative decrease.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minimum <= self.maximum && (!has(self.initial) || (self.minimum <= self.initial && self.initial <= self.maximum))").message("must have minimum <= initial <= maximum"))]
pub struct Aimd {
    /// Lowest limit, 1 to 1000000 concurrent requests in each pod.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub minimum: i64,
    /// Highest limit, 1 to 1000000 concurrent requests in each pod.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub maximum: i64,
    /// Limit before anything is measured. Default: 20, or the nearest number between minimum and maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub initial: Option<i64>,
    /// Increase of the response time over that without a queue, above which it counts as overload, 1 to 1000
    /// percent. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub tolerance_percent: Option<i64>,
    /// Response time that counts as overload in any case: a duration such as 500ms or 5s, at most 1h. It does
    /// not end the request. Default: 5s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub timeout: Option<String>,
}

/// Estimates the number of requests that wait in the application.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minimum <= self.maximum && (!has(self.initial) || (self.minimum <= self.initial && self.initial <= self.maximum))").message("must have minimum <= initial <= maximum"))]
pub struct Vegas {
    /// Lowest limit, 1 to 1000000 concurrent requests in each pod.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub minimum: i64,
    /// Highest limit, 1 to 1000000 concurrent requests in each pod.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub maximum: i64,
    /// Limit before anything is measured. Default: 20, or the nearest number between minimum and maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub initial: Option<i64>,
    /// Longest queue in the application before the limit is lowered, 1 to 100 percent of the limit. Default:
    /// 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub queue_percent: Option<i64>,
}

/// Compares the current response time with the response time without a queue.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minimum <= self.maximum && (!has(self.initial) || (self.minimum <= self.initial && self.initial <= self.maximum))").message("must have minimum <= initial <= maximum"))]
pub struct Gradient2 {
    /// Lowest limit, 1 to 1000000 concurrent requests in each pod.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub minimum: i64,
    /// Highest limit, 1 to 1000000 concurrent requests in each pod.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub maximum: i64,
    /// Limit before anything is measured. Default: 20, or the nearest number between minimum and maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub initial: Option<i64>,
    /// Increase of the response time over that without a queue that is tolerated before the limit is lowered,
    /// 0 to 900 percent. Default: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 900))]
    pub tolerance_percent: Option<i64>,
    /// Queue in the application that is allowed, 0 to 100 percent of the limit, but at least one request.
    /// Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub queue_percent: Option<i64>,
}
