//! The store of an installation without one: every call fails, so local quota or `onStoreFailure` decides.

use std::sync::Arc;

use sluice_limiter::{Reserved, SlotsFound};

use super::backend::Backend;
use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, Settlement, Taking,
};
use crate::failure::{StoreError, StoreFault, StoreHealth};

const UNCONFIGURED: StoreError = StoreError::Unavailable(StoreFault::Unconfigured);

/// A store that answers every call with [`StoreFault::Unconfigured`].
#[derive(Debug)]
pub(in crate::limiter) struct Unconfigured;

impl Backend for Unconfigured {
    async fn check(&self, _: CheckRequest) -> Result<CheckResponse, StoreError> {
        Err(UNCONFIGURED)
    }

    async fn acquire(&self, _: Counter, _: u64) -> Result<Grant, StoreError> {
        Err(UNCONFIGURED)
    }

    async fn settle(&self, _: Settlement) -> Result<SlotsFound, StoreError> {
        Err(UNCONFIGURED)
    }

    async fn find(&self, _: Lookup) -> Result<Option<Reserved>, StoreError> {
        Err(UNCONFIGURED)
    }

    async fn take(&self, _: Taking) -> Result<bool, StoreError> {
        Err(UNCONFIGURED)
    }

    async fn reset(&self, _: &Arc<LimitSpec>, _: KeyHash) -> Result<u64, StoreError> {
        Err(UNCONFIGURED)
    }

    fn health(&self) -> StoreHealth {
        StoreHealth::Failing(StoreFault::Unconfigured)
    }
}
