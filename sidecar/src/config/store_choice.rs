//! The store that the configuration chooses, and its state.

use sluice_config::KeySecret;
use sluice_config::message::StoreReport;
use sluice_config::store_access::StoreAccess;
use sluice_store::{StoreFault, StoreHealth};

/// The store that the configuration chooses for the counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// None: `onStoreFailure` decides every request. With `Share`, each process enforces its local quota
    /// forever.
    Unconfigured,
    /// In the memory of this process.
    Memory,
    /// In Redis.
    Access(Box<StoreAccess>),
}

impl StoreChoice {
    /// Interprets the operator's store access. The scheme `memory:` means the memory of this process.
    #[must_use]
    pub fn new(access: Option<StoreAccess>) -> Self {
        match access {
            None => Self::Unconfigured,
            Some(access) if access.url.starts_with("memory:") => Self::Memory,
            Some(access) => Self::Access(Box::new(access)),
        }
    }

    /// Returns the secret and the prefix, which determine the counter of a key. Local counts carry over
    /// between two choices for which these are equal.
    pub(crate) fn key_space(&self) -> Option<(&KeySecret, &str)> {
        match self {
            Self::Access(access) => Some((&access.key_secret, &access.prefix)),
            Self::Unconfigured | Self::Memory => None,
        }
    }
}

/// The state of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreState {
    /// No store has been chosen yet.
    Unchosen,
    /// No usable store is configured.
    Unconfigured,
    /// The health that the store reports.
    Is(StoreHealth),
}

impl StoreState {
    /// Returns the state as it is reported to the operator.
    #[must_use]
    pub fn report(self) -> StoreReport {
        match self {
            Self::Unchosen | Self::Is(StoreHealth::Starting) => StoreReport::Unknown,
            Self::Unconfigured => StoreReport::Failing { fault: StoreFault::Unconfigured.as_str().into() },
            Self::Is(StoreHealth::Healthy) => StoreReport::Healthy,
            Self::Is(StoreHealth::Failing(fault)) => StoreReport::Failing { fault: fault.as_str().into() },
        }
    }
}
