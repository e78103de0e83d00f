//! Limits on concurrent requests.

use sluice_config::policy::{AdaptiveKind, CompiledAdaptive, CompiledRate, RateAlgorithm, SLOT_LEASE_MILLIS};

use crate::duration;
use crate::policy as api;

/// Default of `initial`, unless the bounds exclude it.
const INITIAL: i64 = 20;
/// Largest `timeout`, in milliseconds.
pub(crate) const MAX_TIMEOUT_MILLIS: u64 = 3_600_000;

/// Compiles a limit on concurrent requests into the only rate of its compiled limit.
pub(super) fn compile_concurrency(limit: &api::Concurrency) -> CompiledRate {
    match (&limit.max, limit.adaptive.as_ref().and_then(compile_adaptive)) {
        (_, Some(adaptive)) => CompiledRate {
            requests: u64::from(adaptive.maximum),
            // Unused, but every rate has a period.
            period_millis: 1,
            algorithm: RateAlgorithm::Adaptive(Box::new(adaptive)),
        },
        (max, None) => CompiledRate {
            requests: max.and_then(|max| u64::try_from(max).ok()).unwrap_or(0),
            period_millis: SLOT_LEASE_MILLIS,
            algorithm: RateAlgorithm::Concurrency,
        },
    }
}

/// Compiles an adaptive limit and fills in its defaults; `None` if it names no algorithm.
pub(crate) fn compile_adaptive(adaptive: &api::Adaptive) -> Option<CompiledAdaptive> {
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
