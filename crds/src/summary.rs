//! A policy in short, for a column of `kubectl get -o wide` and for `sluice check`:
//! `per-customer 10/1m 500/1h(60 sub-windows), login 5/15m [slidingWindowLog, 2s apart]; Leased, onStoreFailure Deny`. What
//! is the default goes without saying.

use sluice_config::policy::{
    Alignment, Bound, Capacity, CompiledLimit, CompiledPolicy, Consistency, Mode, OnStoreFailure,
    RateAlgorithm, Window,
};

use crate::{concurrency, duration};

/// How many characters of it a column has room for.
const LENGTH: usize = 200;

/// The limits in short and what holds for all of them, cut where a column ends.
#[must_use]
pub fn summary(policy: &CompiledPolicy) -> String {
    let text = whole(policy);
    match text.char_indices().nth(LENGTH) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The limits in short and what holds for all of them.
#[must_use]
pub fn whole(policy: &CompiledPolicy) -> String {
    let limits = policy.limits.iter().map(|one| limit(policy.mode, one)).collect::<Vec<_>>().join(", ");
    let all = [
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
    let all: Vec<_> = all.into_iter().flatten().collect();
    if all.is_empty() { limits } else { format!("{limits}; {}", all.join(", ")) }
}

/// One limit, with its mode where it is not the policy's.
fn limit(policy: Mode, limit: &CompiledLimit) -> String {
    let (text, mut words) = concurrency::words(limit).unwrap_or_else(|| rates(limit));
    if (policy, limit.mode) == (Mode::Enforce, Mode::Shadow) {
        words.push("Shadow".into());
    }
    let text = format!("{} {text}", limit.name);
    if words.is_empty() { text } else { format!("{text} [{}]", words.join(", ")) }
}

/// The rates, and how they count.
fn rates(limit: &CompiledLimit) -> (String, Vec<String>) {
    let (mut rates, mut words) = (Vec::new(), Vec::new());
    for rate in &limit.rates {
        let mut text = format!("{}/{}", rate.requests, duration::format(rate.period_millis));
        if let Some(slots @ 2..) = sub_windows(&rate.algorithm) {
            text += &format!("({slots} sub-windows)");
        }
        rates.push(text);
        for word in words_of(&rate.algorithm, rate.requests) {
            if !words.contains(&word) {
                words.push(word);
            }
        }
    }
    (rates.join(" "), words)
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

fn words_of(algorithm: &RateAlgorithm, requests: u64) -> Vec<String> {
    let time = duration::format;
    match algorithm {
        RateAlgorithm::SlidingWindowCounter => vec![],
        RateAlgorithm::FixedWindow => vec!["fixedWindow".into()],
        RateAlgorithm::Window(window) => window_words(*window),
        RateAlgorithm::Soft { window, over_percent, for_millis } => {
            let mut words = window_words(*window);
            words.push(format!("soft {over_percent}% for {}", time(*for_millis)));
            words
        }
        RateAlgorithm::SlidingWindowLog { min_interval_millis, count_denied } => {
            let mut words = vec!["slidingWindowLog".into()];
            if *min_interval_millis > 0 {
                words.push(format!("{} apart", time(*min_interval_millis)));
            }
            if *count_denied {
                words.push("denied count".into());
            }
            words
        }
        RateAlgorithm::TokenBucket { burst } if *burst == requests.max(1) => vec!["tokenBucket".into()],
        RateAlgorithm::TokenBucket { burst } => vec![format!("tokenBucket burst {burst}")],
        RateAlgorithm::WarmUp { period_millis, cold_factor } => {
            vec![format!("tokenBucket warm after {} from 1/{cold_factor}", time(*period_millis))]
        }
        RateAlgorithm::Gcra { burst: 1 } => vec!["gcra".into()],
        RateAlgorithm::Gcra { burst } => vec![format!("gcra burst {burst}")],
        RateAlgorithm::LeakyBucket { max_wait_millis } => {
            vec![format!("leakyBucket wait {}", time(*max_wait_millis))]
        }
        RateAlgorithm::Elastic(elastic) => {
            let Capacity::InFlight(most) = elastic.capacity;
            let mut words = words_of(&elastic.algorithm, requests);
            words.push(format!(
                "elastic {} below {}% of {most} in flight",
                elastic.requests, elastic.below_percent
            ));
            words
        }
        // They have words of their own: no rate does.
        RateAlgorithm::Concurrency | RateAlgorithm::Adaptive(_) => vec![],
    }
}

fn window_words(window: Window) -> Vec<String> {
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
