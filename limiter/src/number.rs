//! Numbers that are checked once, when they are built. The code that uses them does not check again.

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

/// Defines a number with a range, its constructor and its getter. Serde carries it as a plain integer, and one out
/// of its range is an error.
macro_rules! ranged {
    ($(#[$doc:meta])* $name:ident($inner:ty), $new:ident($min:literal..=$max:expr), $(#[$get_doc:meta])* $get:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "u64", into = "u64")]
        pub struct $name($inner);

        impl $name {
            /// Checks the range.
            pub fn $new(value: u64) -> Result<Self, crate::number::OutOfRange> {
                crate::number::within(value, $min, $max).map(|value| Self(value as $inner))
            }

            $(#[$get_doc])*
            #[must_use]
            #[inline]
            pub fn $get(self) -> $inner {
                self.0
            }
        }

        impl TryFrom<u64> for $name {
            type Error = crate::number::OutOfRange;

            fn try_from(value: u64) -> Result<Self, Self::Error> {
                Self::$new(value)
            }
        }

        impl From<$name> for u64 {
            fn from(number: $name) -> Self {
                number.0.into()
            }
        }
    };
}
pub(crate) use ranged;

/// Returns `value` if it is in the range `min..=max`.
pub(crate) fn within(value: u64, min: u64, max: u64) -> Result<u64, OutOfRange> {
    if (min..=max).contains(&value) { Ok(value) } else { Err(OutOfRange { value, min, max }) }
}

/// Adds `delta` to a count. The result stays between 0 and [`MAX_COUNT`].
pub(crate) fn add_delta(count: u64, delta: i64) -> u64 {
    count.saturating_add_signed(delta).min(MAX_COUNT)
}

ranged! {
    /// Number of requests that a rate admits per period, 0 to [`MAX_COUNT`]. 0 denies every request.
    Requests(u64), new(0..=MAX_COUNT),
    /// Returns the number.
    get
}

ranged! {
    /// Length of a rate's period, 1 to [`MAX_PERIOD_MS`] milliseconds.
    Period(u64), from_millis(1..=MAX_PERIOD_MS),
    /// Returns the length in milliseconds.
    millis
}

impl Requests {
    /// The largest number.
    pub const MAX: Self = Self(MAX_COUNT);
}

impl Period {
    /// An hour.
    pub const HOUR: Self = Self(3_600_000);

    /// Returns the length in microseconds.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.0 * 1000
    }
}
