//! One rate of a limit, and its translation into a rate of the limiter.

use serde::{Deserialize, Serialize};
use sluice_limiter as limiter;
use sluice_limiter::{Burst, MaxWait, OutOfRange, Period, Rate, RateError, Requests, WarmUp};

use crate::policy::{Elastic, RateAlgorithm};

#[cfg(test)]
mod tests;

/// A compiled rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompiledRate {
    /// Number of requests per period.
    pub requests: u64,
    /// Length of the period in milliseconds.
    pub period_millis: u64,
    /// Algorithm that counts the requests.
    pub algorithm: RateAlgorithm,
}

/// The reason why a compiled rate is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRate {
    /// A number is out of its range.
    #[error(transparent)]
    OutOfRange(#[from] OutOfRange),
    /// Each number is in its range, but they contradict one another.
    #[error(transparent)]
    Combination(#[from] RateError),
    /// An elastic rate contains another elastic rate.
    #[error("an elastic rate cannot contain another elastic rate")]
    NestedElastic,
    /// The algorithm limits concurrent requests.
    #[error("a concurrency limit cannot be used as a rate")]
    NotARate,
}

impl CompiledRate {
    /// Returns the limiter's rate; for an elastic rate, with the base number of requests.
    pub fn rate(&self) -> Result<Rate, InvalidRate> {
        match &self.algorithm {
            RateAlgorithm::Elastic(elastic) => self.with(self.requests, &elastic.algorithm),
            algorithm => self.with(self.requests, algorithm),
        }
    }

    /// Returns the limiter's rate with the boosted number of requests and the condition under which it
    /// applies; `None` if the rate is not elastic.
    pub fn boosted(&self) -> Result<Option<(Rate, &Elastic)>, InvalidRate> {
        let RateAlgorithm::Elastic(elastic) = &self.algorithm else { return Ok(None) };
        Ok(Some((self.with(elastic.requests, &elastic.algorithm)?, elastic)))
    }

    fn with(&self, requests: u64, compiled: &RateAlgorithm) -> Result<Rate, InvalidRate> {
        use limiter::Algorithm;
        let algorithm = match *compiled {
            RateAlgorithm::SlidingWindowCounter => Algorithm::SLIDING_WINDOW,
            RateAlgorithm::FixedWindow => Algorithm::FIXED_WINDOW,
            RateAlgorithm::Window(window) | RateAlgorithm::Soft { window, .. } => window.algorithm()?,
            RateAlgorithm::SlidingWindowLog { min_interval_millis: min_interval, count_denied } => {
                Algorithm::SlidingWindowLog { min_interval, count_denied }
            }
            RateAlgorithm::TokenBucket { burst } => Algorithm::TokenBucket { burst: Burst::new(burst)? },
            RateAlgorithm::Gcra { burst } => Algorithm::Gcra { burst: Burst::new(burst)? },
            RateAlgorithm::WarmUp { period_millis, cold_factor } => {
                Algorithm::WarmUp(WarmUp::new(period_millis, cold_factor)?)
            }
            RateAlgorithm::LeakyBucket { max_wait_millis } => {
                Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(max_wait_millis)? }
            }
            RateAlgorithm::Elastic(_) => return Err(InvalidRate::NestedElastic),
            RateAlgorithm::Concurrency | RateAlgorithm::Adaptive(_) => return Err(InvalidRate::NotARate),
        };
        let (requests, period) = (Requests::new(requests)?, Period::from_millis(self.period_millis)?);
        let hard = Rate::new(requests, period, algorithm)?;
        match *compiled {
            RateAlgorithm::Soft { over_percent, for_millis, .. } => {
                Ok(hard.with_soft(limiter::Soft::new(over_percent, for_millis)?)?)
            }
            _ => Ok(hard),
        }
    }
}
