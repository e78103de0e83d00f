//! The error of a rate whose numbers do not fit together.

/// Numbers that are valid alone but not in one rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// Sub-windows that are not whole milliseconds.
    #[error(
        "a period of {period} ms cannot be cut into {sub_windows} sub-windows of whole milliseconds: \
         choose a number that divides it"
    )]
    Indivisible {
        /// The period in milliseconds.
        period: u64,
        /// Number of sub-windows.
        sub_windows: u8,
    },
    /// A log that would keep too many instants.
    #[error(
        "a sliding-window log keeps every request, so it admits at most 10000 per period, not {0}: use a \
         slidingWindowCounter"
    )]
    LongLog(u64),
    /// A minimum interval longer than the period.
    #[error(
        "the minimum interval of {interval} ms is longer than the period of {period} ms: make it shorter"
    )]
    LongInterval {
        /// The interval in milliseconds.
        interval: u64,
        /// The period in milliseconds.
        period: u64,
    },
    /// A bucket that takes too long to fill.
    #[error("a burst of {0} takes longer than 8784 hours to refill at this rate: make it smaller")]
    SlowBucket(u64),
    /// A cold limiter that takes too long to admit one period's requests.
    #[error(
        "with warmUp, the requests of a period take up to {factor} times the period of {period} ms, which is \
         longer than 8784 hours: make the period shorter"
    )]
    SlowWarmUp {
        /// The period in milliseconds.
        period: u64,
        /// The cold factor.
        factor: u64,
    },
    /// A concurrency limit with too many slots.
    #[error("a concurrency limit has at most 1000000 slots, not {0}: make it smaller")]
    TooManySlots(u64),
    /// A block after too few or too many denials.
    #[error("a client is blocked after 1 to 1000 denials, not {0}")]
    BlockAfter(u64),
    /// A soft extra for an algorithm without windows.
    #[error("only windows can be soft: give a bucket a burst instead")]
    Soft,
    /// Denied requests that count, for an algorithm that cannot count them.
    #[error("only windows and logs can count denied requests")]
    CountDenied,
}
