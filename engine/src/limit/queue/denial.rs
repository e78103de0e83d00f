//! Requests that cannot wait.

use std::time::Duration;

use sluice_store::KeyHash;

use crate::limit::index::LimitIndex;

/// A request is denied because it cannot wait in the queue of a limit, or not any longer.
#[derive(Debug)]
pub(crate) struct QueueDenial {
    pub(crate) limit: LimitIndex,
    pub(crate) key: KeyHash,
    pub(crate) reason: QueueDenialReason,
    /// Time until it may be of use to try again.
    pub(crate) wait: Duration,
}

/// The reason for the denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QueueDenialReason {
    /// So many requests wait already.
    Full(u64),
    /// The request has waited for so long.
    TooLong(Duration),
    /// A newer request has taken its place.
    Evicted,
    /// The sidecar ends.
    Stopping,
}
