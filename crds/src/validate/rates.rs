//! Checks of a limit's rates, algorithm and enforcement: each on its own, then in combination.

use sluice_config::policy::InvalidRate;
use sluice_limiter::MAX_WARM_UP_MS;
use sluice_limiter::RateError;

use super::validator::Validator;
use crate::compile::rate::compile_rate;
use crate::duration;
use crate::policy::{
    Algorithm, Capacity, Elastic, Enforcement, LeakyBucket, Limit, Rate, SlidingWindowLog, Soft, TokenBucket,
};

/// Longest delay of a leaky bucket, in milliseconds. No client waits longer.
const MAX_WAIT_MS: u64 = 3_600_000;

/// Checks the rates, the algorithm and the enforcement of a limit.
pub(super) fn check_rates(validator: &mut Validator, path: &str, limit: &Limit) {
    let before = validator.violations.len();
    check_periods(validator, path, &limit.rates);
    check_algorithm(validator, &format!("{path}.algorithm"), limit.algorithm.as_ref());
    check_enforcement(validator, &format!("{path}.enforcement"), limit.enforcement.as_ref());
    if validator.violations.len() == before {
        check_combination(validator, path, limit);
    }
    if validator.violations.len() == before {
        check_compiled(validator, path, limit);
    }
}

fn check_periods(validator: &mut Validator, path: &str, rates: &[Rate]) {
    let mut seen = Vec::new();
    for (n, rate) in rates.iter().enumerate() {
        let path = format!("{path}.rates[{n}].per");
        match duration::period(&rate.per) {
            Err(message) => validator.violation(path, message),
            Ok(period) => match seen.iter().find(|(_, other)| *other == period) {
                Some((first, _)) => validator.violation(
                    path,
                    format!(
                        "is the same period as that of rates[{first}]: keep only the rate with fewer requests"
                    ),
                ),
                None => seen.push((n, period)),
            },
        }
    }
}

fn check_algorithm(validator: &mut Validator, path: &str, algorithm: Option<&Algorithm>) {
    let Some(algorithm) = algorithm else { return };
    let Algorithm {
        sliding_window_counter,
        fixed_window,
        sliding_window_log,
        token_bucket,
        gcra,
        leaky_bucket,
    } = algorithm;
    validator.exactly_one(
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
        validator.duration(&format!("{path}.slidingWindowLog.minInterval"), interval, None);
    }
    if let Some(TokenBucket { burst, warm_up: Some(warm_up) }) = token_bucket {
        let path = format!("{path}.tokenBucket");
        if burst.is_some() {
            validator
                .violation(format!("{path}.burst"), "cannot be combined with warmUp: remove one of them");
        }
        validator.duration(&format!("{path}.warmUp.period"), &warm_up.period, Some(MAX_WARM_UP_MS));
    }
    if let Some(LeakyBucket { max_wait }) = leaky_bucket {
        validator.duration(&format!("{path}.leakyBucket.maxWait"), max_wait, Some(MAX_WAIT_MS));
    }
}

fn check_enforcement(validator: &mut Validator, path: &str, enforcement: Option<&Enforcement>) {
    let Some(Enforcement { hard, soft, elastic }) = enforcement else { return };
    validator.exactly_one(
        path,
        &[("hard", hard.is_some()), ("soft", soft.is_some()), ("elastic", elastic.is_some())],
    );
    if let Some(Soft { over_percent: _, duration }) = soft {
        validator.duration(&format!("{path}.soft.for"), duration, None);
    }
    if let Some(Elastic { capacity: Capacity { in_flight }, .. }) = elastic {
        validator.exactly_one(&format!("{path}.elastic.capacity"), &[("inFlight", in_flight.is_some())]);
    }
}

/// Checks which fields can be combined.
fn check_combination(validator: &mut Validator, path: &str, limit: &Limit) {
    let algorithm = limit.algorithm.clone().unwrap_or_default();
    let slides = limit.algorithm.is_none() || algorithm.sliding_window_counter.is_some();
    for (n, _) in limit.rates.iter().enumerate().filter(|(_, rate)| rate.sub_windows.is_some() && !slides) {
        validator.violation(
            format!("{path}.rates[{n}].subWindows"),
            "is only allowed with slidingWindowCounter: remove it",
        );
    }
    let Some(enforcement) = &limit.enforcement else { return };
    if enforcement.soft.is_some() && !slides && algorithm.fixed_window.is_none() {
        validator.violation(
            format!("{path}.enforcement.soft"),
            "is only allowed with slidingWindowCounter and fixedWindow: remove it; \
             with tokenBucket or gcra, set a burst instead",
        );
    }
    if let Some(elastic) = &enforcement.elastic {
        let path = format!("{path}.enforcement.elastic");
        match &limit.rates[..] {
            [rate] if elastic.requests <= rate.requests => validator.violation(
                format!("{path}.requests"),
                format!(
                    "must be higher than the {} requests of the rate, but is {}",
                    rate.requests, elastic.requests
                ),
            ),
            [_] => {}
            rates => validator.violation(
                path,
                format!(
                    "is only allowed with exactly one rate, but the limit has {}: make a limit for each rate",
                    rates.len()
                ),
            ),
        }
    }
}

/// Checks the compiled rates. Sidecars would nack the policy for the same reasons.
fn check_compiled(validator: &mut Validator, path: &str, limit: &Limit) {
    for (n, rate) in limit.rates.iter().enumerate() {
        let rate_path = format!("{path}.rates[{n}]");
        let compiled = compile_rate(limit, rate);
        let base_and_boosted = [
            (compiled.rate().err(), format!("{rate_path}.requests")),
            (compiled.boosted().err(), format!("{path}.enforcement.elastic.requests")),
        ];
        for (error, requests_path) in base_and_boosted {
            let Some(error) = error else { continue };
            let field = match error {
                InvalidRate::Combination(RateError::Indivisible { .. }) => format!("{rate_path}.subWindows"),
                InvalidRate::Combination(RateError::LongLog(_) | RateError::TooManySlots(_)) => requests_path,
                InvalidRate::Combination(RateError::LongInterval { .. }) => {
                    format!("{path}.algorithm.slidingWindowLog.minInterval")
                }
                InvalidRate::Combination(RateError::SlowBucket(_)) => match &limit.algorithm {
                    Some(Algorithm { gcra: Some(_), .. }) => format!("{path}.algorithm.gcra.burst"),
                    _ => format!("{path}.algorithm.tokenBucket.burst"),
                },
                InvalidRate::Combination(RateError::SlowWarmUp { .. }) => format!("{rate_path}.per"),
                InvalidRate::Combination(RateError::Soft) => format!("{path}.enforcement.soft"),
                InvalidRate::OutOfRange(_) | InvalidRate::NestedElastic | InvalidRate::NotARate => {
                    rate_path.clone()
                }
            };
            let message = match error {
                InvalidRate::Combination(RateError::LongInterval { interval, period }) => format!(
                    "{} is longer than the period of rates[{n}], {}",
                    duration::format(interval),
                    duration::format(period)
                ),
                other => other.to_string(),
            };
            // The base and the boosted rate may be invalid for the same reason.
            if !validator.violations.iter().any(|known| known.path == field) {
                validator.violation(field, message);
            }
        }
    }
}
