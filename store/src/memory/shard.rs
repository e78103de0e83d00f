//! A shard: a part of the store's counters, behind one lock; and the numbers of keys of limits with a maximum. The arithmetic is that of
//! Redis, but a limit has one partition here. A registry is locked only when a key is new or moves to another slot of expiries, always
//! inside a shard's lock.
//!
//! Counters of a check whose keys find no room share the overflow counter of their limit. It is charged the sum of their costs, and its
//! decision applies to each of them.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_limiter::{KeyRegistry, Record};

use crate::check::{CheckResponse, Counter, LimitSpec, Records};
use crate::key_usage::{KeyUsage, KeyUsages};

/// Fewest checks between two sweeps of a shard.
const CHECKS_PER_SWEEP: usize = 64;
/// A sweep visits all counters of a shard, after a quarter as many checks: four visits a check, and as many for other shards.
const COUNTERS_PER_CHECK: usize = 4;
/// A table with so many times more room than counters is made smaller.
const ROOM: usize = 4;

/// A part of the store's counters, by their ids.
#[derive(Debug, Default)]
pub(super) struct Shard {
    counters: HashMap<u128, StoredCounter, foldhash::fast::RandomState>,
    /// Number of checks since the last sweep.
    checks: usize,
}

/// A counter. Its records are in memory of their own, because a table has room for up to twice as many counters as it holds.
#[derive(Debug, Default)]
pub(super) struct StoredCounter {
    /// The latest expiry of the records, in milliseconds.
    pub(super) expires: u64,
    /// The records.
    pub(super) records: Box<Records>,
}

impl StoredCounter {
    /// Reads the expiry again, after the records have changed. Returns the former one.
    pub(super) fn update_expiry(&mut self) -> u64 {
        let latest = self.records.iter().map(Record::expires_at).max().unwrap_or(0);
        std::mem::replace(&mut self.expires, latest)
    }
}

impl Shard {
    /// Returns the records of a counter, none if it does not exist or has expired. `now` is in microseconds.
    pub(super) fn records(&self, id: u128, now: u64) -> &[Record] {
        let counter = self.counters.get(&id).filter(|counter| counter.expires > now / 1000);
        counter.map(|counter| &counter.records[..]).unwrap_or_default()
    }

    /// Returns a counter, unless it has expired. `now` is in microseconds.
    pub(super) fn get_mut(&mut self, id: u128, now: u64) -> Option<&mut StoredCounter> {
        self.counters.get_mut(&id).filter(|counter| counter.expires > now / 1000)
    }

    /// Reports whether a counter has a place in the table, also after it has expired.
    pub(super) fn has(&self, id: u128) -> bool {
        self.counters.contains_key(&id)
    }

    /// Replaces the records of a counter by what follows from them. Returns its former expiry, if it is not new, and the new one;
    /// `None` if nothing follows.
    pub(super) fn change(
        &mut self,
        id: u128,
        now: u64,
        change: impl FnOnce(&[Record]) -> Option<Records>,
    ) -> Option<(Option<u64>, u64)> {
        let Some(counter) = self.get_mut(id, now) else { return Some(self.put(id, change(&[])?)) };
        *counter.records = change(&counter.records)?;
        Some((Some(counter.update_expiry()), counter.expires))
    }

    /// Stores the records of a counter. Returns its former expiry, if it is not new, and the new one.
    pub(super) fn put(&mut self, id: u128, records: Records) -> (Option<u64>, u64) {
        let mut is_new = false;
        let counter = self.counters.entry(id).or_insert_with(|| {
            is_new = true;
            StoredCounter::default()
        });
        *counter.records = records;
        let before = counter.update_expiry();
        ((!is_new).then_some(before), counter.expires)
    }

    /// Removes a counter. Returns its expiry.
    pub(super) fn remove(&mut self, id: u128) -> Option<u64> {
        self.counters.remove(&id).map(|counter| counter.expires)
    }

    /// Counts checks.
    pub(super) fn tick(&mut self, checks: usize) {
        self.checks += checks;
    }

    /// Reports whether a sweep is due.
    pub(super) fn is_due(&self) -> bool {
        self.is_due_after(self.checks)
    }

    /// Reports whether a sweep is due after so many checks.
    pub(super) fn is_due_after(&self, checks: usize) -> bool {
        checks >= CHECKS_PER_SWEEP.max(self.counters.len() / COUNTERS_PER_CHECK)
    }

    /// Removes the expired counters. Returns the number of checks since the last sweep, and that of removed counters.
    pub(super) fn sweep(&mut self, now: u64) -> (usize, usize) {
        let checks = std::mem::take(&mut self.checks);
        let before = self.counters.len();
        self.counters.retain(|_, counter| counter.expires > now / 1000);
        let left = self.counters.len();
        if self.counters.capacity() > ROOM * left.max(1) {
            self.counters.shrink_to(2 * left);
        }
        (checks, before - left)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.counters.len()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.counters.capacity()
    }
}

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

/// A check whose counters with equal ids are merged.
pub(super) struct MergedCheck {
    pub(super) check: Vec<Counter>,
    pub(super) ids: Vec<u128>,
    /// Index in `check` of each counter of the original check.
    indexes: Vec<usize>,
}

impl MergedCheck {
    /// Merges a check. Returns `None` if no two counters have the same id.
    pub(super) fn new(check: &[Counter], ids: &[u128]) -> Option<Self> {
        let first = |id: &u128| ids.iter().position(|other| other == id);
        if ids.iter().enumerate().all(|(n, id)| first(id) == Some(n)) {
            return None;
        }
        let mut merged = Self { check: Vec::new(), ids: Vec::new(), indexes: Vec::new() };
        for (counter, id) in check.iter().zip(ids) {
            if let Some(index) = merged.ids.iter().position(|other| other == id) {
                merged.check[index].cost = merged.check[index].cost.saturating_add(counter.cost);
                merged.indexes.push(index);
            } else {
                merged.indexes.push(merged.ids.len());
                merged.check.push(counter.clone());
                merged.ids.push(*id);
            }
        }
        Some(merged)
    }

    /// Expands the response to the merged check into the response to the original one.
    pub(super) fn expand(&self, response: &CheckResponse) -> CheckResponse {
        let rates = |index: usize| self.check[index].limit.rates.len();
        let decisions = self.indexes.iter().flat_map(|&index| {
            let begin: usize = (0..index).map(rates).sum();
            response.decisions.iter().skip(begin).take(rates(index)).copied()
        });
        // The usages name the first counter of each that were merged.
        let first = |usage: &KeyUsage| {
            let counter = self.indexes.iter().position(|&index| index == usize::from(usage.counter))?;
            Some(KeyUsage { counter: counter as u8, ..*usage })
        };
        let key_usages = KeyUsages(response.key_usages.0.iter().filter_map(first).collect());
        CheckResponse { decisions: decisions.collect(), key_usages, ..*response }
    }
}
