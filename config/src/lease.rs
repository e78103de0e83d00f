//! Which limits allow quota leases: blocks of quota that a pod acquires in advance. The store decides by the
//! same numbers.

use sluice_limiter::{Algorithm, Rate};

/// Shortest useful lease, in microseconds.
const SHORTEST_LEASE_MICROS: u64 = 50_000;

/// Smallest number of requests for which leases save calls. A pod whose part of the quota is below about 20
/// leases nothing, so below this number a few pods with the same client call the store for nearly every
/// request.
pub const MIN_LEASED_REQUESTS: u64 = 50;

/// Reports whether a limit with these rates can be leased: every rate is either a hard window whose
/// sub-windows last 50 ms or longer, or a bucket that fills slowly enough.
#[must_use]
pub fn can_be_leased(rates: &[Rate]) -> bool {
    !rates.is_empty()
        && rates.iter().all(|rate| rate.soft.is_none() && lease_micros(rate) >= SHORTEST_LEASE_MICROS)
}

/// Returns the index of the rate that leaves too little to lease and the number of requests that it admits
/// immediately, if the limit can be leased and that number is below [`MIN_LEASED_REQUESTS`].
#[must_use]
pub fn too_small_to_lease(rates: &[Rate]) -> Option<(usize, u64)> {
    let immediate = |rate: &Rate| match rate.algorithm {
        Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => burst.get(),
        _ => rate.requests.get(),
    };
    let smallest = rates.iter().map(immediate).enumerate().min_by_key(|&(_, requests)| requests);
    smallest.filter(|&(_, requests)| can_be_leased(rates) && requests < MIN_LEASED_REQUESTS)
}

/// Returns the longest lease that a rate allows, in microseconds; 0 if it allows none.
fn lease_micros(rate: &Rate) -> u64 {
    match rate.algorithm {
        Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_) => {
            rate.tag().window_millis() * 1000
        }
        Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
            let period = rate.period.micros();
            let fill_micros = period as f64 * (burst.get() as f64 / rate.requests.get().max(1) as f64);
            (period / 20).min(fill_micros as u64 / 4)
        }
        _ => 0,
    }
}
