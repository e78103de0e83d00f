//! Limits of requests at a time, as they travel and made ready. They travel as limits whose only rate has an algorithm of
//! its own: a sidecar that does not know them refuses the policy instead of enforcing the rest of it.

use serde::{Deserialize, Serialize};
use sluice_limiter::MAX_CONCURRENT;
use sluice_limiter::adaptive::{self, Adaptive, AdaptiveAlgorithm, Bounds};
use sluice_limiter::{Period, Requests};

use crate::policy::{CompiledRate, RateAlgorithm};
use crate::prepared::Nack;

/// How long the places of a sidecar that has died stay taken, in milliseconds. One that lives says so three times in that
/// time; a store that is away for less loses no place.
pub const SLOT_LEASE_MILLIS: u64 = 30_000;

/// A limit of requests at a time that a pod learns from its application.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CompiledAdaptive {
    /// Never less.
    pub minimum: u32,
    /// Before anything is known.
    pub initial: u32,
    /// Never more.
    pub maximum: u32,
    /// How it learns.
    pub kind: AdaptiveKind,
}

/// How an adaptive limit learns. Percentages and milliseconds, so that equal policies have equal text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum AdaptiveKind {
    /// Additive increase, multiplicative decrease.
    Aimd {
        /// So many percent longer than without a queue is overload.
        tolerance_percent: u32,
        /// And so is a request that takes so long.
        timeout_millis: u64,
    },
    /// By the queue that the round trips tell of.
    Vegas {
        /// The longest queue, in percent of the limit.
        queue_percent: u32,
    },
    /// By the ratio of long-term to current round trips.
    Gradient2 {
        /// So many percent longer than without a queue is no overload yet.
        tolerance_percent: u32,
        /// The queue to allow, in percent of the limit.
        queue_percent: u32,
    },
}

/// A limit of requests at a time, ready.
#[derive(Debug, Clone, PartialEq)]
pub enum Concurrency {
    /// Of all pods together.
    Shared {
        /// How many, at most [`MAX_CONCURRENT`].
        max: Requests,
        /// How long places stay taken that nobody renews.
        hold: Period,
    },
    /// Of each pod by itself, as it is before anything is known.
    Adaptive(Box<Adaptive>),
}

impl CompiledAdaptive {
    /// The limit as it is before anything is known.
    pub fn adaptive(&self) -> Result<Adaptive, adaptive::InvalidParameter> {
        let bounds = Bounds { minimum: self.minimum, maximum: self.maximum, initial: self.initial };
        Adaptive::new(self.kind.kind(), bounds)
    }
}

impl AdaptiveKind {
    fn kind(self) -> AdaptiveAlgorithm {
        let share = |percent: u32| f64::from(percent) / 100.0;
        match self {
            Self::Aimd { tolerance_percent, timeout_millis } => AdaptiveAlgorithm::Aimd(adaptive::Aimd {
                tolerance: 1.0 + share(tolerance_percent),
                timeout_us: timeout_millis.saturating_mul(1000),
                ..adaptive::Aimd::default()
            }),
            // The default's proportions: it grows fast up to 3/10 of the longest queue, and up to 6/10 of it at all.
            Self::Vegas { queue_percent } => AdaptiveAlgorithm::Vegas(adaptive::Vegas {
                threshold: share(queue_percent) * 0.3,
                alpha: share(queue_percent) * 0.6,
                beta: share(queue_percent),
                ..adaptive::Vegas::default()
            }),
            Self::Gradient2 { tolerance_percent, queue_percent } => {
                AdaptiveAlgorithm::Gradient2(adaptive::Gradient2 {
                    tolerance: 1.0 + share(tolerance_percent),
                    queue: share(queue_percent),
                    ..adaptive::Gradient2::default()
                })
            }
        }
    }
}

impl Concurrency {
    /// What the rates of a limit say about requests at a time; `None`: nothing, they are rates.
    pub fn of(rates: &[CompiledRate]) -> Result<Option<Self>, Nack> {
        let is = |rate: &CompiledRate| {
            matches!(rate.algorithm, RateAlgorithm::Concurrency | RateAlgorithm::Adaptive(_))
        };
        match rates {
            [CompiledRate { requests, period_millis, algorithm: RateAlgorithm::Concurrency }] => {
                if *requests > MAX_CONCURRENT {
                    let message = format!("{requests} is out of range: 0 to {MAX_CONCURRENT} are allowed");
                    return Err(Nack(message));
                }
                let refuse = |error: sluice_limiter::OutOfRange| Nack(error.to_string());
                Ok(Some(Self::Shared {
                    max: Requests::new(*requests).map_err(refuse)?,
                    hold: Period::from_millis(*period_millis).map_err(refuse)?,
                }))
            }
            [CompiledRate { algorithm: RateAlgorithm::Adaptive(adaptive), .. }] => {
                let adaptive = adaptive.adaptive().map_err(|error| Nack(error.to_string()))?;
                Ok(Some(Self::Adaptive(Box::new(adaptive))))
            }
            rates if rates.iter().any(is) => {
                Err(Nack("a limit of requests at a time has nothing beside it".into()))
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PreparedPolicy;

    const GRADIENT2: AdaptiveKind = AdaptiveKind::Gradient2 { tolerance_percent: 3, queue_percent: 5 };

    fn shared(requests: u64) -> CompiledRate {
        CompiledRate { requests, period_millis: SLOT_LEASE_MILLIS, algorithm: RateAlgorithm::Concurrency }
    }

    fn adaptive(minimum: u32, initial: u32, maximum: u32, kind: AdaptiveKind) -> CompiledRate {
        let adaptive = CompiledAdaptive { minimum, initial, maximum, kind };
        let algorithm = RateAlgorithm::Adaptive(Box::new(adaptive));
        CompiledRate { requests: u64::from(maximum), period_millis: 1, algorithm }
    }

    fn policy(rates: &[CompiledRate]) -> String {
        format!(
            r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Allow",
            "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared","rates":{}}}]}}"#,
            serde_json::to_string(rates).unwrap()
        )
    }

    #[test]
    fn they_travel_as_kinds_that_an_older_sidecar_refuses() {
        let json = |rate: &CompiledRate| serde_json::to_string(&rate.algorithm).unwrap();
        assert_eq!(json(&shared(5)), r#""concurrency""#);
        assert_eq!(
            json(&adaptive(1, 2, 3, GRADIENT2)),
            r#"{"adaptive":{"minimum":1,"initial":2,"maximum":3,"kind":{"gradient2":{"tolerancePercent":3,"queuePercent":5}}}}"#
        );
        // The release before knew windows, logs and buckets.
        #[derive(Debug, Deserialize)]
        #[serde(rename_all = "camelCase")]
        enum Before {
            SlidingWindowCounter,
            FixedWindow,
            TokenBucket {},
        }
        for rate in [shared(5), adaptive(1, 2, 3, GRADIENT2)] {
            assert!(serde_json::from_str::<Before>(&json(&rate)).is_err());
        }
        let known = [r#""slidingWindowCounter""#, r#""fixedWindow""#, r#"{"tokenBucket":{}}"#];
        assert!(known.iter().all(|json| serde_json::from_str::<Before>(json).is_ok()));
    }

    #[test]
    fn they_are_made_ready_and_have_no_rates() {
        let policy = PreparedPolicy::from_json(&policy(&[shared(5)])).unwrap();
        let limit = &policy.limits[0];
        let Some(Concurrency::Shared { max, hold }) = &limit.concurrency else {
            panic!("{limit:?}");
        };
        assert_eq!((max.get(), hold.millis(), limit.rates.len()), (5, SLOT_LEASE_MILLIS, 0));
    }

    #[test]
    fn the_defaults_are_those_of_the_limiter() {
        for (kind, expected) in [
            (
                AdaptiveKind::Aimd { tolerance_percent: 10, timeout_millis: 5000 },
                AdaptiveAlgorithm::Aimd(adaptive::Aimd::default()),
            ),
            (AdaptiveKind::Vegas { queue_percent: 10 }, AdaptiveAlgorithm::Vegas(adaptive::Vegas::default())),
            (GRADIENT2, AdaptiveAlgorithm::Gradient2(adaptive::Gradient2::default())),
        ] {
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
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
                (made, expected) => panic!("{made:?} is not {expected:?}"),
            }
            let json = policy(&[adaptive(4, 20, 400, kind)]);
            let policy = PreparedPolicy::from_json(&json).unwrap();
            let Some(Concurrency::Adaptive(adaptive)) = &policy.limits[0].concurrency else {
                panic!("{policy:?}");
            };
            assert_eq!(adaptive.limit(), 20);
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_place() {
        let rate = CompiledRate { requests: 1, period_millis: 1000, algorithm: RateAlgorithm::FixedWindow };
        let narrow = AdaptiveKind::Vegas { queue_percent: 0 };
        for (rates, word) in [
            (vec![shared(1_000_001)], "out of range"),
            (vec![shared(5), rate], "nothing beside it"),
            (vec![adaptive(5, 4, 9, GRADIENT2)], "initial is 4"),
            (vec![adaptive(5, 9, 4, GRADIENT2)], "maximum is 4"),
            (vec![adaptive(1, 2, 3, narrow)], "beta is 0"),
        ] {
            let refusal = PreparedPolicy::from_json(&policy(&rates)).unwrap_err();
            assert!(refusal.0.starts_with("limit l: ") && refusal.0.contains(word), "{refusal}");
        }
    }
}
