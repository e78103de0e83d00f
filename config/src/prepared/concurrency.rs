//! The settings of a concurrency limit. It is sent as a limit whose only rate has an algorithm of its own: a
//! sidecar that does not know concurrency limits nacks the policy instead of enforcing only the rest of it.

use sluice_limiter::MAX_CONCURRENT;
use sluice_limiter::adaptive::Adaptive;
use sluice_limiter::{OutOfRange, Period, Requests};

use crate::nack::Nack;
use crate::policy::{CompiledRate, RateAlgorithm};

#[cfg(test)]
mod tests;

/// The settings of a concurrency limit.
#[derive(Debug, Clone, PartialEq)]
pub enum Concurrency {
    /// A limit for all pods together.
    Shared {
        /// Number of slots, at most [`MAX_CONCURRENT`].
        max: Requests,
        /// Slot lease: time after which a slot that is not renewed expires.
        slot_lease: Period,
    },
    /// A limit that each pod learns, in its initial state.
    Adaptive(Box<Adaptive>),
}

impl Concurrency {
    /// Returns the concurrency limit that a compiled limit's rates describe; `None` if they are ordinary
    /// rates.
    pub fn from_rates(rates: &[CompiledRate]) -> Result<Option<Self>, Nack> {
        let is_concurrency = |rate: &CompiledRate| {
            matches!(rate.algorithm, RateAlgorithm::Concurrency | RateAlgorithm::Adaptive(_))
        };
        match rates {
            [CompiledRate { requests, period_millis, algorithm: RateAlgorithm::Concurrency }] => {
                let nack = |error: OutOfRange| Nack(error.to_string());
                if *requests > MAX_CONCURRENT {
                    return Err(nack(OutOfRange { value: *requests, min: 0, max: MAX_CONCURRENT }));
                }
                Ok(Some(Self::Shared {
                    max: Requests::new(*requests).map_err(nack)?,
                    slot_lease: Period::from_millis(*period_millis).map_err(nack)?,
                }))
            }
            [CompiledRate { algorithm: RateAlgorithm::Adaptive(adaptive), .. }] => {
                let adaptive = adaptive.adaptive().map_err(|error| Nack(error.to_string()))?;
                Ok(Some(Self::Adaptive(Box::new(adaptive))))
            }
            rates if rates.iter().any(is_concurrency) => {
                Err(Nack("a concurrency limit cannot be combined with rates".into()))
            }
            _ => Ok(None),
        }
    }
}
