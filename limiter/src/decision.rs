//! The answer for one rate.

/// What one rate says about one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether this rate has room for the cost. A check passes only if every rate of every counter says so.
    pub admitted: bool,
    /// The rate's number of requests.
    pub limit: u64,
    /// The rate's period in milliseconds.
    pub period: u64,
    /// Requests left after this check.
    pub remaining: u64,
    /// Microseconds until the whole limit is free again if nothing else happens; 0 when it is free now.
    pub reset: u64,
    /// For a denial: waiting this many microseconds, and nothing else happening, admits; one less does not.
    /// `None` when admitted, and when the cost is larger than the limit, which no wait mends.
    pub retry_after: Option<u64>,
    /// Microseconds that an admitted request has to wait for its turn; only a leaky bucket makes it wait.
    pub delay: u64,
}
