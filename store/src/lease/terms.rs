//! Which limits can be leased, and until when what was taken may be used.
//!
//! | rate | lease |
//! |---|---|
//! | `slidingWindowCounter` | to the end of the slot that was charged. Aligned periods hold exactly; where in a slot its requests fell, the estimate never knew |
//! | `fixedWindow` | to the end of the window that was charged: exact |
//! | `tokenBucket`, `gcra` | for at most a twentieth of the period, and a quarter of the time in which the bucket fills: so much of the rate may come on top of a burst |
//! | `slidingWindowLog`, `minInterval` | none: an instant that is not known cannot be recorded |
//! | `leakyBucket`, warm-up | none: whoever is admitted waits for a turn of its own |
//! | soft | none: the extra begins with the request that goes over the number |
//! | slots (or twentieths) shorter than 50 ms | none: a block would be gone when it arrives |
//!
//! A limit with several rates is leased if each of them can be: a block is charged to all, and ends with the first.

use sluice_limiter::{Algorithm, Alignment, Decision, Rate};

use crate::check::{KeyHash, LimitSpec};

/// The shortest lease, in microseconds.
const SHORTEST: u64 = 50_000;

/// What the lease of a limit keeps to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The smallest number of its rates: what may be taken at once at most.
    pub(crate) number: u64,
    /// The longest that a block can last, in microseconds.
    pub(crate) longest: u64,
    /// The shortest time in which a rate that was used up is whole again, in microseconds.
    pub(crate) fills: u64,
    /// The rate by which holders are counted: that of the longest period.
    pub(crate) widest: usize,
    /// Whether quota comes back bit by bit and not at the window's end only.
    pub(crate) flows: bool,
}

impl Terms {
    /// The terms of a limit, if it can be leased.
    pub(crate) fn of(spec: &LimitSpec) -> Option<Self> {
        let lasts = |rate| lasts(rate).filter(|&micros| micros >= SHORTEST);
        let longest = spec.rates.iter().map(lasts).min().flatten()?;
        let widest = (0..spec.rates.len()).max_by_key(|&n| spec.rates[n].period.millis())?;
        Some(Self {
            number: spec.rates.iter().map(capacity).min()?,
            longest,
            fills: spec.rates.iter().map(fills).min()?,
            widest,
            flows: !spec.rates.iter().all(|rate| matches!(rate.algorithm, Algorithm::FixedWindow(_))),
        })
    }
}

/// How much a rate can admit at once.
pub(crate) fn capacity(rate: &Rate) -> u64 {
    match rate.algorithm {
        Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => burst.get(),
        _ => rate.requests.get(),
    }
}

/// How long a rate that was used up takes to be whole again, in microseconds.
fn fills(rate: &Rate) -> u64 {
    let part = capacity(rate) as f64 / rate.requests.get().max(1) as f64;
    (rate.period.micros() as f64 * part) as u64
}

/// How much of a rate was used, by its own decision.
pub(crate) fn used(rate: &Rate, decision: &Decision) -> u64 {
    capacity(rate).saturating_sub(decision.remaining)
}

/// How much of that has come back `micros` later, as far as a decision tells.
pub(crate) fn freed(rate: &Rate, decision: &Decision, micros: u64) -> f64 {
    let used = used(rate, decision) as f64;
    let part = micros as f64 / rate.period.micros() as f64;
    match rate.algorithm {
        Algorithm::FixedWindow(_) if micros >= decision.reset => used,
        Algorithm::FixedWindow(_) => 0.0,
        Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => {
            (rate.requests.get() as f64 * part).min(used)
        }
        // As if what counts had come evenly.
        _ => (used * part).min(used),
    }
}

/// What was charged at an instant, in microseconds of the store's clock: which slot it belongs to (blocks of one slot
/// may be put together), and how long it may be used from then on.
pub(crate) fn slot(spec: &LimitSpec, key: KeyHash, at: u64, decisions: &[Decision]) -> (u64, u64) {
    let (mut slot, mut usable) = (u64::MAX, u64::MAX);
    for (rate, decision) in spec.rates.iter().zip(decisions) {
        let length = lasts(rate).unwrap_or(1).max(1);
        let left = match rate.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => {
                usable = usable.min(length);
                continue;
            }
            Algorithm::FixedWindow(Alignment::FirstRequest) if decision.reset > 0 => decision.reset,
            _ => length - (at + rate.phase(key.0)) % length,
        };
        (slot, usable) = (slot.min(at + left), usable.min(left));
    }
    (slot, usable)
}

/// How long a block of this rate lasts at most, in microseconds; `None`: it cannot be leased.
fn lasts(rate: &Rate) -> Option<u64> {
    if rate.soft.is_some() {
        return None;
    }
    match rate.algorithm {
        Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_) => {
            Some(rate.tag().window_millis() * 1000)
        }
        Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => {
            Some((rate.period.micros() / 20).min(fills(rate) / 4))
        }
        _ => None,
    }
}
