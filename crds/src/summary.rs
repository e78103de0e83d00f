//! A policy in one line, for `sluice check` and for a column of `kubectl get -o wide`. Defaults are left out:
//! `per-customer 10/1m 500/1h (60 sub-windows), login 5/15m [slidingWindowLog, minInterval 2s]; Leased,
//! onStoreFailure Deny`.

use sluice_config::policy::{
    AdaptiveKind, Alignment, Bound, Capacity, CompiledLimit, CompiledPolicy, Consistency, Mode,
    OnStoreFailure, RateAlgorithm, Window,
};

use crate::duration;

/// Longest summary in a column, in characters.
const COLUMN_WIDTH: usize = 200;

/// Returns the summary of a policy, cut to the width of a column.
#[must_use]
pub fn short(policy: &CompiledPolicy) -> String {
    let text = full(policy);
    match text.char_indices().nth(COLUMN_WIDTH) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// Returns the whole summary of a policy: its limits, and after a semicolon the settings that apply to all of
/// them.
#[must_use]
pub fn full(policy: &CompiledPolicy) -> String {
    let limits = policy.limits.iter().map(|one| limit(policy.mode, one)).collect::<Vec<_>>().join(", ");
    let settings = [
        match policy.mode {
            Mode::Enforce => None,
            Mode::Shadow => Some("Shadow"),
        },
        match policy.consistency {
            Consistency::Strict => None,
            Consistency::Leased => Some("Leased"),
            Consistency::Local => Some("Local"),
        },
        match policy.on_store_failure {
            OnStoreFailure::Allow => None,
            OnStoreFailure::Deny => Some("onStoreFailure Deny"),
            OnStoreFailure::Share => Some("onStoreFailure Share"),
        },
    ];
    let settings: Vec<_> = settings.into_iter().flatten().collect();
    if settings.is_empty() { limits } else { format!("{limits}; {}", settings.join(", ")) }
}

/// Describes one limit, with its mode if that differs from the policy's.
fn limit(policy_mode: Mode, limit: &CompiledLimit) -> String {
    let (mut rates, mut notes) = (Vec::new(), Vec::new());
    for rate in &limit.rates {
        rates.push(quantity(&rate.algorithm, rate.requests, rate.period_millis));
        for note in notes_on(&rate.algorithm, rate.requests) {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    if (policy_mode, limit.mode) == (Mode::Enforce, Mode::Shadow) {
        notes.push("Shadow".into());
    }
    let text = format!("{} {}", limit.name, rates.join(" "));
    if notes.is_empty() { text } else { format!("{text} [{}]", notes.join(", ")) }
}

/// Describes how much a rate admits.
fn quantity(algorithm: &RateAlgorithm, requests: u64, period_millis: u64) -> String {
    match algorithm {
        RateAlgorithm::Concurrency => format!("{requests} concurrent"),
        RateAlgorithm::Adaptive(adaptive) => {
            format!("{} to {} concurrent per pod", adaptive.minimum, adaptive.maximum)
        }
        _ => {
            let rate = format!("{requests}/{}", duration::format(period_millis));
            match sub_windows(algorithm) {
                Some(count @ 2..) => format!("{rate} ({count} sub-windows)"),
                _ => rate,
            }
        }
    }
}

fn sub_windows(algorithm: &RateAlgorithm) -> Option<u64> {
    match algorithm {
        RateAlgorithm::Window(Window::SlidingWindowCounter { sub_windows, .. })
        | RateAlgorithm::Soft { window: Window::SlidingWindowCounter { sub_windows, .. }, .. } => {
            Some(*sub_windows)
        }
        RateAlgorithm::Elastic(elastic) => sub_windows(&elastic.algorithm),
        _ => None,
    }
}

/// Describes the algorithm and the enforcement of a rate.
fn notes_on(algorithm: &RateAlgorithm, requests: u64) -> Vec<String> {
    let time = duration::format;
    match algorithm {
        RateAlgorithm::SlidingWindowCounter | RateAlgorithm::Concurrency => vec![],
        RateAlgorithm::FixedWindow => vec!["fixedWindow".into()],
        RateAlgorithm::Window(window) => notes_on_window(*window),
        RateAlgorithm::Soft { window, over_percent, for_millis } => {
            let mut notes = notes_on_window(*window);
            notes.push(format!("soft +{over_percent}% for {}", time(*for_millis)));
            notes
        }
        RateAlgorithm::SlidingWindowLog { min_interval_millis, count_denied } => {
            let mut notes = vec!["slidingWindowLog".into()];
            if *min_interval_millis > 0 {
                notes.push(format!("minInterval {}", time(*min_interval_millis)));
            }
            if *count_denied {
                notes.push("countDenied".into());
            }
            notes
        }
        RateAlgorithm::TokenBucket { burst } if *burst == requests.max(1) => vec!["tokenBucket".into()],
        RateAlgorithm::TokenBucket { burst } => vec![format!("tokenBucket burst {burst}")],
        RateAlgorithm::WarmUp { period_millis, cold_factor } => {
            vec![format!("tokenBucket warmUp {} from 1/{cold_factor}", time(*period_millis))]
        }
        RateAlgorithm::Gcra { burst: 1 } => vec!["gcra".into()],
        RateAlgorithm::Gcra { burst } => vec![format!("gcra burst {burst}")],
        RateAlgorithm::LeakyBucket { max_wait_millis } => {
            vec![format!("leakyBucket maxWait {}", time(*max_wait_millis))]
        }
        RateAlgorithm::Elastic(elastic) => {
            let Capacity::InFlight(capacity) = elastic.capacity;
            let mut notes = notes_on(&elastic.algorithm, requests);
            notes.push(format!(
                "elastic {} below {}% of {capacity} in flight",
                elastic.requests, elastic.below_percent
            ));
            notes
        }
        RateAlgorithm::Adaptive(adaptive) => vec![match adaptive.kind {
            AdaptiveKind::Aimd { .. } => "adaptive aimd".into(),
            AdaptiveKind::Vegas { .. } => "adaptive vegas".into(),
            AdaptiveKind::Gradient2 { .. } => "adaptive gradient2".into(),
        }],
    }
}

fn notes_on_window(window: Window) -> Vec<String> {
    match window {
        Window::SlidingWindowCounter { bound: Bound::Estimate, .. } => vec![],
        Window::SlidingWindowCounter { bound: Bound::Guaranteed, .. } => vec!["Guaranteed".into()],
        Window::FixedWindow { alignment } => vec![match alignment {
            Alignment::Clock => "fixedWindow".into(),
            Alignment::FirstRequest => "fixedWindow FirstRequest".into(),
            Alignment::Spread => "fixedWindow Spread".into(),
        }],
    }
}
