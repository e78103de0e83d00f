//! Watches and their owners. Something is watched while an owner wants it.

use std::collections::{BTreeMap, BTreeSet};

/// Everything that each owner wants to be watched.
pub struct Wanted<O, T>(BTreeMap<O, BTreeSet<T>>);

impl<O, T> Default for Wanted<O, T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<O: Ord + Clone, T: Ord + Clone> Wanted<O, T> {
    /// Sets everything that an owner wants. Reports whether that has changed.
    pub fn set(&mut self, owner: &O, things: BTreeSet<T>) -> bool {
        match self.0.get(owner) {
            Some(before) if *before == things => false,
            None if things.is_empty() => false,
            _ if things.is_empty() => self.0.remove(owner).is_some(),
            _ => {
                self.0.insert(owner.clone(), things);
                true
            }
        }
    }

    /// Returns everything that is wanted.
    pub fn all(&self) -> BTreeSet<T> {
        self.0.values().flatten().cloned().collect()
    }

    /// Returns the owners that want something.
    pub fn owners_of(&self, thing: &T) -> Vec<O> {
        let owners = self.0.iter().filter(|(_, things)| things.contains(thing));
        owners.map(|(owner, _)| owner.clone()).collect()
    }

    /// Iterates over everything that an owner wants.
    pub fn of(&self, owner: &O) -> impl Iterator<Item = &T> {
        self.0.get(owner).into_iter().flatten()
    }
}
