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

const UNCONFIGURED: StoreError = StoreError::Unavailable(StoreFault::Unconfigured);

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

impl Store for AnyStore {
    #[inline]
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        match self {
            Self::Memory(store) => Store::check(store, check).await,
            Self::Redis(store) => store.check(check).await,
            Self::Unconfigured => Err(UNCONFIGURED),
        }
    }

    async fn acquire(&self, counter: Counter, times: u64) -> Result<Grant, StoreError> {
        match self {
            Self::Memory(store) => store.acquire(counter, times).await,
            Self::Redis(store) => store.acquire(counter, times).await,
            Self::Unconfigured => Err(UNCONFIGURED),
        }
    }

    async fn settle(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        match self {
            Self::Memory(store) => Store::settle(store, settlement).await,
            Self::Redis(store) => store.settle(settlement).await,
            Self::Unconfigured => Err(UNCONFIGURED),
        }
    }

    async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        match self {
            Self::Memory(store) => Store::find(store, lookup).await,
            Self::Redis(store) => store.find(lookup).await,
            Self::Unconfigured => Err(UNCONFIGURED),
        }
    }

    async fn take(&self, taking: Taking) -> Result<bool, StoreError> {
        match self {
            Self::Memory(store) => Store::take(store, taking).await,
            Self::Redis(store) => store.take(taking).await,
            Self::Unconfigured => Err(UNCONFIGURED),
        }
    }

    async fn reset(&self, limit: &Arc<LimitSpec>, key: KeyHash) -> Result<u64, StoreError> {
        match self {
            Self::Memory(store) => Store::reset(store, limit, key).await,
            Self::Redis(store) => store.reset(limit, key).await,
            Self::Unconfigured => Err(UNCONFIGURED),
        }
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
