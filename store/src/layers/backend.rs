//! What the layers need of a store.

use std::future::Future;

use crate::Store;
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
