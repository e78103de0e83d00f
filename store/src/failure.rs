//! Errors of a store, and its health.

use serde::{Deserialize, Serialize};

/// The reason why a check has no result. The caller then applies its policy's `onStoreFailure`. The store
/// charges nothing for such a check as far as it can prevent it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The latency budget ran out.
    #[error("the store did not answer within the latency budget")]
    Timeout,
    /// The queue to the store is full.
    #[error("the queue to the store is full")]
    Overloaded,
    /// The circuit is open, or the store returned an error.
    #[error("the store is unavailable: {0}")]
    Unavailable(StoreFault),
}

impl StoreError {
    /// Every error of a Redis store.
    pub const ALL: [Self; 8] = [
        Self::Timeout,
        Self::Overloaded,
        Self::Unavailable(StoreFault::Unreachable),
        Self::Unavailable(StoreFault::Slow),
        Self::Unavailable(StoreFault::Refused),
        Self::Unavailable(StoreFault::ReadOnly),
        Self::Unavailable(StoreFault::Nonsense),
        Self::Unavailable(StoreFault::WrongType),
    ];

    /// Returns the name in metrics and response headers.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Overloaded => "overloaded",
            Self::Unavailable(fault) => fault.as_str(),
        }
    }
}

/// A kind of store failure. There are few and their names are fixed, so that they can label metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum StoreFault {
    /// There is no connection: it was refused or reset, or the host name does not resolve.
    #[error("it cannot be reached")]
    Unreachable,
    /// Replies take longer than the latency budget.
    #[error("its replies take longer than the latency budget")]
    Slow,
    /// The server rejects this client: its password, its user's rights, or TLS.
    #[error("it rejects the user, the password, the certificate or a command")]
    Refused,
    /// The server cannot write: it has reached maxmemory, or it is a read-only replica.
    #[error("it cannot write (maxmemory reached, or a read-only replica)")]
    ReadOnly,
    /// The server sends replies that do not fit the request.
    #[error("its replies are invalid")]
    Nonsense,
    /// A key holds a value that is not a counter.
    #[error("a key holds a value that is not a counter")]
    WrongType,
    /// No store is configured, or its configuration cannot be used.
    #[error("no usable store is configured")]
    Unconfigured,
    /// A fault that a report names and this version does not know.
    #[error("it has a fault of an unknown kind")]
    #[serde(other)]
    Unknown,
}

impl StoreFault {
    /// Returns the name in metrics and in the status of a policy.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Slow => "slow",
            Self::Refused => "refused",
            Self::ReadOnly => "read-only",
            Self::Nonsense => "nonsense",
            Self::WrongType => "wrong-type",
            Self::Unconfigured => "unconfigured",
            Self::Unknown => "unknown",
        }
    }
}

/// The health of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreHealth {
    /// The first connection has not been made yet.
    Starting,
    /// The last call succeeded.
    Healthy,
    /// The circuit is open.
    Failing(StoreFault),
}
