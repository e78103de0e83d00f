//! Estimates of a counter's usage from the decisions that the store returned.

use sluice_limiter::{Algorithm, Decision, Rate};
use smallvec::SmallVec;

/// Decisions about the rates of one limit, in the order of the rates.
pub(crate) type Decisions = SmallVec<[Decision; 2]>;

/// Returns the most that a rate admits at one instant.
pub(crate) fn capacity(rate: &Rate) -> u64 {
    match rate.algorithm {
        Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => burst.get(),
        _ => rate.requests.get(),
    }
}

/// Returns the usage of a rate after a decision.
pub(crate) fn used(rate: &Rate, decision: &Decision) -> u64 {
    capacity(rate).saturating_sub(decision.remaining)
}

/// Estimates how much of the usage after a decision has expired `micros` microseconds later.
pub(crate) fn freed_after(rate: &Rate, decision: &Decision, micros: u64) -> f64 {
    let used = used(rate, decision) as f64;
    let periods = micros as f64 / rate.period.micros() as f64;
    match rate.algorithm {
        Algorithm::FixedWindow(_) if micros >= decision.reset => used,
        Algorithm::FixedWindow(_) => 0.0,
        Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => {
            (rate.requests.get() as f64 * periods).min(used)
        }
        // Assumes that the usage is spread evenly over the period.
        _ => (used * periods).min(used),
    }
}
