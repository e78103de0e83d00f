//! Where counters live. A [`Check`] names up to [`MAX_COUNTERS`] counters; the [`Answer`] admits all of them or none,
//! and a denial consumes nothing.
//!
//! - [`check`]: the question, the answer, and the reference definition of how one becomes the other.
//! - [`clock`]: the time that a memory store counts in.
//! - [`memory`]: counters in this process.
//! - [`redis`]: counters that many processes share.
//! - [`failure`]: what a store says when it cannot answer, and how it is doing.
//!
//! A store knows neither Kubernetes nor HTTP: it is given names of limits, hashes of keys, rates and costs.

pub mod check;
pub mod clock;
pub mod failure;
pub mod memory;
pub mod redis;

pub use check::{Answer, Check, Counter, Granted, KeyHash, LimitSpec, MAX_COUNTERS, Settlement};
pub use clock::Clock;
pub use failure::{StoreError, StoreHealth};
pub use memory::MemoryStore;
pub use redis::{RedisOptions, RedisStore};

/// One of the stores.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a process has a few of them, and none is moved about")]
pub enum Store {
    /// Counters of this process.
    Memory(MemoryStore),
    /// Counters shared with other processes.
    Redis(RedisStore),
}

impl Store {
    /// Decides a check. Never takes longer than the store's latency budget.
    pub async fn check(&self, check: Check) -> Result<Answer, StoreError> {
        match self {
            Self::Memory(store) => Ok(store.check(&check)),
            Self::Redis(store) => store.check(check).await,
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
