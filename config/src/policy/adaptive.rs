//! Concurrency limits that each pod learns from its application.

use serde::{Deserialize, Serialize};
use sluice_limiter::adaptive::{self, Adaptive, AdaptiveAlgorithm, Bounds};

use crate::expression::Expression;
use crate::matches::Match;

/// A concurrency limit that each pod learns from its application.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompiledAdaptive {
    /// Lowest limit.
    pub minimum: u32,
    /// Limit before anything is measured.
    pub initial: u32,
    /// Highest limit.
    pub maximum: u32,
    /// Longest time, in milliseconds, for which a request whose client has left is in flight.
    pub abandoned_for_millis: u64,
    /// Algorithm that adjusts the limit.
    pub kind: AdaptiveKind,
    /// Classes of requests that have a reserve, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub priorities: Vec<Priority>,
}

/// Requests for which a part of an adaptive limit is reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Priority {
    /// Name of the priority, unique in the policy.
    pub name: String,
    /// Requests of the priority: those that match at least one entry; if empty, all. The first priority that matches decides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Condition that requests must fulfil too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Expression>,
    /// Part of the limit that no other requests use, in percent.
    pub reserve_percent: u32,
}

/// Maximum number of priorities.
pub const MAX_PRIORITIES: usize = 8;
/// Largest sum of all reserves, in percent.
pub const MAX_RESERVES: u32 = 90;

/// The algorithm of an adaptive limit. Parameters are whole percentages and milliseconds, so that equal
/// policies have equal JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum AdaptiveKind {
    /// Additive increase, multiplicative decrease.
    Aimd {
        /// Increase of the round trip above its baseline that means overload, in percent.
        tolerance_percent: u32,
        /// Round trip that means overload in any case, in milliseconds.
        timeout_millis: u64,
    },
    /// Estimates the queue in the application from round trips.
    Vegas {
        /// Longest queue, in percent of the limit.
        queue_percent: u32,
    },
    /// Follows the ratio of long-term to current round trips.
    Gradient2 {
        /// Increase of the round trip that is not overload yet, in percent.
        tolerance_percent: u32,
        /// Allowed queue, in percent of the limit.
        queue_percent: u32,
    },
}

impl CompiledAdaptive {
    /// Returns the limit in its initial state, before anything is measured.
    pub fn adaptive(&self) -> Result<Adaptive, adaptive::InvalidParameter> {
        let bounds = Bounds { minimum: self.minimum, maximum: self.maximum, initial: self.initial };
        Adaptive::new(self.kind.kind(), bounds)
    }
}

impl AdaptiveKind {
    fn kind(self) -> AdaptiveAlgorithm {
        let fraction = |percent: u32| f64::from(percent) / 100.0;
        match self {
            Self::Aimd { tolerance_percent, timeout_millis } => AdaptiveAlgorithm::Aimd(adaptive::Aimd {
                tolerance: 1.0 + fraction(tolerance_percent),
                timeout_us: timeout_millis.saturating_mul(1000),
                ..adaptive::Aimd::default()
            }),
            // The proportions of the limiter's defaults: fast growth up to 3/10 of the longest queue, growth
            // up to 6/10.
            Self::Vegas { queue_percent } => AdaptiveAlgorithm::Vegas(adaptive::Vegas {
                threshold: fraction(queue_percent) * 0.3,
                alpha: fraction(queue_percent) * 0.6,
                beta: fraction(queue_percent),
                ..adaptive::Vegas::default()
            }),
            Self::Gradient2 { tolerance_percent, queue_percent } => {
                AdaptiveAlgorithm::Gradient2(adaptive::Gradient2 {
                    tolerance: 1.0 + fraction(tolerance_percent),
                    queue: fraction(queue_percent),
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
        for (kind, expected) in [
            (
                AdaptiveKind::Aimd { tolerance_percent: 10, timeout_millis: 5000 },
                AdaptiveAlgorithm::Aimd(adaptive::Aimd::default()),
            ),
            (AdaptiveKind::Vegas { queue_percent: 10 }, AdaptiveAlgorithm::Vegas(adaptive::Vegas::default())),
            (
                AdaptiveKind::Gradient2 { tolerance_percent: 3, queue_percent: 5 },
                AdaptiveAlgorithm::Gradient2(adaptive::Gradient2::default()),
            ),
        ] {
            match (kind.kind(), expected) {
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
            let limit = CompiledAdaptive {
                minimum: 4,
                initial: 20,
                maximum: 400,
                abandoned_for_millis: 30_000,
                kind,
                priorities: Vec::new(),
            };
            assert_eq!(limit.adaptive().unwrap().limit(), 20);
        }
    }
}
