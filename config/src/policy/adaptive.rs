//! Concurrency limits that each pod learns from its application.

use serde::{Deserialize, Serialize};
use sluice_limiter::adaptive;
use sluice_limiter::adaptive::AdaptiveAlgorithm;

use crate::duration::Duration;
use crate::matches::Match;
#[cfg(feature = "schema")]
use crate::schema::NAME;

/// Default of `initial`, unless the bounds exclude it.
const INITIAL: u32 = 20;
/// Default `timeout`.
const TIMEOUT: Duration = Duration::from_millis(5000);

/// A concurrency limit that each pod learns from its application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AdaptiveLimit {
    /// The range of the limit, and the algorithm that adjusts it.
    #[serde(flatten)]
    pub adaptive: Adaptive,
    /// Longest time, in milliseconds, for which a request whose client has left is in flight.
    pub abandoned_for_millis: u64,
    /// Classes of requests that have a reserve, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priorities: Vec<Priority>,
}

/// Algorithm that adjusts the limit. Exactly one field is required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{"rule": "self.minimum <= self.maximum && (!has(self.initial) || (self.minimum <= self.initial && self.initial <= self.maximum))", "message": "must have minimum <= initial <= maximum"}])))]
#[serde(rename_all = "camelCase")]
pub struct Bounds {
    /// Lowest limit, 1 to 1000000 concurrent requests in each pod.
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 1_000_000)))]
    pub minimum: u32,
    /// Highest limit, 1 to 1000000 concurrent requests in each pod.
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 1_000_000)))]
    pub maximum: u32,
    /// Limit before anything is measured. Default: 20, or the nearest number between minimum and maximum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 1_000_000)))]
    pub initial: Option<u32>,
}

/// Additive increase, multiplicative decrease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Aimd {
    /// Range of the limit.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// Increase of the response time over that without a queue, above which it counts as overload, 1 to 1000
    /// percent. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 1000)))]
    pub tolerance_percent: Option<u32>,
    /// Response time that counts as overload in any case: a duration such as 500ms or 5s, at most 1h. It does
    /// not end the request. Default: 5s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
}

/// Estimates the number of requests that wait in the application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Vegas {
    /// Range of the limit.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// Longest queue in the application before the limit is lowered, 1 to 100 percent of the limit. Default:
    /// 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 100)))]
    pub queue_percent: Option<u32>,
}

/// Compares the current response time with the response time without a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Gradient2 {
    /// Range of the limit.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// Increase of the response time over that without a queue that is tolerated before the limit is lowered,
    /// 0 to 900 percent. Default: 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 0, max = 900)))]
    pub tolerance_percent: Option<u32>,
    /// Queue in the application that is allowed, 0 to 100 percent of the limit, but at least one request.
    /// Default: 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 0, max = 100)))]
    pub queue_percent: Option<u32>,
}

/// Requests for which each adaptive limit of the policy keeps a part in reserve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("x-kubernetes-validations" = [{"rule": "has(self.matches) || has(self.when)", "message": "at least one of matches, when must be set"}])))]
#[serde(rename_all = "camelCase")]
pub struct Priority {
    /// Name of the priority, unique in the policy.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63), regex(pattern = NAME)))]
    pub name: String,
    /// Requests of the priority: those that match at least one entry. If a path can be read in several ways, each
    /// reading must match. At least one of `matches` and `when` is required.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 8)))]
    pub matches: Vec<Match>,
    /// Condition in CEL that requests of the priority must also meet. Put it in single quotes. After an error a request does
    /// not have the priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
    pub when: Option<String>,
    /// Part of each adaptive limit that is kept for requests of this priority, 1 to 90 percent, rounded up. All reserves
    /// together are at most 90. Requests of the priority also use what is not reserved.
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 90)))]
    pub reserve_percent: u32,
}

/// Maximum number of priorities.
pub const MAX_PRIORITIES: usize = 8;
/// Largest sum of all reserves, in percent.
pub const MAX_RESERVES: u32 = 90;

impl Adaptive {
    /// Returns the name of the algorithm.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Aimd(_) => "aimd",
            Self::Vegas(_) => "vegas",
            Self::Gradient2(_) => "gradient2",
        }
    }

    /// Returns the range of the limit.
    #[must_use]
    pub fn bounds(&self) -> Bounds {
        match self {
            Self::Aimd(Aimd { bounds, .. })
            | Self::Vegas(Vegas { bounds, .. })
            | Self::Gradient2(Gradient2 { bounds, .. }) => *bounds,
        }
    }

    /// Returns the limit in its initial state, before anything is measured.
    pub fn prepare(&self) -> Result<adaptive::Adaptive, adaptive::InvalidParameter> {
        let Bounds { minimum, maximum, initial } = self.bounds();
        let initial = initial.unwrap_or(INITIAL.min(maximum).max(minimum));
        adaptive::Adaptive::new(self.algorithm(), adaptive::Bounds { minimum, maximum, initial })
    }

    fn algorithm(&self) -> AdaptiveAlgorithm {
        let fraction = |percent: Option<u32>, default| f64::from(percent.unwrap_or(default)) / 100.0;
        match *self {
            Self::Aimd(Aimd { tolerance_percent, timeout, .. }) => AdaptiveAlgorithm::Aimd(adaptive::Aimd {
                tolerance: 1.0 + fraction(tolerance_percent, 10),
                timeout_us: timeout.unwrap_or(TIMEOUT).millis().saturating_mul(1000),
                ..adaptive::Aimd::default()
            }),
            // The proportions of the limiter's defaults: fast growth up to 3/10 of the longest queue, growth
            // up to 6/10.
            Self::Vegas(Vegas { queue_percent, .. }) => AdaptiveAlgorithm::Vegas(adaptive::Vegas {
                threshold: fraction(queue_percent, 10) * 0.3,
                alpha: fraction(queue_percent, 10) * 0.6,
                beta: fraction(queue_percent, 10),
                ..adaptive::Vegas::default()
            }),
            Self::Gradient2(Gradient2 { tolerance_percent, queue_percent, .. }) => {
                AdaptiveAlgorithm::Gradient2(adaptive::Gradient2 {
                    tolerance: 1.0 + fraction(tolerance_percent, 3),
                    queue: fraction(queue_percent, 5),
                    ..adaptive::Gradient2::default()
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_of_the_api_are_those_of_the_limiter() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        let bounds = Bounds { minimum: 4, maximum: 400, initial: None };
        for (limit, expected) in [
            (
                Adaptive::Aimd(Aimd { bounds, tolerance_percent: None, timeout: None }),
                AdaptiveAlgorithm::Aimd(adaptive::Aimd::default()),
            ),
            (
                Adaptive::Vegas(Vegas { bounds, queue_percent: None }),
                AdaptiveAlgorithm::Vegas(adaptive::Vegas::default()),
            ),
            (
                Adaptive::Gradient2(Gradient2 { bounds, tolerance_percent: None, queue_percent: None }),
                AdaptiveAlgorithm::Gradient2(adaptive::Gradient2::default()),
            ),
        ] {
            match (limit.algorithm(), expected) {
                (AdaptiveAlgorithm::Aimd(a), AdaptiveAlgorithm::Aimd(b)) => {
                    assert!(near(a.tolerance, b.tolerance) && a.timeout_us == b.timeout_us);
                }
                (AdaptiveAlgorithm::Vegas(a), AdaptiveAlgorithm::Vegas(b)) => {
                    assert!(near(a.threshold, b.threshold) && near(a.alpha, b.alpha) && near(a.beta, b.beta));
                }
                (AdaptiveAlgorithm::Gradient2(a), AdaptiveAlgorithm::Gradient2(b)) => {
                    assert!(near(a.tolerance, b.tolerance) && near(a.queue, b.queue));
                }
                (built, expected) => panic!("{built:?} is not {expected:?}"),
            }
            assert_eq!(limit.prepare().unwrap().limit(), 20);
        }
    }
}
