//! The rate and its validation.

use serde::{Deserialize, Serialize};

use crate::algorithm::{Algorithm, Definition as _, dispatch};
use crate::error::RateError;
use crate::number::{Period, Requests};
use crate::quota::Quota;
use crate::record::Tag;
use crate::soft::Soft;

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
    /// Whether denied requests count too, so that a client has to pause before it is admitted again.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub count_denied: bool,
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
    #[serde(default)]
    count_denied: bool,
}

impl TryFrom<RateFields> for Rate {
    type Error = RateError;

    fn try_from(fields: RateFields) -> Result<Self, RateError> {
        let RateFields { requests, period_millis: period, algorithm, soft, count_denied } = fields;
        Self { requests, period, algorithm, soft, count_denied }.validated()
    }
}

impl Rate {
    /// Returns a hard rate, if its numbers fit together.
    pub fn new(requests: Requests, period: Period, algorithm: Algorithm) -> Result<Self, RateError> {
        Self { requests, period, algorithm, soft: None, count_denied: false }.validated()
    }

    /// Returns the rate with a soft extra, if its numbers fit together.
    pub fn with_soft(self, soft: Soft) -> Result<Self, RateError> {
        Self { soft: Some(soft), ..self }.validated()
    }

    /// Returns the rate with denied requests counted too, if its algorithm can count them.
    pub fn counting_denied(self) -> Result<Self, RateError> {
        Self { count_denied: true, ..self }.validated()
    }

    /// Returns the block of clients that the other rates of a limit deny `after` times within a time.
    pub fn block(after: Requests, within: Period, lasts: Period) -> Result<Self, RateError> {
        Self::new(after, within, Algorithm::Block { lasts })?.counting_denied()
    }

    /// Returns the rate, if its numbers fit together.
    pub fn validated(self) -> Result<Self, RateError> {
        dispatch!(self.algorithm, definition => {
            definition.validate(self.quota())?;
            if self.soft.is_some() && !definition.can_be_soft() {
                Err(RateError::Soft)
            } else if self.count_denied && !definition.can_count_denied() {
                Err(RateError::CountDenied)
            } else {
                Ok(self)
            }
        })
    }

    /// Returns the rate of a replica whose part of each number is its `share`.
    #[must_use]
    pub fn scaled(self, share: impl Fn(u64) -> u64) -> Self {
        if !dispatch!(self.algorithm, definition => definition.is_divided_among_replicas()) {
            return self;
        }
        // A share is at most the whole number, and so in range.
        let requests = Requests::new(share(self.requests.get())).unwrap_or(self.requests);
        Self { requests, algorithm: self.algorithm.scaled(share), ..self }
    }

    /// Returns the most requests that may be admitted per period: the number, plus the soft extra.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        self.quota().ceiling()
    }

    /// Returns the tag of this rate's records. The number of requests does not change it.
    #[must_use]
    #[inline]
    pub fn tag(&self) -> Tag {
        dispatch!(self.algorithm, definition => definition.tag(self.quota()))
    }

    /// Returns how far this rate's time is ahead of the clock for a key, in microseconds. It is 0 except for
    /// [`Alignment::Spread`](crate::Alignment::Spread). All instants of a rate are in its own time.
    #[must_use]
    #[inline]
    pub fn phase(&self, key: u128) -> u64 {
        dispatch!(self.algorithm, definition => definition.phase(self.quota(), key))
    }

    #[inline]
    pub(crate) fn quota(&self) -> Quota {
        let Self { requests, period, soft, count_denied, algorithm: _ } = *self;
        Quota { requests, period, soft, count_denied }
    }
}
