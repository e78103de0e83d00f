//! Soft limits: for some time a rate admits more requests than its number, so that a short peak is not cut
//! off.
//!
//! The extra begins with the first request that is admitted above N and lasts for the configured time; then N
//! is hard again. The extra is available again one period after the end of the window in which the last
//! request was admitted above N. The record keeps both times in its [`Overrun`](crate::Overrun).

use serde::{Deserialize, Serialize};

use crate::number::{MAX_PERIOD_MS, OutOfRange, within};

/// An extra above the number of requests, for a limited time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "SoftFields")]
pub struct Soft {
    over_percent: u16,
    #[serde(rename = "forMillis")]
    millis: u64,
}

/// The fields of a soft extra before they are checked.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SoftFields {
    over_percent: u64,
    for_millis: u64,
}

impl TryFrom<SoftFields> for Soft {
    type Error = OutOfRange;

    fn try_from(fields: SoftFields) -> Result<Self, OutOfRange> {
        Self::new(fields.over_percent, fields.for_millis)
    }
}

impl Soft {
    /// Checks the ranges: the extra is 1 to 1000 percent of the number of requests, and its duration 1 to
    /// [`MAX_PERIOD_MS`] milliseconds.
    pub fn new(over_percent: u64, for_millis: u64) -> Result<Self, OutOfRange> {
        let over_percent = within(over_percent, 1, 1000)? as u16;
        Ok(Self { over_percent, millis: within(for_millis, 1, MAX_PERIOD_MS)? })
    }

    /// Returns the extra in percent of the number of requests.
    #[must_use]
    pub fn over_percent(self) -> u16 {
        self.over_percent
    }

    /// Returns the duration of the extra in milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.millis
    }
}
