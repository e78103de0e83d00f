//! The decision of one rate.

use crate::quota::Quota;

/// The decision of one rate about one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether this rate has room for the cost. A check passes only if every rate of every counter has room.
    pub admitted: bool,
    /// The rate's number of requests.
    pub limit: u64,
    /// The rate's period in milliseconds.
    pub period: u64,
    /// Requests left after this check.
    pub remaining: u64,
    /// Microseconds until the whole limit is free again if nothing else happens; 0 if it is free now.
    pub reset: u64,
    /// Shortest wait, in microseconds, after which a denied check is admitted if nothing else happens. `None`
    /// if the check was admitted, or if its cost is larger than the limit and no wait helps. The denial that begins a block
    /// has the wait of the block, although the block did not deny it.
    pub retry_after: Option<u64>,
    /// Microseconds for which an admitted request has to be delayed; only a leaky bucket delays requests.
    pub delay: u64,
}

impl Decision {
    /// Returns a decision with nothing remaining and no times.
    #[inline]
    pub(crate) fn new(quota: Quota, admitted: bool) -> Self {
        Self {
            admitted,
            limit: quota.requests.get(),
            period: quota.period.millis(),
            remaining: 0,
            reset: 0,
            retry_after: None,
            delay: 0,
        }
    }
}
