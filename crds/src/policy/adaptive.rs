//! Limits on concurrent requests that each pod adjusts to its application.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::policy::{AdaptiveKind, CompiledAdaptive};

use crate::checks::field::Field;
use crate::duration;

/// Default of `initial`, unless the bounds exclude it.
const INITIAL: i64 = 20;
/// Largest `timeout`, in milliseconds.
const MAX_TIMEOUT_MILLIS: u64 = 3_600_000;
/// Default `timeout`, in milliseconds.
const TIMEOUT_MILLIS: u64 = 5000;

/// Algorithm that adjusts the limit. Exactly one field is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Adaptive {
    /// Additive increase, multiplicative decrease: raises the limit a little while responses are fast, and
    /// lowers it by a tenth when they are slow.
    Aimd(Aimd),
    /// Estimates the number of requests that wait in the application from the response times, and keeps it
    /// low.
    Vegas(Vegas),
    /// Compares the current response time with the response time without a queue. The best choice for most
    /// applications.
    Gradient2(Gradient2),
}

/// The range of a limit that is adjusted.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minimum <= self.maximum && (!has(self.initial) || (self.minimum <= self.initial && self.initial <= self.maximum))").message("must have minimum <= initial <= maximum"))]
pub struct Bounds {
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
}

/// Additive increase, multiplicative decrease.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Aimd {
    /// Range of the limit.
    #[serde(flatten)]
    pub bounds: Bounds,
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
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Vegas {
    /// Range of the limit.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// Longest queue in the application before the limit is lowered, 1 to 100 percent of the limit. Default:
    /// 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub queue_percent: Option<i64>,
}

/// Compares the current response time with the response time without a queue.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Gradient2 {
    /// Range of the limit.
    #[serde(flatten)]
    pub bounds: Bounds,
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

impl Adaptive {
    /// Compiles the limit and fills in its defaults.
    pub(crate) fn compile(&self, at: &Field<'_>, abandoned_for_millis: u64) -> Option<CompiledAdaptive> {
        let percent = |value: Option<i64>, default| value.map_or(default, number);
        let (at, bounds, kind) = match self {
            Self::Aimd(Aimd { bounds, tolerance_percent, timeout }) => {
                let at = at.at("aimd");
                let timeout_millis = match timeout {
                    Some(timeout) => at.at("timeout").millis(timeout, MAX_TIMEOUT_MILLIS)?,
                    None => TIMEOUT_MILLIS,
                };
                let tolerance_percent = percent(*tolerance_percent, 10);
                (at, bounds, AdaptiveKind::Aimd { tolerance_percent, timeout_millis })
            }
            Self::Vegas(Vegas { bounds, queue_percent }) => {
                (at.at("vegas"), bounds, AdaptiveKind::Vegas { queue_percent: percent(*queue_percent, 10) })
            }
            Self::Gradient2(Gradient2 { bounds, tolerance_percent, queue_percent }) => {
                let kind = AdaptiveKind::Gradient2 {
                    tolerance_percent: percent(*tolerance_percent, 3),
                    queue_percent: percent(*queue_percent, 5),
                };
                (at.at("gradient2"), bounds, kind)
            }
        };
        let Bounds { minimum, maximum, initial } = *bounds;
        let initial = initial.unwrap_or(INITIAL.min(maximum).max(minimum));
        let compiled = CompiledAdaptive {
            minimum: number(minimum),
            initial: number(initial),
            maximum: number(maximum),
            abandoned_for_millis,
            kind,
            priorities: Vec::new(),
        };
        // Sidecars call the same function and would nack the policy for the same reason.
        match compiled.adaptive() {
            Ok(_) => Some(compiled),
            Err(bad) => {
                let field = match bad.name {
                    "minimum" | "maximum" | "initial" => at.at(bad.name),
                    _ => at,
                };
                field.violation(format_args!(
                    "{} is out of range: {} to {} are allowed here",
                    bad.value, bad.min, bad.max
                ));
                None
            }
        }
    }
}

/// Converts a number whose range the schema has checked.
fn number(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}
