//! How a limit counts: its rates, their algorithm and their enforcement, each by itself and all together.

use sluice_config::rate::InvalidRate;
use sluice_limiter::MAX_WARM_UP_MS;
use sluice_limiter::{MAX_PERIOD_MS, RateError};

use super::Found;
use crate::rate_limit_policy::{
    Algorithm, Capacity, Elastic, Enforcement, LeakyBucket, Limit, Rate, SlidingWindowLog, Soft, TokenBucket,
};
use crate::{compile, duration};

/// The longest wait of a leaky bucket. No client waits longer.
const MAX_WAIT_MS: u64 = 3_600_000;

impl Found {
    /// Everything between a limit's rates and its enforcement.
    pub(super) fn counting(&mut self, path: &str, limit: &Limit) {
        let before = self.violations.len();
        self.rates(path, &limit.rates);
        self.algorithm(&format!("{path}.algorithm"), limit.algorithm.as_ref());
        self.enforcement(&format!("{path}.enforcement"), limit.enforcement.as_ref());
        if self.violations.len() == before {
            self.combination(path, limit);
        }
        if self.violations.len() == before {
            self.numbers(path, limit);
        }
    }

    fn rates(&mut self, path: &str, rates: &[Rate]) {
        let mut seen = Vec::new();
        for (n, rate) in rates.iter().enumerate() {
            let path = format!("{path}.rates[{n}].per");
            match duration::period(&rate.per) {
                Err(message) => self.wrong(path, message),
                Ok(period) => match seen.iter().find(|(_, other)| *other == period) {
                    Some((first, _)) => self.wrong(
                        path,
                        format!("rates[{first}] has the same period: the lower number alone would do, keep one of them"),
                    ),
                    None => seen.push((n, period)),
                },
            }
        }
    }

    fn algorithm(&mut self, path: &str, algorithm: Option<&Algorithm>) {
        let Some(algorithm) = algorithm else { return };
        let Algorithm {
            sliding_window_counter,
            fixed_window,
            sliding_window_log,
            token_bucket,
            gcra,
            leaky_bucket,
        } = algorithm;
        self.exactly_one(
            path,
            &[
                ("slidingWindowCounter", sliding_window_counter.is_some()),
                ("fixedWindow", fixed_window.is_some()),
                ("slidingWindowLog", sliding_window_log.is_some()),
                ("tokenBucket", token_bucket.is_some()),
                ("gcra", gcra.is_some()),
                ("leakyBucket", leaky_bucket.is_some()),
            ],
        );
        if let Some(SlidingWindowLog { min_interval: Some(interval), count_denied: _ }) = sliding_window_log {
            self.time(&format!("{path}.slidingWindowLog.minInterval"), interval, None);
        }
        if let Some(TokenBucket { burst, warm_up: Some(warm_up) }) = token_bucket {
            let path = format!("{path}.tokenBucket");
            if burst.is_some() {
                self.wrong(
                    format!("{path}.burst"),
                    "burst and warmUp exclude each other: a bucket that warms up has no burst, leave one out",
                );
            }
            self.time(&format!("{path}.warmUp.period"), &warm_up.period, Some(MAX_WARM_UP_MS));
        }
        if let Some(LeakyBucket { max_wait }) = leaky_bucket {
            self.time(&format!("{path}.leakyBucket.maxWait"), max_wait, Some(MAX_WAIT_MS));
        }
    }

    fn enforcement(&mut self, path: &str, enforcement: Option<&Enforcement>) {
        let Some(Enforcement { hard, soft, elastic }) = enforcement else { return };
        self.exactly_one(
            path,
            &[("hard", hard.is_some()), ("soft", soft.is_some()), ("elastic", elastic.is_some())],
        );
        if let Some(Soft { over_percent: _, lasts }) = soft {
            self.time(&format!("{path}.soft.for"), lasts, None);
        }
        if let Some(Elastic { capacity: Capacity { in_flight }, .. }) = elastic {
            self.exactly_one(&format!("{path}.elastic.capacity"), &[("inFlight", in_flight.is_some())]);
        }
    }

    /// A duration, of at most so many milliseconds.
    pub(super) fn time(&mut self, path: &str, text: &str, most: Option<u64>) {
        let Err(message) = duration::up_to(text, most.unwrap_or(MAX_PERIOD_MS)) else { return };
        self.wrong(path, message);
    }

    /// What goes together.
    fn combination(&mut self, path: &str, limit: &Limit) {
        let algorithm = limit.algorithm.clone().unwrap_or_default();
        let slides = limit.algorithm.is_none() || algorithm.sliding_window_counter.is_some();
        for (n, _) in limit.rates.iter().enumerate().filter(|(_, rate)| rate.sub_windows.is_some() && !slides)
        {
            self.wrong(
                format!("{path}.rates[{n}].subWindows"),
                "only slidingWindowCounter has sub-windows: leave it out",
            );
        }
        let Some(enforcement) = &limit.enforcement else { return };
        if enforcement.soft.is_some() && !slides && algorithm.fixed_window.is_none() {
            self.wrong(
                format!("{path}.enforcement.soft"),
                "only slidingWindowCounter and fixedWindow can be soft: give a bucket a burst instead",
            );
        }
        if let Some(elastic) = &enforcement.elastic {
            let path = format!("{path}.enforcement.elastic");
            match &limit.rates[..] {
                [rate] if elastic.requests <= rate.requests => self.wrong(
                    format!("{path}.requests"),
                    format!(
                        "{} is no more than the rate's {}: it is the higher number",
                        elastic.requests, rate.requests
                    ),
                ),
                [_] => {}
                rates => self.wrong(
                    path,
                    format!(
                        "an elastic limit has exactly one rate, this one has {}: make a limit of each",
                        rates.len()
                    ),
                ),
            }
        }
    }

    /// What sidecars would refuse.
    fn numbers(&mut self, path: &str, limit: &Limit) {
        for (n, rate) in limit.rates.iter().enumerate() {
            let rate_path = format!("{path}.rates[{n}]");
            let compiled = compile::rate(limit, rate);
            let both = [
                (compiled.rate().err(), format!("{rate_path}.requests")),
                (compiled.raised().err(), format!("{path}.enforcement.elastic.requests")),
            ];
            for (bad, requests) in both {
                let Some(bad) = bad else { continue };
                let place = match bad {
                    InvalidRate::Together(RateError::Indivisible { .. }) => format!("{rate_path}.subWindows"),
                    InvalidRate::Together(RateError::LongLog(_) | RateError::TooManySlots(_)) => requests,
                    InvalidRate::Together(RateError::LongInterval { .. }) => {
                        format!("{path}.algorithm.slidingWindowLog.minInterval")
                    }
                    InvalidRate::Together(RateError::SlowBucket(_)) => match &limit.algorithm {
                        Some(Algorithm { gcra: Some(_), .. }) => format!("{path}.algorithm.gcra.burst"),
                        _ => format!("{path}.algorithm.tokenBucket.burst"),
                    },
                    InvalidRate::Together(RateError::SlowWarmUp { .. }) => format!("{rate_path}.per"),
                    InvalidRate::Together(RateError::Soft) => format!("{path}.enforcement.soft"),
                    InvalidRate::OutOfRange(_) | InvalidRate::TwiceElastic | InvalidRate::AtATime => {
                        rate_path.clone()
                    }
                };
                let message = match bad {
                    InvalidRate::Together(RateError::LongInterval { interval, period }) => format!(
                        "{} is longer than the period of rates[{n}], {}",
                        duration::format(interval),
                        duration::format(period)
                    ),
                    other => other.to_string(),
                };
                // The base and the elastic number of a limit may fail for the same reason.
                if !self.violations.iter().any(|known| known.path == place) {
                    self.wrong(place, message);
                }
            }
        }
    }
}
