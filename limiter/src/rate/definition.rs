//! The rate and its validation.

use serde::{Deserialize, Serialize};

use super::algorithm::Algorithm;
use crate::algorithm::gcra::BucketSize;
use crate::algorithm::soft::Soft;
use crate::algorithm::{concurrency, fixed_window, gcra, log, sliding_window, soft, warm_up};
use crate::error::RateError;
use crate::number::{Period, Quota, Requests};
use crate::record::Tag;

/// One rate of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "RateFields")]
pub struct Rate {
    /// Number of requests per period.
    pub requests: Requests,
    /// Length of the period.
    #[serde(rename = "periodMillis")]
    pub period: Period,
    /// The algorithm that counts requests.
    pub algorithm: Algorithm,
    /// Extra above the number; `None` for a hard limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soft: Option<Soft>,
}

/// The fields of a rate before they are checked together.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RateFields {
    requests: Requests,
    period_millis: Period,
    algorithm: Algorithm,
    #[serde(default)]
    soft: Option<Soft>,
}

impl TryFrom<RateFields> for Rate {
    type Error = RateError;

    fn try_from(fields: RateFields) -> Result<Self, RateError> {
        let RateFields { requests, period_millis: period, algorithm, soft } = fields;
        Self { requests, period, algorithm, soft }.validated()
    }
}

impl Rate {
    /// Returns a hard rate, if its numbers fit together.
    pub fn new(requests: Requests, period: Period, algorithm: Algorithm) -> Result<Self, RateError> {
        Self { requests, period, algorithm, soft: None }.validated()
    }

    /// Returns the rate with a soft extra, if its numbers fit together.
    pub fn with_soft(self, soft: Soft) -> Result<Self, RateError> {
        Self { soft: Some(soft), ..self }.validated()
    }

    /// Returns the rate, if its numbers fit together.
    pub fn validated(self) -> Result<Self, RateError> {
        let quota = self.quota();
        match self.algorithm {
            Algorithm::SlidingWindowCounter { sub_windows, .. } => {
                sliding_window::validate(sub_windows, quota)
            }
            Algorithm::FixedWindow(_) => Ok(()),
            Algorithm::SlidingWindowLog { min_interval, .. } => log::validate(min_interval, quota),
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                gcra::validate(BucketSize::Burst(burst), quota)
            }
            Algorithm::LeakyBucket { max_wait } => gcra::validate(BucketSize::Delay(max_wait), quota),
            Algorithm::WarmUp(parameters) => warm_up::validate(parameters, quota),
            Algorithm::Concurrency { .. } => concurrency::validate(quota),
        }?;
        let has_windows =
            matches!(self.algorithm, Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_));
        if self.soft.is_some() && !has_windows { Err(RateError::Soft) } else { Ok(self) }
    }

    /// Returns the most requests that may be admitted per period: the number, plus the soft extra.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        soft::ceiling(self.soft, self.quota())
    }

    /// Returns the tag of this rate's records. The number of requests does not change it.
    #[must_use]
    #[inline]
    pub fn tag(&self) -> Tag {
        match self.algorithm {
            Algorithm::Concurrency { .. } => concurrency::tag(),
            algorithm => {
                let windows = u64::from(algorithm.previous_windows());
                Tag::new(algorithm.kind(), windows, self.period.millis())
            }
        }
    }

    /// Returns how far this rate's time is ahead of the clock for a key, in microseconds. It is 0 except for
    /// [`Alignment::Spread`](crate::Alignment::Spread). All instants of a rate are in its own time.
    #[must_use]
    #[inline]
    pub fn phase(&self, key: u128) -> u64 {
        match self.algorithm {
            Algorithm::FixedWindow(alignment) => fixed_window::phase(alignment, self.period, key),
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn quota(&self) -> Quota {
        Quota { requests: self.requests, period: self.period }
    }
}
