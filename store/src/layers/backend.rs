//! What the layers need of a store.

use std::future::Future;

use crate::RedisStore;
use crate::check::{Answer, Check, Counter, Granted, Settlement};
use crate::failure::{StoreError, StoreHealth};

/// A store that layers can stand on.
pub trait Backend: Send + Sync + 'static {
    /// Decides a check.
    fn check(&self, check: Check) -> impl Future<Output = Result<Answer, StoreError>> + Send;

    /// Takes up to `wanted` times a counter's cost, as if so many asked one after another.
    fn take(
        &self,
        counter: Counter,
        wanted: u64,
    ) -> impl Future<Output = Result<Granted, StoreError>> + Send;

    /// Corrects a charge.
    fn settle(&self, settlement: Settlement) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// How the store is doing.
    fn health(&self) -> StoreHealth;
}

impl Backend for RedisStore {
    async fn check(&self, check: Check) -> Result<Answer, StoreError> {
        Self::check(self, check).await
    }

    async fn take(&self, counter: Counter, wanted: u64) -> Result<Granted, StoreError> {
        Self::take(self, counter, wanted).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<(), StoreError> {
        Self::settle(self, settlement).await
    }

    fn health(&self) -> StoreHealth {
        Self::health(self)
    }
}
