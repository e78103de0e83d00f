//! The operations that a remote store provides for its limiter.

use std::future::Future;
use std::sync::Arc;

use sluice_limiter::{Reserved, SlotsFound};

use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, Settlement, Taking,
};
use crate::failure::{StoreError, StoreHealth};
use crate::redis::RedisStore;

/// A store behind a network.
pub(in crate::limiter) trait Backend: Send + Sync + 'static {
    /// Decides a check.
    fn check(&self, check: CheckRequest) -> impl Future<Output = Result<CheckResponse, StoreError>> + Send;

    /// Acquires a counter's cost up to `times` times, like consecutive checks that stop at the first denial.
    fn acquire(&self, counter: Counter, times: u64)
    -> impl Future<Output = Result<Grant, StoreError>> + Send;

    /// Corrects a charge.
    fn settle(&self, settlement: Settlement) -> impl Future<Output = Result<SlotsFound, StoreError>> + Send;

    /// Returns a reservation.
    fn find(&self, lookup: Lookup) -> impl Future<Output = Result<Option<Reserved>, StoreError>> + Send;

    /// Settles a reservation. Returns whether there was such one.
    fn take(&self, taking: Taking) -> impl Future<Output = Result<bool, StoreError>> + Send;

    /// Removes a counter. Returns the time by the store's clock.
    fn reset(
        &self,
        limit: &Arc<LimitSpec>,
        key: KeyHash,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send;

    /// Returns the state of the store as the last calls found it.
    fn health(&self) -> StoreHealth;
}

impl Backend for RedisStore {
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        Self::check(self, check).await
    }

    async fn acquire(&self, counter: Counter, times: u64) -> Result<Grant, StoreError> {
        Self::acquire(self, counter, times).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        Self::settle(self, settlement).await
    }

    async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        Self::find(self, lookup).await
    }

    async fn take(&self, taking: Taking) -> Result<bool, StoreError> {
        Self::take(self, taking).await
    }

    async fn reset(&self, limit: &Arc<LimitSpec>, key: KeyHash) -> Result<u64, StoreError> {
        Self::reset(self, limit, key).await
    }

    fn health(&self) -> StoreHealth {
        Self::health(self)
    }
}
