//! What the layers need of a store.

use std::future::Future;

use crate::check::{CheckRequest, CheckResponse, Counter, Grant, Settlement};
use crate::failure::{StoreError, StoreHealth};
use crate::{RedisStore, Store};

/// A store that layers can stand on.
pub trait Backend: Send + Sync + 'static {
    /// Decides a check.
    fn check(&self, check: CheckRequest) -> impl Future<Output = Result<CheckResponse, StoreError>> + Send;

    /// Takes up to `wanted` times a counter's cost, as if so many asked one after another.
    fn take(&self, counter: Counter, wanted: u64) -> impl Future<Output = Result<Grant, StoreError>> + Send;

    /// Corrects a charge.
    fn settle(&self, settlement: Settlement) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// How the store is doing.
    fn health(&self) -> StoreHealth;
}

impl Backend for RedisStore {
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        Self::check(self, check).await
    }

    async fn take(&self, counter: Counter, wanted: u64) -> Result<Grant, StoreError> {
        Self::take(self, counter, wanted).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<(), StoreError> {
        Self::settle(self, settlement).await
    }

    fn health(&self) -> StoreHealth {
        Self::health(self)
    }
}

impl Backend for Store {
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        Self::check(self, check).await
    }

    async fn take(&self, counter: Counter, wanted: u64) -> Result<Grant, StoreError> {
        match self {
            Self::Redis(store) => store.take(counter, wanted).await,
            Self::Memory(store) => {
                let mut counter = [counter];
                for granted in 0..wanted {
                    let answer = store.check(&counter);
                    if !answer.admitted {
                        return Ok(Grant { granted, answer });
                    }
                }
                counter[0].cost = 0;
                Ok(Grant { granted: wanted, answer: store.check(&counter) })
            }
        }
    }

    async fn settle(&self, settlement: Settlement) -> Result<(), StoreError> {
        match self {
            Self::Redis(store) => store.settle(settlement).await,
            Self::Memory(store) => {
                store.settle(&settlement);
                Ok(())
            }
        }
    }

    fn health(&self) -> StoreHealth {
        Self::health(self)
    }
}
