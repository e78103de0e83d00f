//! A compiled rate as it travels, and the limiter's rate that it means.
//!
//! The first release knows two algorithms, by their bare names. Whatever it would do otherwise has a kind that it does not
//! know, so that it refuses the policy instead of enforcing another one; and within a kind no field is ignored.

use serde::{Deserialize, Serialize};
use sluice_limiter as limiter;
use sluice_limiter::{Burst, MaxWait, OutOfRange, Period, Rate, RateError, Requests, SubWindows, WarmUp};

use crate::concurrency::CompiledAdaptive;

/// A rate, compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompiledRate {
    /// How many.
    pub requests: u64,
    /// Per how many milliseconds.
    pub period_millis: u64,
    /// Counted how, and enforced how.
    pub algorithm: RateAlgorithm,
}

/// How a rate counts, and how strictly it is meant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum RateAlgorithm {
    /// Two windows, the previous one by its share.
    SlidingWindowCounter,
    /// Windows aligned to the clock.
    FixedWindow,
    /// Any other window; made by [`RateAlgorithm::window`].
    Window(Window),
    /// A window with an extra for some time.
    Soft {
        /// The window.
        window: Window,
        /// How many percent more.
        over_percent: u64,
        /// For how many milliseconds.
        for_millis: u64,
    },
    /// Every request by its instant.
    SlidingWindowLog {
        /// Least time between two admitted requests in milliseconds; 0: none.
        min_interval_millis: u64,
        /// Whether denied requests count.
        count_denied: bool,
    },
    /// A bucket that fills with constant speed.
    TokenBucket {
        /// How much it holds.
        burst: u64,
    },
    /// The same, that has to warm up.
    WarmUp {
        /// For how many milliseconds.
        period_millis: u64,
        /// How many times dearer a cold request is.
        cold_factor: u64,
    },
    /// The generic cell rate algorithm.
    Gcra {
        /// How many requests may come at once.
        burst: u64,
    },
    /// A queue with a constant outflow.
    LeakyBucket {
        /// The longest wait in milliseconds.
        max_wait_millis: u64,
    },
    /// A higher number while there is capacity to spare.
    Elastic(Box<Elastic>),
    /// So many at a time, over all pods; the period is how long places stay taken that nobody renews.
    Concurrency,
    /// So many at a time as the pod finds that its application bears.
    Adaptive(Box<CompiledAdaptive>),
}

/// A window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum Window {
    /// One that slides.
    SlidingWindowCounter {
        /// Into how many sub-windows the period is cut.
        sub_windows: u64,
        /// What counts of the oldest one.
        bound: Bound,
    },
    /// One after another.
    FixedWindow {
        /// When they begin.
        alignment: Alignment,
    },
}

/// What a sliding window supposes about its oldest sub-window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Bound {
    /// That it was used evenly.
    Estimate,
    /// Nothing: all of it counts.
    Guaranteed,
}

/// When fixed windows begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Alignment {
    /// At multiples of the period since the Unix epoch.
    Clock,
    /// At the first request that is admitted.
    FirstRequest,
    /// As `Clock`, moved for each key.
    Spread,
}

/// A higher number while there is capacity to spare.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Elastic {
    /// How the rate counts, with either number.
    pub algorithm: RateAlgorithm,
    /// The higher number.
    pub requests: u64,
    /// It holds while less than so many percent of the capacity are used.
    pub below_percent: u64,
    /// What 100 % are.
    pub capacity: Capacity,
}

/// What 100 % of a pod's utilization are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Capacity {
    /// So many requests in flight.
    InFlight(u64),
}

/// Why a compiled rate is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRate {
    /// A number by itself.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// Numbers that cannot be a rate together.
    #[error(transparent)]
    Together(#[from] RateError),
    /// An elastic rate within another.
    #[error("an elastic rate cannot be elastic once more")]
    TwiceElastic,
    /// A limit of requests at a time: [`crate::concurrency`].
    #[error("so many requests at a time are no rate")]
    AtATime,
}

impl RateAlgorithm {
    /// A window that is hard. The two that the first release knows go by its names, whoever asks for them.
    #[must_use]
    pub fn window(window: Window) -> Self {
        match window {
            Window::SlidingWindowCounter { sub_windows: 1, bound: Bound::Estimate } => {
                Self::SlidingWindowCounter
            }
            Window::FixedWindow { alignment: Alignment::Clock } => Self::FixedWindow,
            other => Self::Window(other),
        }
    }
}

impl Window {
    fn algorithm(self) -> Result<limiter::Algorithm, OutOfRange> {
        Ok(match self {
            Self::SlidingWindowCounter { sub_windows, bound } => limiter::Algorithm::SlidingWindowCounter {
                sub_windows: SubWindows::new(sub_windows)?,
                bound: match bound {
                    Bound::Estimate => limiter::Bound::Estimate,
                    Bound::Guaranteed => limiter::Bound::Guaranteed,
                },
            },
            Self::FixedWindow { alignment } => limiter::Algorithm::FixedWindow(match alignment {
                Alignment::Clock => limiter::Alignment::Clock,
                Alignment::FirstRequest => limiter::Alignment::FirstRequest,
                Alignment::Spread => limiter::Alignment::Spread,
            }),
        })
    }
}

impl CompiledRate {
    /// The limiter's rate: of an elastic one that with the lower number.
    pub fn rate(&self) -> Result<Rate, InvalidRate> {
        match &self.algorithm {
            RateAlgorithm::Elastic(elastic) => self.counted(self.requests, &elastic.algorithm),
            algorithm => self.counted(self.requests, algorithm),
        }
    }

    /// Of an elastic rate that with the higher number, and when it holds.
    pub fn raised(&self) -> Result<Option<(Rate, &Elastic)>, InvalidRate> {
        let RateAlgorithm::Elastic(elastic) = &self.algorithm else { return Ok(None) };
        Ok(Some((self.counted(elastic.requests, &elastic.algorithm)?, elastic)))
    }

    fn counted(&self, requests: u64, compiled: &RateAlgorithm) -> Result<Rate, InvalidRate> {
        use limiter::Algorithm;
        let algorithm = match *compiled {
            RateAlgorithm::SlidingWindowCounter => Algorithm::SLIDING_WINDOW,
            RateAlgorithm::FixedWindow => Algorithm::FIXED_WINDOW,
            RateAlgorithm::Window(window) | RateAlgorithm::Soft { window, .. } => window.algorithm()?,
            RateAlgorithm::SlidingWindowLog { min_interval_millis: min_interval, count_denied } => {
                Algorithm::SlidingWindowLog { min_interval, count_denied }
            }
            RateAlgorithm::TokenBucket { burst } => Algorithm::TokenBucket { burst: Burst::new(burst)? },
            RateAlgorithm::Gcra { burst } => Algorithm::Gcra { burst: Burst::new(burst)? },
            RateAlgorithm::WarmUp { period_millis, cold_factor } => {
                Algorithm::WarmUp(WarmUp::new(period_millis, cold_factor)?)
            }
            RateAlgorithm::LeakyBucket { max_wait_millis } => {
                Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(max_wait_millis)? }
            }
            RateAlgorithm::Elastic(_) => return Err(InvalidRate::TwiceElastic),
            RateAlgorithm::Concurrency | RateAlgorithm::Adaptive(_) => return Err(InvalidRate::AtATime),
        };
        let (requests, period) = (Requests::new(requests)?, Period::from_millis(self.period_millis)?);
        let hard = Rate::new(requests, period, algorithm)?;
        match *compiled {
            RateAlgorithm::Soft { over_percent, for_millis, .. } => {
                Ok(hard.with_soft(limiter::Soft::new(over_percent, for_millis)?)?)
            }
            _ => Ok(hard),
        }
    }
}

/// The shortest time for which quota is taken in advance, in microseconds.
const SHORTEST_LEASE: u64 = 50_000;

/// Whether quota of a limit with these rates can be taken in blocks: of windows whose sub_windows are 50 ms long or longer, and
/// of buckets that fill slowly enough. The store decides it by the same numbers.
#[must_use]
pub fn can_be_leased(rates: &[Rate]) -> bool {
    let lasts = |rate: &Rate| match rate.algorithm {
        limiter::Algorithm::SlidingWindowCounter { .. } | limiter::Algorithm::FixedWindow(_) => {
            rate.tag().window_millis() * 1000
        }
        limiter::Algorithm::TokenBucket { burst } | limiter::Algorithm::Gcra { burst } => {
            let period = rate.period.micros();
            let fills = period as f64 * (burst.get() as f64 / rate.requests.get().max(1) as f64);
            (period / 20).min(fills as u64 / 4)
        }
        _ => 0,
    };
    !rates.is_empty() && rates.iter().all(|rate| rate.soft.is_none() && lasts(rate) >= SHORTEST_LEASE)
}

/// Of fewer requests at once there is little to lease: a pod whose part of the number is below 20 takes nothing in advance,
/// so that a few pods which ask for the same client ask about nearly each request.
pub const MIN_LEASED_REQUESTS: u64 = 50;

/// Of a limit that can be leased the rate that leaves little to lease, and how many requests it admits at once: the
/// smallest, where that is below [`MIN_LEASED_REQUESTS`].
#[must_use]
pub fn too_small_to_lease(rates: &[Rate]) -> Option<(usize, u64)> {
    let at_once = |rate: &Rate| match rate.algorithm {
        limiter::Algorithm::TokenBucket { burst } | limiter::Algorithm::Gcra { burst } => burst.get(),
        _ => rate.requests.get(),
    };
    let smallest = rates.iter().map(at_once).enumerate().min_by_key(|&(_, number)| number);
    smallest.filter(|&(_, number)| can_be_leased(rates) && number < MIN_LEASED_REQUESTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The algorithms of the first release, as it read them.
    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum First {
        SlidingWindowCounter,
        FixedWindow,
    }

    fn every() -> Vec<(RateAlgorithm, &'static str)> {
        let sub_windows = Window::SlidingWindowCounter { sub_windows: 60, bound: Bound::Guaranteed };
        let first = Window::FixedWindow { alignment: Alignment::FirstRequest };
        let elastic = Elastic {
            algorithm: RateAlgorithm::FixedWindow,
            requests: 9,
            below_percent: 70,
            capacity: Capacity::InFlight(100),
        };
        vec![
            (RateAlgorithm::SlidingWindowCounter, r#""slidingWindowCounter""#),
            (RateAlgorithm::FixedWindow, r#""fixedWindow""#),
            (
                RateAlgorithm::window(sub_windows),
                r#"{"window":{"slidingWindowCounter":{"subWindows":60,"bound":"Guaranteed"}}}"#,
            ),
            (RateAlgorithm::window(first), r#"{"window":{"fixedWindow":{"alignment":"FirstRequest"}}}"#),
            (
                RateAlgorithm::Soft { window: first, over_percent: 20, for_millis: 30_000 },
                r#"{"soft":{"window":{"fixedWindow":{"alignment":"FirstRequest"}},"overPercent":20,"forMillis":30000}}"#,
            ),
            (
                RateAlgorithm::SlidingWindowLog { min_interval_millis: 5, count_denied: true },
                r#"{"slidingWindowLog":{"minIntervalMillis":5,"countDenied":true}}"#,
            ),
            (RateAlgorithm::TokenBucket { burst: 4 }, r#"{"tokenBucket":{"burst":4}}"#),
            (
                RateAlgorithm::WarmUp { period_millis: 1000, cold_factor: 3 },
                r#"{"warmUp":{"periodMillis":1000,"coldFactor":3}}"#,
            ),
            (RateAlgorithm::Gcra { burst: 1 }, r#"{"gcra":{"burst":1}}"#),
            (
                RateAlgorithm::LeakyBucket { max_wait_millis: 2000 },
                r#"{"leakyBucket":{"maxWaitMillis":2000}}"#,
            ),
            (
                RateAlgorithm::Elastic(Box::new(elastic)),
                r#"{"elastic":{"algorithm":"fixedWindow","requests":9,"belowPercent":70,"capacity":{"inFlight":100}}}"#,
            ),
        ]
    }

    #[test]
    fn the_first_release_reads_its_own_algorithms_and_refuses_all_others() {
        for (algorithm, json) in every() {
            assert_eq!(serde_json::to_string(&algorithm).unwrap(), json);
            assert_eq!(serde_json::from_str::<RateAlgorithm>(json).unwrap(), algorithm);
            let known = matches!(algorithm, RateAlgorithm::SlidingWindowCounter | RateAlgorithm::FixedWindow);
            assert_eq!(serde_json::from_str::<First>(json).is_ok(), known, "{json}");
        }
        assert_eq!(serde_json::from_str::<First>(r#""fixedWindow""#).unwrap(), First::FixedWindow);
    }

    #[test]
    fn what_the_first_release_knows_keeps_its_name() {
        let sub_windows =
            |sub_windows, bound| RateAlgorithm::window(Window::SlidingWindowCounter { sub_windows, bound });
        assert_eq!(sub_windows(1, Bound::Estimate), RateAlgorithm::SlidingWindowCounter);
        assert_ne!(sub_windows(1, Bound::Guaranteed), RateAlgorithm::SlidingWindowCounter);
        assert_ne!(sub_windows(2, Bound::Estimate), RateAlgorithm::SlidingWindowCounter);
        assert_eq!(
            RateAlgorithm::window(Window::FixedWindow { alignment: Alignment::Clock }),
            RateAlgorithm::FixedWindow
        );
    }

    #[test]
    fn a_field_that_a_later_release_adds_to_an_algorithm_is_refused() {
        for (_, json) in every().into_iter().skip(2) {
            // A field at the end of the innermost object, and one at the end of the outer.
            let inner = json.strip_suffix("}}").unwrap().to_owned();
            for later in [format!(r#"{inner},"later":1}}}}"#), json.replace(":{", r#":{"later":1,"#)] {
                assert!(serde_json::from_str::<RateAlgorithm>(&later).is_err(), "{later}");
            }
        }
    }

    #[test]
    fn every_algorithm_becomes_a_rate() {
        let rate = |algorithm| CompiledRate { requests: 6, period_millis: 60_000, algorithm };
        for (algorithm, json) in every() {
            let compiled = rate(algorithm);
            let made = compiled.rate().unwrap();
            assert_eq!((made.requests.get(), made.period.millis()), (6, 60_000), "{json}");
            assert_eq!(made.soft.is_some(), json.contains("soft"), "{json}");
            assert_eq!(compiled.raised().unwrap().is_some(), json.contains("elastic"), "{json}");
        }
        let (raised, _) =
            rate(every().pop().unwrap().0).raised().unwrap().map(|(r, e)| (r, e.below_percent)).unwrap();
        assert_eq!(raised.requests.get(), 9);
        assert_eq!(
            raised.tag(),
            rate(RateAlgorithm::FixedWindow).rate().unwrap().tag(),
            "both share their counts"
        );
    }

    #[test]
    fn numbers_that_are_no_rate_are_refused() {
        let soft_log = RateAlgorithm::SlidingWindowLog { min_interval_millis: 70_000, count_denied: false };
        let elastic = |algorithm| {
            let capacity = Capacity::InFlight(1);
            RateAlgorithm::Elastic(Box::new(Elastic { algorithm, requests: 9, below_percent: 1, capacity }))
        };
        for (algorithm, word) in [
            (
                RateAlgorithm::Window(Window::SlidingWindowCounter {
                    sub_windows: 7,
                    bound: Bound::Estimate,
                }),
                "7 sub-windows",
            ),
            (
                RateAlgorithm::Window(Window::SlidingWindowCounter {
                    sub_windows: 61,
                    bound: Bound::Estimate,
                }),
                "out of range",
            ),
            (soft_log, "longer than the period"),
            (RateAlgorithm::TokenBucket { burst: 0 }, "out of range"),
            (RateAlgorithm::Gcra { burst: 1 << 40 }, "longer than 8784 hours"),
            (RateAlgorithm::WarmUp { period_millis: 3_600_001, cold_factor: 3 }, "out of range"),
            (elastic(elastic(RateAlgorithm::FixedWindow)), "once more"),
        ] {
            let error = CompiledRate { requests: 6, period_millis: 60_000, algorithm }.rate().unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}
