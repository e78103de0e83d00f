//! Warnings about rates that never deny a request, because another rate of the limit denies it first.

use crate::duration;
use crate::policy::{Algorithm, Limit, SlidingWindowLog};
use crate::violation::Violation;

/// Returns a warning for each rate of a limit that has no effect.
pub(super) fn warnings(path: &str, limit: &Limit) -> Vec<Violation> {
    let reasons = (0..limit.rates.len()).filter_map(|n| Some((n, redundant(limit, n)?)));
    reasons
        .map(|(n, reason)| Violation::new(format!("{path}.rates[{n}]"), format!("has no effect: {reason}")))
        .collect()
}

/// Returns why one rate of a limit never denies a request that the others admit; `None` if it may.
fn redundant(limit: &Limit, n: usize) -> Option<String> {
    let rate = &limit.rates[n];
    let (requests, period) = (i128::from(rate.requests), i128::from(millis(&rate.per)));
    let others = || limit.rates.iter().enumerate().filter(|&(m, _)| m != n);
    if let Some((m, _)) =
        others().find(|(_, other)| other.requests <= rate.requests && i128::from(millis(&other.per)) > period)
    {
        return Some(format!("rates[{m}] admits no more requests in a longer period"));
    }
    let same_burst = match limit.algorithm.as_ref() {
        Some(Algorithm { gcra: Some(_), .. } | Algorithm { leaky_bucket: Some(_), .. }) => true,
        Some(Algorithm { token_bucket: Some(bucket), .. }) => bucket.burst.is_some(),
        _ => false,
    };
    for (m, other) in others() {
        let (fewer, shorter) = (i128::from(other.requests), i128::from(millis(&other.per)));
        if same_burst {
            // Among buckets of the same size, the slowest one always denies first.
            if fewer * period < requests * shorter {
                return Some(format!("rates[{m}] is slower and has the same burst"));
            }
        } else if counts_admitted(limit) && shorter < period {
            // This rate's window overlaps at most this many windows of the other rate, both ends included.
            // Two more leave room for the estimate of this rate's oldest sub-window.
            let most = fewer * ((period + shorter - 1) / shorter);
            if most + 2 * fewer <= requests {
                let text = |millis: i128| duration::format(millis as u64);
                return Some(format!(
                    "rates[{m}] admits {fewer} per {}, which is {most} in {}",
                    text(shorter),
                    text(period)
                ));
            }
        }
    }
    None
}

/// Reports whether the limit counts only admitted requests in a window, and never admits more than its rates.
fn counts_admitted(limit: &Limit) -> bool {
    let counts = match limit.algorithm.as_ref() {
        None
        | Some(Algorithm { sliding_window_counter: Some(_), .. } | Algorithm { fixed_window: Some(_), .. }) => {
            true
        }
        Some(Algorithm { sliding_window_log: Some(SlidingWindowLog { count_denied, .. }), .. }) => {
            !count_denied
        }
        _ => false,
    };
    counts && limit.enforcement.as_ref().is_none_or(|enforcement| enforcement.soft.is_none())
}

/// Returns the length of a period that was validated before.
fn millis(text: &str) -> u64 {
    duration::period(text).map_or(0, sluice_limiter::Period::millis)
}
