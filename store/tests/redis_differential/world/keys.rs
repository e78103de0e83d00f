//! The registries of keys, as a call of a script reads and writes them.

use std::collections::{HashMap, HashSet};

use rand::Rng;
use rand::seq::IndexedRandom;
use sluice_limiter::KeyRegistry;
use sluice_store::{Counter, LimitSpec};

use super::state::{Stored, World, name};

/// A registry that the call has read.
struct OpenRegistry {
    registry: KeyRegistry,
    grid: u64,
    /// Number of new keys that are added when the call ends.
    new: u64,
    changed: bool,
}

/// Added to the number of keys in a reply if the key was created.
pub(crate) const CREATED: u64 = 1 << 32;

/// Everything that a call knows about keys.
#[derive(Default)]
pub(crate) struct CallState {
    /// The registries by scope.
    open: HashMap<String, OpenRegistry>,
    /// Names of keys that are counted, with the length of their slots.
    counted: HashMap<String, u64>,
    /// Names of the keys that the call has changed.
    changed: HashSet<String>,
    /// The reply of the general script about new keys: the index of the counter, and the number of keys.
    pub(crate) notes: Vec<(usize, u64)>,
}

pub(crate) fn registry_name(scope: &str) -> String {
    format!("{scope}:keys")
}

pub(crate) fn overflow_name(scope: &str) -> String {
    format!("{scope}:overflow")
}

impl World {
    /// Returns the expiry of a value, 0 if there is none.
    pub(crate) fn expiry(&self, name: &str) -> u64 {
        self.records(name).iter().map(sluice_limiter::Record::expires_at).max().unwrap_or(0)
    }

    fn open(&mut self, scope: &str, grid: u64) -> &mut OpenRegistry {
        let now = self.now / 1000;
        let stored = match self.stored.get(&registry_name(scope)) {
            Some(Stored::Registry(registry)) if !self.get_fails => Some(registry.clone()),
            _ => None,
        };
        let open = match self.call.open.remove(scope) {
            Some(open) if open.grid == grid => open,
            Some(open) => OpenRegistry { registry: open.registry.at(now, grid), grid, ..open },
            None => {
                let empty = KeyRegistry::new(now, grid);
                let registry = stored.map_or(empty, |registry| registry.at(now, grid));
                OpenRegistry { registry, grid, new: 0, changed: false }
            }
        };
        self.call.open.entry(scope.to_owned()).or_insert(open)
    }

    /// Reports whether the partition of a new key is full.
    pub(crate) fn is_full(&mut self, limit: &LimitSpec) -> bool {
        let (most, open) = (limit.max_keys, self.open(&limit.scope, limit.grid));
        open.registry.keys() + open.new >= most
    }

    /// Counts a key whose expiry has changed, as the short scripts do. Returns the number of keys if it was counted.
    pub(crate) fn count_key(&mut self, counter: &Counter, before: u64) -> u64 {
        let after = self.expiry(&name(&counter.limit, counter.key));
        if counter.limit.max_keys == 0 || before == after {
            return 0;
        }
        let open = self.open(&counter.limit.scope, counter.limit.grid);
        open.changed |= open.registry.replace(before, after);
        open.registry.keys()
    }

    /// Returns the names of a check's counters for the general script, where overflow counters decide new keys.
    pub(super) fn names_with_overflow(&mut self, counters: &[Counter]) -> Vec<String> {
        let mut names = vec![];
        for (n, counter) in counters.iter().enumerate() {
            let mut name = name(&counter.limit, counter.key);
            if counter.limit.max_keys > 0 && self.broken(&name).is_none() {
                self.call.counted.insert(name.clone(), counter.limit.grid);
                if self.records(&name).is_empty() && self.is_full(&counter.limit) {
                    self.call.notes.push((n, 0));
                    name = overflow_name(&counter.limit.scope);
                }
            }
            names.push(name);
        }
        names
    }

    /// Notes that the general script charges a counter.
    pub(super) fn note_charge(&mut self, index: usize, scope: &str, name: &str) {
        if !self.records(name).is_empty() || name == overflow_name(scope) {
            return;
        }
        let mut keys = CREATED;
        if let Some(&grid) = self.call.counted.get(name) {
            let open = self.open(scope, grid);
            open.new += 1;
            keys += open.registry.keys() + open.new;
        }
        self.call.notes.push((index, keys));
    }

    pub(super) fn note_counted(&mut self, limit: &LimitSpec, name: &str) {
        if limit.max_keys > 0 {
            self.call.counted.insert(name.to_owned(), limit.grid);
        }
    }

    pub(super) fn note_write(&mut self, name: &str) {
        self.call.changed.insert(name.to_owned());
    }

    /// Ends a call of the general script: counts the keys that it changed, given their expiries before.
    pub(crate) fn count_changed(&mut self, before: &[(String, u64)]) {
        for (name, before) in before {
            let after = self.expiry(name);
            if let (true, Some(&grid)) = (self.call.changed.contains(name), self.call.counted.get(name))
                && before.div_ceil(grid) != after.div_ceil(grid)
            {
                let scope = name.split(':').next().unwrap().to_owned();
                let open = self.open(&scope, grid);
                open.changed |= open.registry.replace(*before, after);
            }
        }
    }

    /// Ends a call: writes the registries.
    pub(crate) fn end_call(&mut self) {
        for (scope, open) in std::mem::take(&mut self.call).open {
            if open.changed && open.registry.encode().len() > 12 {
                // The sum of the counts may be too great by now.
                let bytes = open.registry.encode();
                let stored = KeyRegistry::decode(&bytes).map_or(Stored::Garbage(bytes), Stored::Registry);
                self.stored.insert(registry_name(&scope), stored);
            }
        }
    }

    /// Returns a limit with a random maximum number of keys.
    pub(super) fn with_any_max_keys(&mut self, limit: LimitSpec) -> LimitSpec {
        let most = *[1, 2, 2, 3, 4, 8, 20, 1000].choose(&mut self.rng).unwrap();
        let limited = self.rng.random_bool(if self.focus == super::Focus::Keys { 0.97 } else { 0.3 });
        limit.with_max_keys(if limited { most } else { 0 })
    }

    /// Returns a random registry of a limit.
    pub(super) fn registry(&mut self) -> (String, Stored) {
        let limit = self.any_limit();
        let name = registry_name(&limit.scope);
        if self.rng.random_bool(0.05) {
            return (name, Stored::List);
        }
        let (rng, now) = (&mut self.rng, self.now / 1000);
        let other = limit.grid.saturating_add_signed(rng.random_range(-2..=2)).max(1);
        let grid = *[limit.grid, limit.grid, limit.grid, other, 2 * limit.grid, limit.grid.div_ceil(3), 1]
            .choose(rng)
            .unwrap();
        let first = (now / grid + 1).saturating_add_signed(match rng.random_range(0..6) {
            0 => rng.random_range(-20..20),
            1 => -1,
            2 => 1,
            _ => 0,
        });
        let most = limit.max_keys.max(1) as u32;
        let slots = match rng.random_range(0..8) {
            0 | 1 => *[0, 15, 16, 17, 17, 18].choose(rng).unwrap(),
            _ => rng.random_range(1..4),
        };
        let mut bytes = [&grid.to_le_bytes()[..6], &first.to_le_bytes()[..6]].concat();
        for _ in 0..slots {
            // The sum of many counts is valid too.
            let count = match rng.random_range(if slots > 4 { 2 } else { 0 }..10) {
                0 => rng.random_range((1 << 30) - 2..=(1 << 30) + 2),
                1 => rng.random(),
                2..6 => rng.random_range(0..=most),
                6 => most,
                7 => most - 1,
                _ => rng.random_range(0..2),
            };
            bytes.extend(count.to_le_bytes());
        }
        match rng.random_range(0..20) {
            0 => bytes[..6].fill(0),
            // The latest end that is valid, and its neighbours.
            1 | 5..9 => {
                // The first slot has 6 bytes, and 2^50 + 1 is a multiple of 5.
                let grid = *[4, 5, 5, 1 << 20].choose(rng).unwrap();
                let first = ((1u64 << 50) / grid - 16).saturating_add_signed(rng.random_range(-1..2));
                bytes[..6].copy_from_slice(&grid.to_le_bytes()[..6]);
                bytes[6..12].copy_from_slice(&first.to_le_bytes()[..6]);
            }
            2 => bytes.truncate(rng.random_range(0..=bytes.len())),
            3 => bytes.push(0),
            4 => bytes[6..12].fill(0xff),
            _ => {}
        }
        let stored = KeyRegistry::decode(&bytes).map_or(Stored::Garbage(bytes), Stored::Registry);
        (name, stored)
    }
}
