//! Rates that never deny a request, because another rate of the limit denies it first.

use sluice_limiter::Rate;

use crate::checks::field::Field;

/// How several rates of one limit relate to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    /// Each counts the admitted requests in a window and never admits more than its number.
    Windows,
    /// All are buckets of the same size.
    SameBurst,
    /// None that lets one rate be derived from another, except that a longer period with no more requests is
    /// always stricter.
    Other,
}

/// Reports a warning for each rate of a list that has no effect.
pub(crate) fn warn(at: &Field<'_>, rates: &[Rate], relation: Relation) {
    for n in 0..rates.len() {
        if let Some(reason) = redundant(rates, relation, n) {
            at.entry(n).warning(format_args!("has no effect: {reason}"));
        }
    }
}

/// Returns why one rate of a limit never denies a request that the others admit; `None` if it may.
fn redundant(rates: &[Rate], relation: Relation, n: usize) -> Option<String> {
    let rate = &rates[n];
    let (requests, period) = (i128::from(rate.requests.get()), i128::from(rate.period.millis()));
    let others = || rates.iter().enumerate().filter(|&(m, _)| m != n);
    if let Some((m, _)) =
        others().find(|(_, other)| other.requests <= rate.requests && other.period > rate.period)
    {
        return Some(format!("rates[{m}] admits no more requests in a longer period"));
    }
    for (m, other) in others() {
        let (fewer, shorter) = (i128::from(other.requests.get()), i128::from(other.period.millis()));
        match relation {
            // Among buckets of the same size, the slowest one always denies first.
            Relation::SameBurst if fewer * period < requests * shorter => {
                return Some(format!("rates[{m}] is slower and has the same burst"));
            }
            Relation::Windows if shorter < period => {
                // This rate's window overlaps at most this many windows of the other rate, both ends included.
                // Two more leave room for the estimate of this rate's oldest sub-window.
                let most = fewer * ((period + shorter - 1) / shorter);
                if most + 2 * fewer <= requests {
                    return Some(format!(
                        "rates[{m}] admits {fewer} per {}, which is {most} in {}",
                        other.period, rate.period
                    ));
                }
            }
            Relation::SameBurst | Relation::Windows | Relation::Other => {}
        }
    }
    None
}
