//! The numbers of keys of limits with a maximum. The arithmetic is that of Redis, but a limit has one partition here.
//!
//! A registry is locked only when a key is new or moves to another slot of expiries, always inside a shard's lock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_limiter::KeyRegistry;

use crate::check::LimitSpec;

/// Number of registries beyond which those without keys are removed when another one is created.
const MANY: usize = 1024;

type Registries = HashMap<u128, KeyRegistry, foldhash::fast::RandomState>;

/// The registries of all limits.
#[derive(Debug, Default)]
pub(super) struct KeyRegistries(Mutex<Registries>);

impl KeyRegistries {
    /// Reports whether a limit has room for a new key. `now` is in microseconds.
    pub(super) fn has_room(&self, limit: &LimitSpec, now: u64) -> bool {
        limit.max_keys == 0 || self.with(limit, now, |registry| registry.keys() < limit.max_keys)
    }

    /// Counts a key whose record expires at `to` instead of `from`, in milliseconds; 0 is the former expiry of a new
    /// key. Returns the part of the maximum that is in use, in thousandths, if the limit has one and the key moved to
    /// another slot.
    #[inline]
    pub(super) fn replace(&self, limit: &LimitSpec, from: u64, to: u64, now: u64) -> Option<u16> {
        if limit.max_keys == 0 || from.div_ceil(limit.grid) == to.div_ceil(limit.grid) {
            return None;
        }
        Some(self.with(limit, now, |registry| {
            registry.replace(from, to);
            (registry.keys().saturating_mul(1000) / limit.max_keys).min(1000) as u16
        }))
    }

    /// Returns the number of keys in a scope's registry as it was used last.
    #[cfg(test)]
    fn keys(&self, scope: &str) -> usize {
        let limit = LimitSpec::new(scope, Vec::new());
        self.lock().get(&limit.scope_id).map_or(0, |registry| registry.keys() as usize)
    }

    fn with<T>(&self, limit: &LimitSpec, now: u64, apply: impl FnOnce(&mut KeyRegistry) -> T) -> T {
        let (mut all, now, scope) = (self.lock(), now / 1000, limit.scope_id);
        if all.len() >= MANY && !all.contains_key(&scope) {
            all.retain(|_, registry| registry.expires_at() > now);
        }
        let registry = all.entry(scope).or_insert_with(|| KeyRegistry::new(now, limit.grid));
        registry.roll(now, limit.grid);
        apply(registry)
    }

    fn lock(&self) -> MutexGuard<'_, Registries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
