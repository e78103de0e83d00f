//! Where counters live. A [`CheckRequest`] names up to [`MAX_COUNTERS`] counters; the [`CheckResponse`] admits all of them or none,
//! and a denial consumes nothing.
//!
//! - [`check`]: the question, the answer, and the reference definition of how one becomes the other.
//! - [`clock`]: the time that a memory store counts in.
//! - [`memory`]: counters in this process.
//! - [`redis`]: counters that many processes share.
//! - [`layers`]: what stands above a store: leases, remembered denials, and counting by shares when it does not answer.
//! - [`failure`]: what a store says when it cannot answer, and how it is doing.
//!
//! A store knows neither Kubernetes nor HTTP: it is given names of limits, hashes of keys, rates and costs.

pub mod check;
pub mod clock;
pub mod failure;
pub mod layers;
pub mod memory;
pub mod redis;

pub use check::{CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, MAX_COUNTERS, Settlement};
pub use clock::Clock;
pub use failure::{StoreError, StoreHealth};
pub use memory::MemoryStore;
pub use redis::{RedisOptions, RedisStore};

/// One of the stores.
#[derive(Debug)]
pub enum Store {
    /// Counters of this process.
    Memory(MemoryStore),
    /// Counters shared with other processes.
    Redis(RedisStore),
}

impl Store {
    /// Decides a check. Never takes longer than the store's latency budget.
    pub async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.check(&check)),
            Self::Redis(store) => store.check(check).await,
        }
    }

    /// Takes up to `wanted` times a counter's cost at once, at most [`redis::MAX_TAKEN`]: as if so many asked one after
    /// another.
    ///
    /// # Errors
    /// As [`Store::check`].
    pub async fn take(&self, counter: Counter, wanted: u64) -> Result<Grant, StoreError> {
        match self {
            Self::Memory(store) => {
                let (check, wanted) = ([counter], wanted.clamp(1, redis::MAX_TAKEN));
                let mut granted = 0;
                while granted < wanted {
                    let answer = store.check(&check);
                    if !answer.admitted {
                        return Ok(Grant { granted, answer });
                    }
                    granted += 1;
                }
                // How it stands for the next one.
                let [counter] = check;
                Ok(Grant { granted, answer: store.check(&[Counter { cost: 0, ..counter }]) })
            }
            Self::Redis(store) => store.take(counter, wanted).await,
        }
    }

    /// Corrects a charge. It is done once at most: if no answer comes, it may or may not have been done.
    ///
    /// # Errors
    /// As [`Store::check`].
    pub async fn settle(&self, settlement: Settlement) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => {
                store.settle(&settlement);
                Ok(())
            }
            Self::Redis(store) => store.settle(settlement).await,
        }
    }

    /// How the store is doing.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        match self {
            Self::Memory(_) => StoreHealth::Healthy,
            Self::Redis(store) => store.health(),
        }
    }
}
