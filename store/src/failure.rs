//! What a store says when it cannot answer, and how it is doing.

use std::fmt;

/// Why a check got no answer. The caller decides by its policy's `onStoreFailure`; nothing was consumed as far as
/// the store could see to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The latency budget ran out.
    #[error("the store did not answer within the latency budget")]
    Timeout,
    /// Too many checks wait already.
    #[error("the queue to the store is full")]
    Overloaded,
    /// The circuit is open, or the store answered with an error.
    #[error("the store is unavailable: {0}")]
    Unavailable(StoreFault),
}

impl StoreError {
    /// Every error that a Redis can cause.
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

    /// A word for metrics and responses.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Overloaded => "overloaded",
            Self::Unavailable(fault) => fault.as_str(),
        }
    }
}

/// What is wrong with a store. Few and fixed, so that metrics can be labelled with them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreFault {
    /// No connection: refused, reset, or no such name.
    Unreachable,
    /// It answers later than the latency budget.
    Slow,
    /// It refuses this client: password, user rights, TLS.
    Refused,
    /// It cannot write: out of memory at maxmemory, or a read-only replica.
    ReadOnly,
    /// It answers, but not what was asked.
    Nonsense,
    /// A key holds something that is not a counter.
    WrongType,
    /// No store is configured, or its configuration cannot be used.
    Unconfigured,
}

impl StoreFault {
    /// A word for metrics and status.
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
        }
    }
}

impl fmt::Display for StoreFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "it cannot be reached",
            Self::Slow => "it answers later than the latency budget",
            Self::Refused => "it refuses the user, a right, the password or the certificate",
            Self::ReadOnly => "it cannot write (maxmemory reached, or a read-only replica)",
            Self::Nonsense => "it answers nonsense",
            Self::WrongType => "a key holds something that is not a counter",
            Self::Unconfigured => "none is configured",
        })
    }
}

/// How a store is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoreHealth {
    /// Not yet connected for the first time.
    Starting,
    /// The last call succeeded.
    Healthy,
    /// The circuit is open.
    Failing(StoreFault),
}
