//! A map of bounded size that evicts only idle values.

use std::collections::HashMap;

/// Number of values that [`BoundedTable::make_room`] inspects when the table is full.
const INSPECTED: usize = 16;

/// A map from 128-bit ids to values. The values lie side by side, so that eviction can walk them.
#[derive(Debug)]
pub(crate) struct BoundedTable<V> {
    values: Vec<(u128, V)>,
    positions: HashMap<u128, u32, foldhash::fast::RandomState>,
    /// Position of the value that eviction inspected last.
    hand: usize,
    max: usize,
}

/// Result of [`BoundedTable::make_room`].
#[derive(Debug)]
pub(crate) enum Room<V> {
    /// The table was not full.
    Free,
    /// The table was full, and this idle value was evicted.
    Evicted(V),
    /// The table is full, and none of the inspected values was idle.
    Full,
}

impl<V> BoundedTable<V> {
    pub(crate) fn new(max: usize) -> Self {
        Self { values: Vec::new(), positions: HashMap::default(), hand: 0, max }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn get_mut(&mut self, id: u128) -> Option<&mut V> {
        let position = *self.positions.get(&id)?;
        self.values.get_mut(position as usize).map(|(_, value)| value)
    }

    /// Returns the value of this id. Inserts it if there is room, see [`BoundedTable::make_room`].
    pub(crate) fn get_or_try_insert(
        &mut self,
        id: u128,
        is_idle: impl Fn(&V) -> bool,
        make: impl FnOnce() -> V,
    ) -> Option<&mut V> {
        if !self.positions.contains_key(&id) && matches!(self.make_room(is_idle), Room::Full) {
            return None;
        }
        Some(self.get_or_insert(id, make))
    }

    /// Returns the value of this id. Inserts it if it is missing, even into a full table.
    pub(crate) fn get_or_insert(&mut self, id: u128, make: impl FnOnce() -> V) -> &mut V {
        let position = match self.positions.get(&id) {
            Some(&position) => position as usize,
            None => {
                self.positions.insert(id, self.values.len() as u32);
                self.values.push((id, make()));
                self.values.len() - 1
            }
        };
        &mut self.values[position].1
    }

    /// Makes room for one more value. In a full table it inspects a few values and evicts the first idle one.
    pub(crate) fn make_room(&mut self, is_idle: impl Fn(&V) -> bool) -> Room<V> {
        if self.values.len() < self.max {
            return Room::Free;
        }
        for _ in 0..INSPECTED.min(self.values.len()) {
            self.hand = if self.hand + 1 < self.values.len() { self.hand + 1 } else { 0 };
            if let Some((id, _)) = self.values.get(self.hand).filter(|(_, value)| is_idle(value)) {
                let id = *id;
                return self.remove(id).map_or(Room::Full, Room::Evicted);
            }
        }
        Room::Full
    }

    pub(crate) fn remove(&mut self, id: u128) -> Option<V> {
        let position = self.positions.remove(&id)? as usize;
        let (_, value) = self.values.swap_remove(position);
        if let Some(&(moved, _)) = self.values.get(position) {
            self.positions.insert(moved, position as u32);
        }
        Some(value)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u128, &mut V)> {
        self.values.iter_mut().map(|(id, value)| (*id, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the table with a `HashMap`. Odd values count as idle.
        #[test]
        fn the_table_is_a_map_that_evicts_only_idle_values_and_only_when_full(
            steps in proptest::collection::vec((0u128..40, 0u32..9, 0..4), 0..300),
        ) {
            let (mut table, mut model) = (BoundedTable::new(10), HashMap::new());
            for (id, value, operation) in steps {
                match operation {
                    0 => prop_assert_eq!(table.remove(id), model.remove(&id)),
                    1 => prop_assert_eq!(table.get_mut(id).copied(), model.get(&id).copied()),
                    _ => {
                        let found = table.get_or_try_insert(id, |value| value % 2 == 1, || value).copied();
                        let expected = model.get(&id).copied();
                        match (found, expected) {
                            (Some(found), Some(expected)) => prop_assert_eq!(found, expected),
                            (Some(found), None) => {
                                prop_assert_eq!(found, value);
                                model.insert(id, value);
                            }
                            (None, Some(_)) => prop_assert!(false, "the table lost a value"),
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
