//! So many requests per period. The types hold only what is in range; nothing deeper checks again.

use crate::Algorithm;

/// The largest number of requests, cost or count: 2^40. Sums of a few of them stay exact in a double, which is
/// what Redis computes with.
pub const MAX_COUNT: u64 = 1 << 40;

/// The longest period: 8784 hours (366 days), in milliseconds.
pub const MAX_PERIOD_MS: u64 = 8784 * 3_600_000;

/// A number outside of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{value} is out of range: {min} to {max} are allowed")]
pub struct OutOfRange {
    /// What was given.
    pub value: u64,
    /// The smallest value allowed.
    pub min: u64,
    /// The largest value allowed.
    pub max: u64,
}

/// How many requests a rate admits per period, 0 to [`MAX_COUNT`]; 0 denies all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requests(u64);

impl Requests {
    /// Checks the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        if value <= MAX_COUNT { Ok(Self(value)) } else { Err(OutOfRange { value, min: 0, max: MAX_COUNT }) }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// The length of a rate's window in milliseconds, 1 to [`MAX_PERIOD_MS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(u64);

impl Period {
    /// Checks the range.
    pub fn from_millis(value: u64) -> Result<Self, OutOfRange> {
        if (1..=MAX_PERIOD_MS).contains(&value) {
            Ok(Self(value))
        } else {
            Err(OutOfRange { value, min: 1, max: MAX_PERIOD_MS })
        }
    }

    /// Milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0
    }
}

/// One rate of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// How many.
    pub requests: Requests,
    /// Per how long.
    pub period: Period,
    /// Counted how.
    pub algorithm: Algorithm,
}
