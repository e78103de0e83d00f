//! The store: its shards, its clock and its size.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_limiter::{Reserved, SlotsFound};

use super::key_registries::KeyRegistries;
use super::shard::Shard;
use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, Settlement, Taking,
};
use crate::clock::Clock;
use crate::failure::{StoreError, StoreHealth};
use crate::store::Store;

/// So many that a sweep of a shard takes some tens of microseconds when the store holds a million keys.
const SHARD_BITS: u32 = 8;
pub(super) const SHARDS: usize = 1 << SHARD_BITS;

/// Key of the overflow counter, which new keys of a limit share when the store is full.
pub(super) const OVERFLOW: KeyHash = KeyHash(0);

/// The memory store.
pub struct MemoryStore {
    pub(super) shards: Box<[AlignedShard; SHARDS]>,
    pub(super) clock: Clock,
    pub(super) max_keys: usize,
    /// Numbers of keys by limit, for limits with a maximum.
    pub(super) registries: KeyRegistries,
    /// Number of keys in all shards.
    pub(super) keys: AtomicUsize,
    pub(super) foreign: Mutex<ForeignSweep>,
}

/// The sweeps of shards by checks of others.
#[derive(Debug, Default)]
pub(super) struct ForeignSweep {
    /// The next shard.
    pub(super) shard: usize,
    /// Number of checks since the last sweep.
    pub(super) checks: usize,
}

impl ForeignSweep {
    pub(super) fn next(&self) -> Self {
        Self { shard: (self.shard + 1) % SHARDS, checks: 0 }
    }
}

/// A shard on cache lines of its own, so that processors do not invalidate each other's lines.
#[repr(align(128))]
pub(super) struct AlignedShard(pub(super) Mutex<Shard>);

impl MemoryStore {
    /// A store of at most `max_keys` keys, not counting overflow counters.
    #[must_use]
    pub fn new(max_keys: usize, clock: Clock) -> Self {
        Self {
            shards: Box::new(std::array::from_fn(|_| AlignedShard(Mutex::default()))),
            max_keys,
            registries: KeyRegistries::default(),
            keys: AtomicUsize::new(0),
            foreign: Mutex::default(),
            clock,
        }
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Locks a shard.
    #[inline]
    pub(super) fn lock(&self, number: usize) -> MutexGuard<'_, Shard> {
        // A panic leaves the shard consistent, so a poisoned lock can be used.
        self.shards[number].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    #[inline]
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        Ok(Self::check(self, &check))
    }

    async fn acquire(&self, counter: Counter, times: u64) -> Result<Grant, StoreError> {
        Ok(Self::acquire(self, &counter, times))
    }

    async fn settle(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        Ok(Self::settle(self, &settlement))
    }

    async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        Ok(Self::find(self, &lookup))
    }

    async fn take(&self, taking: Taking) -> Result<bool, StoreError> {
        Ok(Self::take(self, &taking))
    }

    async fn reset(&self, limit: &Arc<LimitSpec>, key: KeyHash) -> Result<u64, StoreError> {
        Ok(Self::reset(self, limit, key))
    }

    fn health(&self) -> StoreHealth {
        StoreHealth::Healthy
    }

    fn is_in_process(&self) -> bool {
        true
    }
}

/// Returns the number of a counter's shard.
#[inline]
pub(super) fn shard_of(id: u128) -> usize {
    (id >> (u128::BITS - SHARD_BITS)) as usize
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
}
