//! A shard: a part of the store's counters, behind one lock.

use std::collections::HashMap;

use sluice_limiter::Record;

use crate::check::Records;

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
