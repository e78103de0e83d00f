//! The state of the store.

use sluice_config::message::StoreReport;
use sluice_store::{StoreFault, StoreHealth};

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
