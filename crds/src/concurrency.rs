//! Limits of requests at a time: from the object to what sidecars enforce, what a schema cannot say about them, and the
//! words of a summary.

use sluice_config::concurrency::SLOT_LEASE_MILLIS;
use sluice_config::policy::{
    AdaptiveKind, CompiledAdaptive, CompiledLimit, CompiledRate, KeyPart, OnMissing, RateAlgorithm,
};

use crate::rate_limit_policy as api;
use crate::{compile, duration};

/// The number before anything is known, as far as the bounds allow.
const INITIAL: i64 = 20;
/// The longest time that an answer may be awaited before it means overload.
pub(crate) const MAX_TIMEOUT_MILLIS: u64 = 3_600_000;

/// Compiles one entry of `spec.concurrency`.
pub(crate) fn compile_limit(policy_mode: api::Mode, limit: &api::Concurrency) -> CompiledLimit {
    let rate = match (&limit.max, limit.adaptive.as_ref().and_then(adaptive)) {
        (_, Some(adaptive)) => CompiledRate {
            requests: u64::from(adaptive.maximum),
            // Says nothing; a rate has one.
            period_millis: 1,
            algorithm: RateAlgorithm::Adaptive(Box::new(adaptive)),
        },
        (max, None) => CompiledRate {
            requests: max.and_then(|max| u64::try_from(max).ok()).unwrap_or(0),
            period_millis: SLOT_LEASE_MILLIS,
            algorithm: RateAlgorithm::Concurrency,
        },
    };
    let (key, on_missing): (Vec<KeyPart>, OnMissing) = compile::key(limit.key.as_ref());
    CompiledLimit {
        name: limit.name.clone(),
        mode: compile::limit_mode(policy_mode, limit.mode),
        matches: limit.matches.iter().map(compile::compile_match).collect(),
        key,
        on_missing,
        rates: vec![rate],
    }
}

/// An adaptive limit with its defaults filled in.
pub(crate) fn adaptive(adaptive: &api::Adaptive) -> Option<CompiledAdaptive> {
    let number = |value: i64| u32::try_from(value).unwrap_or(0);
    let or = |value: Option<i64>, default: u32| value.map_or(default, number);
    let (minimum, maximum, initial, kind) = match adaptive {
        api::Adaptive { aimd: Some(aimd), .. } => {
            let timeout = aimd.timeout.as_deref().and_then(|text| duration::period(text).ok());
            let kind = AdaptiveKind::Aimd {
                tolerance_percent: or(aimd.tolerance_percent, 10),
                timeout_millis: timeout.map_or(5000, sluice_limiter::Period::millis),
            };
            (aimd.minimum, aimd.maximum, aimd.initial, kind)
        }
        api::Adaptive { vegas: Some(vegas), .. } => {
            let kind = AdaptiveKind::Vegas { queue_percent: or(vegas.queue_percent, 10) };
            (vegas.minimum, vegas.maximum, vegas.initial, kind)
        }
        api::Adaptive { gradient2: Some(gradient2), .. } => {
            let kind = AdaptiveKind::Gradient2 {
                tolerance_percent: or(gradient2.tolerance_percent, 3),
                queue_percent: or(gradient2.queue_percent, 5),
            };
            (gradient2.minimum, gradient2.maximum, gradient2.initial, kind)
        }
        _ => return None,
    };
    let initial = initial.unwrap_or(INITIAL.min(maximum).max(minimum));
    Some(CompiledAdaptive {
        minimum: number(minimum),
        initial: number(initial),
        maximum: number(maximum),
        kind,
    })
}

/// What a limit of requests at a time says instead of its rates, and how it learns; `None`: it has rates.
pub(crate) fn words(limit: &CompiledLimit) -> Option<(String, Vec<String>)> {
    match &limit.rates.first()?.algorithm {
        RateAlgorithm::Concurrency => {
            Some((format!("{} at a time", limit.rates.first()?.requests), Vec::new()))
        }
        RateAlgorithm::Adaptive(adaptive) => {
            let CompiledAdaptive { minimum, maximum, kind, .. } = &**adaptive;
            let kind = match kind {
                AdaptiveKind::Aimd { .. } => "aimd",
                AdaptiveKind::Vegas { .. } => "vegas",
                AdaptiveKind::Gradient2 { .. } => "gradient2",
            };
            let text = format!("{minimum} to {maximum} at a time in each pod");
            Some((text, vec![format!("adaptive {kind}")]))
        }
        _ => None,
    }
}
