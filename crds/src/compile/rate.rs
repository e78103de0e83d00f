//! The rates of a limit, with their algorithm and enforcement.

use sluice_config::policy::{Alignment, Bound, Capacity, CompiledRate, Elastic, RateAlgorithm, Window};

use crate::duration;
use crate::policy as api;

/// Default `coldFactor`, the one of Guava's `SmoothWarmingUp`.
const COLD_FACTOR: u64 = 3;

/// Compiles one rate of a limit.
pub(crate) fn compile_rate(limit: &api::Limit, rate: &api::Rate) -> CompiledRate {
    let algorithm = compile_algorithm(limit, rate);
    let enforcement = limit.enforcement.as_ref();
    let soft = enforcement.and_then(|enforcement| enforcement.soft.as_ref());
    let elastic = enforcement.and_then(|enforcement| enforcement.elastic.as_ref());
    CompiledRate {
        requests: number(rate.requests),
        period_millis: millis(&rate.per),
        algorithm: match (algorithm, soft, elastic) {
            (Counting::Window(window), Some(soft), _) => RateAlgorithm::Soft {
                window,
                over_percent: number(soft.over_percent),
                for_millis: millis(&soft.duration),
            },
            (algorithm, _, Some(elastic)) => RateAlgorithm::Elastic(Box::new(Elastic {
                algorithm: algorithm.hard(),
                requests: number(elastic.requests),
                below_percent: number(elastic.utilization_below_percent),
                capacity: Capacity::InFlight(elastic.capacity.in_flight.map_or(1, number)),
            })),
            (algorithm, _, None) => algorithm.hard(),
        },
    }
}

/// The algorithm of a rate, apart from its enforcement.
enum Counting {
    Window(Window),
    Other(RateAlgorithm),
}

impl Counting {
    fn hard(self) -> RateAlgorithm {
        match self {
            Self::Window(window) => RateAlgorithm::window(window),
            Self::Other(algorithm) => algorithm,
        }
    }
}

fn compile_algorithm(limit: &api::Limit, rate: &api::Rate) -> Counting {
    let algorithm = limit.algorithm.clone().unwrap_or_default();
    if let Some(api::FixedWindow { alignment }) = algorithm.fixed_window {
        return Counting::Window(Window::FixedWindow {
            alignment: match alignment {
                api::Alignment::Clock => Alignment::Clock,
                api::Alignment::FirstRequest => Alignment::FirstRequest,
                api::Alignment::Spread => Alignment::Spread,
            },
        });
    }
    let other = if let Some(log) = algorithm.sliding_window_log {
        RateAlgorithm::SlidingWindowLog {
            min_interval_millis: log.min_interval.map_or(0, |interval| millis(&interval)),
            count_denied: log.count_denied,
        }
    } else if let Some(bucket) = algorithm.token_bucket {
        match bucket.warm_up {
            Some(warm_up) => RateAlgorithm::WarmUp {
                period_millis: millis(&warm_up.period),
                cold_factor: warm_up.cold_factor.map_or(COLD_FACTOR, number),
            },
            // A rate of 0 requests still needs a bucket for at least one token, which never fills.
            None => {
                RateAlgorithm::TokenBucket { burst: number(bucket.burst.unwrap_or(rate.requests)).max(1) }
            }
        }
    } else if let Some(gcra) = algorithm.gcra {
        RateAlgorithm::Gcra { burst: gcra.burst.map_or(1, number) }
    } else if let Some(bucket) = algorithm.leaky_bucket {
        RateAlgorithm::LeakyBucket { max_wait_millis: millis(&bucket.max_wait) }
    } else {
        let bound = match algorithm.sliding_window_counter.unwrap_or_default().bound {
            api::Bound::Estimate => Bound::Estimate,
            api::Bound::Guaranteed => Bound::Guaranteed,
        };
        let sub_windows = rate.sub_windows.map_or(1, number);
        return Counting::Window(Window::SlidingWindowCounter { sub_windows, bound });
    };
    Counting::Other(other)
}

/// Converts a number whose range was validated before.
fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Converts a duration that was validated before.
fn millis(text: &str) -> u64 {
    duration::period(text).map_or(1, sluice_limiter::Period::millis)
}
