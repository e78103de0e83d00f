//! Numbers that are checked once, when they are built. The code that uses them does not check again.

use serde::{Deserialize, Serialize};

/// The largest number of requests, cost or count: 2^40. Sums of a few of them stay exact in a double, the
/// number type of Redis scripts.
pub const MAX_COUNT: u64 = 1 << 40;

/// The longest period in milliseconds: 8784 hours (366 days).
pub const MAX_PERIOD_MS: u64 = 8784 * 3_600_000;

/// A number outside its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{value} is out of range: {min} to {max} are allowed")]
pub struct OutOfRange {
    /// The rejected value.
    pub value: u64,
    /// The smallest value allowed.
    pub min: u64,
    /// The largest value allowed.
    pub max: u64,
}

/// Carries numbers with a range through serde as plain integers. One out of its range is an error.
macro_rules! plain_integer {
    ($name:ident, $new:ident, $get:ident) => {
        impl TryFrom<u64> for $name {
            type Error = crate::number::OutOfRange;

            fn try_from(value: u64) -> Result<Self, Self::Error> {
                Self::$new(value)
            }
        }

        impl From<$name> for u64 {
            fn from(number: $name) -> Self {
                number.$get().into()
            }
        }
    };
}
pub(crate) use plain_integer;

/// Returns `value` if it is in the range `min..=max`.
pub(crate) fn within(value: u64, min: u64, max: u64) -> Result<u64, OutOfRange> {
    if (min..=max).contains(&value) { Ok(value) } else { Err(OutOfRange { value, min, max }) }
}

/// Adds `delta` to a count. The result stays between 0 and [`MAX_COUNT`].
pub(crate) fn add_delta(count: u64, delta: i64) -> u64 {
    count.saturating_add_signed(delta).min(MAX_COUNT)
}

/// Number of requests that a rate admits per period, 0 to [`MAX_COUNT`]. 0 denies every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Requests(u64);

plain_integer!(Requests, new, get);

impl Requests {
    /// Checks the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        within(value, 0, MAX_COUNT).map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// Length of a rate's period, 1 to [`MAX_PERIOD_MS`] milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Period(u64);

plain_integer!(Period, from_millis, millis);

impl Period {
    /// Checks the range.
    pub fn from_millis(value: u64) -> Result<Self, OutOfRange> {
        within(value, 1, MAX_PERIOD_MS).map(Self)
    }

    /// Returns the length in milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0
    }

    /// Returns the length in microseconds.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.0 * 1000
    }
}
