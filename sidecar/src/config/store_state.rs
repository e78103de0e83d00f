//! The state of a store.

use sluice_config::message::StoreReport;
use sluice_store::{FaultCause, StoreFault, StoreHealth};

/// The state of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreState {
    /// No store has been chosen yet.
    Unchosen,
    /// No usable store is configured.
    Unconfigured,
    /// The health that the store reports, and the cause of its fault.
    Is(StoreHealth, Option<FaultCause>),
}

impl StoreState {
    /// Returns the state as it is reported to the operator.
    #[must_use]
    pub fn report(self) -> StoreReport {
        match self {
            Self::Unchosen | Self::Is(StoreHealth::Starting, _) => StoreReport::Unknown,
            Self::Unconfigured => failing(StoreFault::Unconfigured, None),
            Self::Is(StoreHealth::Healthy, _) => StoreReport::Healthy,
            Self::Is(StoreHealth::Failing(fault), cause) => failing(fault, cause),
        }
    }
}

fn failing(fault: StoreFault, cause: Option<FaultCause>) -> StoreReport {
    StoreReport::Failing { fault: fault.as_str().into(), cause }
}
