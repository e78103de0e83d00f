//! The store that was configured.

use std::sync::Arc;

use sluice_limiter::{Reserved, SlotsFound};

use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, Settlement, Taking,
};
use crate::failure::{StoreError, StoreFault, StoreHealth};
use crate::fault_cause::FaultCause;
use crate::memory::MemoryStore;
use crate::redis::RedisStore;
use crate::store::Store;

/// One of the stores, or none: every call then fails, so that local quota or `onStoreFailure` decides.
#[derive(Debug)]
pub enum AnyStore {
    /// Counters in the memory of this process.
    Memory(MemoryStore),
    /// Counters in Redis.
    Redis(Arc<RedisStore>),
    /// No store.
    Unconfigured,
}

/// Calls the store, if there is one.
macro_rules! call {
    ($any:expr, $store:ident => $call:expr) => {
        match $any {
            AnyStore::Memory($store) => $call.await,
            AnyStore::Redis($store) => {
                let $store = &**$store;
                $call.await
            }
            AnyStore::Unconfigured => Err(StoreError::Unavailable(StoreFault::Unconfigured)),
        }
    };
}

impl Store for AnyStore {
    #[inline]
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        call!(self, store => Store::check(store, check))
    }

    async fn acquire(&self, counter: Counter, times: u64) -> Result<Grant, StoreError> {
        call!(self, store => Store::acquire(store, counter, times))
    }

    async fn settle(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        call!(self, store => Store::settle(store, settlement))
    }

    async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        call!(self, store => Store::find(store, lookup))
    }

    async fn take(&self, taking: Taking) -> Result<bool, StoreError> {
        call!(self, store => Store::take(store, taking))
    }

    async fn reset(&self, limit: &Arc<LimitSpec>, key: KeyHash) -> Result<u64, StoreError> {
        call!(self, store => Store::reset(store, limit, key))
    }

    fn health(&self) -> StoreHealth {
        match self {
            Self::Memory(store) => store.health(),
            Self::Redis(store) => store.health(),
            Self::Unconfigured => StoreHealth::Failing(StoreFault::Unconfigured),
        }
    }

    fn fault_cause(&self) -> Option<FaultCause> {
        match self {
            Self::Redis(store) => store.fault_cause(),
            Self::Memory(_) | Self::Unconfigured => None,
        }
    }

    fn is_in_process(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}
