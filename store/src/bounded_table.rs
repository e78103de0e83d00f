//! A map of bounded size: entries side by side, so that a hand can walk them and drop what is idle.

use std::collections::HashMap;

/// How many entries are looked at for an idle one when the table is full.
const LOOKED_AT: usize = 16;

/// At most `max` entries by 128-bit identity.
#[derive(Debug)]
pub(crate) struct BoundedTable<V> {
    entries: Vec<(u128, V)>,
    index: HashMap<u128, u32, foldhash::fast::RandomState>,
    hand: usize,
    max: usize,
}

impl<V> BoundedTable<V> {
    pub(crate) fn new(max: usize) -> Self {
        Self { entries: Vec::new(), index: HashMap::default(), hand: 0, max }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get_mut(&mut self, id: u128) -> Option<&mut V> {
        let at = *self.index.get(&id)?;
        self.entries.get_mut(at as usize).map(|(_, value)| value)
    }

    /// The entry of this identity, made if there is room: see [`BoundedTable::make_room`].
    pub(crate) fn entry(
        &mut self,
        id: u128,
        idle: impl Fn(&V) -> bool,
        make: impl FnOnce() -> V,
    ) -> Option<&mut V> {
        if self.index.contains_key(&id) || self.make_room(idle).0 {
            Some(self.get_or_insert(id, make))
        } else {
            None
        }
    }

    /// The entry of this identity, made in any case.
    pub(crate) fn get_or_insert(&mut self, id: u128, make: impl FnOnce() -> V) -> &mut V {
        let at = match self.index.get(&id) {
            Some(&at) => at as usize,
            None => {
                self.index.insert(id, self.entries.len() as u32);
                self.entries.push((id, make()));
                self.entries.len() - 1
            }
        };
        &mut self.entries[at].1
    }

    /// Whether there is room for one more: when the table is full, a few entries are looked at, and the first idle one
    /// gives way and is returned.
    pub(crate) fn make_room(&mut self, idle: impl Fn(&V) -> bool) -> (bool, Option<V>) {
        if self.entries.len() < self.max {
            return (true, None);
        }
        for _ in 0..LOOKED_AT.min(self.entries.len()) {
            self.hand = if self.hand + 1 < self.entries.len() { self.hand + 1 } else { 0 };
            if let Some((id, _)) = self.entries.get(self.hand).filter(|(_, value)| idle(value)) {
                let id = *id;
                return (true, self.remove(id));
            }
        }
        (false, None)
    }

    pub(crate) fn remove(&mut self, id: u128) -> Option<V> {
        let at = self.index.remove(&id)? as usize;
        let (_, value) = self.entries.swap_remove(at);
        if let Some(&(moved, _)) = self.entries.get(at) {
            self.index.insert(moved, at as u32);
        }
        Some(value)
    }

    /// Every entry.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u128, &mut V)> {
        self.entries.iter_mut().map(|(id, value)| (*id, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// As a map, of which only idle entries (here: odd values) ever go, and only when it is full.
        #[test]
        fn it_is_a_map_that_only_idle_entries_leave(steps in proptest::collection::vec((0u128..40, 0u32..9, 0..4), 0..300)) {
            let (mut table, mut model) = (BoundedTable::new(10), HashMap::new());
            for (id, value, what) in steps {
                match what {
                    0 => prop_assert_eq!(table.remove(id), model.remove(&id)),
                    1 => prop_assert_eq!(table.get_mut(id).copied(), model.get(&id).copied()),
                    _ => {
                        let found = table.entry(id, |value| value % 2 == 1, || value).copied();
                        let known = model.get(&id).copied();
                        match (found, known) {
                            (Some(found), Some(known)) => prop_assert_eq!(found, known),
                            (Some(found), None) => {
                                prop_assert_eq!(found, value);
                                model.insert(id, value);
                            }
                            (None, Some(_)) => prop_assert!(false, "a known entry is found"),
                            (None, None) => prop_assert!(model.len() == 10 && model.values().all(|v| v % 2 == 0)),
                        }
                    }
                }
                let left: HashMap<_, _> = table.iter_mut().map(|(id, value)| (id, *value)).collect();
                for (id, value) in &model {
                    prop_assert!(left.get(id) == Some(value) || (value % 2 == 1 && left.len() == 10));
                }
                prop_assert!(left.len() <= 10);
                model = left;
            }
        }
    }
}
