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

/// A value if it is in range.
pub(crate) fn within(value: u64, min: u64, max: u64) -> Result<u64, OutOfRange> {
    if (min..=max).contains(&value) { Ok(value) } else { Err(OutOfRange { value, min, max }) }
}

/// How many requests a rate admits per period, 0 to [`MAX_COUNT`]; 0 denies all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Requests(u64);

impl Requests {
    /// Checks the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        within(value, 0, MAX_COUNT).map(Self)
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
        within(value, 1, MAX_PERIOD_MS).map(Self)
    }

    /// Milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0
    }

    /// Microseconds.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.0 * 1000
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
    /// How many more, and for how long; `None` is a hard limit.
    pub soft: Option<Soft>,
}

/// A rate that lets some more pass for some time: [`crate::soft`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Soft {
    over_percent: u16,
    millis: u64,
}

impl Soft {
    /// So many percent more (1 to 1000) for so many milliseconds (1 to [`MAX_PERIOD_MS`]).
    pub fn new(over_percent: u64, for_millis: u64) -> Result<Self, OutOfRange> {
        let over_percent = within(over_percent, 1, 1000)? as u16;
        Ok(Self { over_percent, millis: within(for_millis, 1, MAX_PERIOD_MS)? })
    }

    /// How long the extra lasts, in milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.millis
    }
}

/// Numbers that cannot be a rate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// Sub-windows that are no whole milliseconds.
    #[error(
        "a period of {period} ms cannot be cut into {sub_windows} sub-windows of whole milliseconds: choose a \
         number that divides it"
    )]
    Indivisible {
        /// The period in milliseconds.
        period: u64,
        /// The number of sub-windows.
        sub_windows: u8,
    },
    /// A log that would keep too many instants.
    #[error(
        "a sliding-window log keeps every request, so it admits at most 10000 per period, not {0}: use a \
             slidingWindowCounter"
    )]
    LongLog(u64),
    /// A least interval longer than the period.
    #[error("the least interval of {interval} ms is longer than the period of {period} ms")]
    LongInterval {
        /// The interval in milliseconds.
        interval: u64,
        /// The period in milliseconds.
        period: u64,
    },
    /// A bucket that takes too long to fill.
    #[error("a burst of {0} takes longer than 8784 hours to fill again at this rate: make it smaller")]
    SlowBucket(u64),
    /// A cold limiter that takes too long for one period's requests.
    #[error(
        "a period of {period} ms is longer than 8784 hours when cold, {factor} times as slow: make it shorter"
    )]
    SlowWarmUp {
        /// The period in milliseconds.
        period: u64,
        /// How many times dearer a cold request is.
        factor: u64,
    },
    /// More at a time than can be counted.
    #[error("at most 1000000 requests at a time can be counted, not {0}")]
    TooMany(u64),
    /// Soft limits are for windows.
    #[error("only windows can be soft: give a bucket a burst instead")]
    Soft,
}

impl Rate {
    /// A hard rate.
    pub fn new(requests: Requests, period: Period, algorithm: Algorithm) -> Result<Self, RateError> {
        Self { requests, period, algorithm, soft: None }.checked()
    }

    /// The rate, made soft.
    pub fn softened(self, soft: Soft) -> Result<Self, RateError> {
        Self { soft: Some(soft), ..self }.checked()
    }

    /// The rate, if its numbers can be one together.
    pub fn checked(self) -> Result<Self, RateError> {
        let (requests, period) = (self.requests.get(), self.period.millis());
        match self.algorithm {
            Algorithm::SlidingWindowCounter { sub_windows, .. } => {
                if period % u64::from(sub_windows.get()) != 0 {
                    return Err(RateError::Indivisible { period, sub_windows: sub_windows.get() });
                }
            }
            Algorithm::FixedWindow(_) => {}
            Algorithm::SlidingWindowLog { min_interval, .. } => {
                if requests > crate::sliding_window_log::MAX_REQUESTS {
                    return Err(RateError::LongLog(requests));
                }
                if min_interval > period {
                    return Err(RateError::LongInterval { interval: min_interval, period });
                }
            }
            Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                // burst / requests * period, within the longest period.
                let fills = u128::from(burst.get()) * u128::from(period);
                if fills > u128::from(requests.max(1)) * u128::from(MAX_PERIOD_MS) {
                    return Err(RateError::SlowBucket(burst.get()));
                }
            }
            Algorithm::WarmUp(warm_up) => {
                if warm_up.cold_factor() * period > MAX_PERIOD_MS {
                    return Err(RateError::SlowWarmUp { period, factor: warm_up.cold_factor() });
                }
            }
            Algorithm::Concurrency { .. } => {
                if requests > crate::concurrency::MAX_CONCURRENT {
                    return Err(RateError::TooMany(requests));
                }
            }
            Algorithm::LeakyBucket { .. } => {}
        }
        let window =
            matches!(self.algorithm, Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_));
        if self.soft.is_some() && !window { Err(RateError::Soft) } else { Ok(self) }
    }

    /// The most that may pass: the number of requests, and the soft extra.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        let extra = self.soft.map_or(0, |soft| self.requests.get() * u64::from(soft.over_percent) / 100);
        (self.requests.get() + extra).min(MAX_COUNT)
    }
}
