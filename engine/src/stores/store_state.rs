//! The state of a store.

use sluice_config::message::{StoreFindings, StoreReport};
use sluice_store::{FaultCause, StoreFault, StoreHealth};

/// The state of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreState {
    /// No store has been chosen yet.
    Unchosen,
    /// No usable store is configured.
    Unconfigured,
    /// The health that the store reports, the cause of its fault, and what was found out about it.
    Is(StoreHealth, Option<FaultCause>, StoreFindings),
}

impl StoreState {
    /// Returns the state as it is reported to the operator.
    #[must_use]
    pub fn report(self) -> StoreReport {
        match self {
            Self::Unchosen | Self::Is(StoreHealth::Starting, ..) => StoreReport::Unknown,
            Self::Unconfigured => StoreReport::Failing { fault: StoreFault::Unconfigured, cause: None },
            Self::Is(StoreHealth::Healthy, _, findings) => StoreReport::Healthy(findings),
            Self::Is(StoreHealth::Failing(fault), cause, _) => StoreReport::Failing { fault, cause },
        }
    }
}
