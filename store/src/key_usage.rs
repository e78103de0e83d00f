//! New keys, as a response reports them: those of limits with a maximum number of keys, and all that were created.

use std::ops::BitOrAssign;

use smallvec::SmallVec;

/// A new key among the counters of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyUsage {
    /// Index of the counter in the check.
    pub counter: u8,
    /// Part of the maximum number of keys that is in use, in thousandths; in Redis as the key's partition suggests.
    /// `None` if the key was refused: the overflow counter of its partition decided.
    pub used: Option<u16>,
}

/// The new keys among the counters of a check: none in nearly all responses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyUsages(pub SmallVec<[KeyUsage; 1]>);

impl KeyUsages {
    /// Reports whether the overflow counter decided instead of the counter with this index. Its decisions say nothing
    /// about the key itself, so they must not be remembered for it.
    #[must_use]
    #[inline]
    pub fn is_overflowed(&self, counter: usize) -> bool {
        self.0.iter().any(|usage| usize::from(usage.counter) == counter && usage.used.is_none())
    }

    /// Reports whether an overflow counter decided any counter of the check.
    #[must_use]
    #[inline]
    pub fn any_overflowed(&self) -> bool {
        self.0.iter().any(|usage| usage.used.is_none())
    }

    /// Adds the usages of a part of a check, given the index in the whole check of each of its counters.
    pub fn extend(&mut self, part: &Self, indexes: &[usize]) {
        self.0.extend(part.0.iter().filter_map(|usage| {
            let counter = *indexes.get(usize::from(usage.counter))? as u8;
            Some(KeyUsage { counter, ..*usage })
        }));
    }
}

/// A set of the counters of a check, by their indexes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CounterSet(u32);

impl CounterSet {
    /// Adds the counter with this index, which is below [`crate::MAX_COUNTERS`].
    #[inline]
    pub fn insert(&mut self, counter: usize) {
        self.0 |= 1u32.checked_shl(counter as u32).unwrap_or(0);
    }

    /// Reports whether the set has the counter with this index.
    #[must_use]
    #[inline]
    pub fn contains(self, counter: usize) -> bool {
        self.0 & 1u32.checked_shl(counter as u32).unwrap_or(0) != 0
    }

    /// Adds the counters of a part of a check, given the index in the whole check of each of its counters.
    pub fn extend(&mut self, part: Self, indexes: &[usize]) {
        for (n, &index) in indexes.iter().enumerate() {
            if part.contains(n) {
                self.insert(index);
            }
        }
    }
}

impl BitOrAssign for CounterSet {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}
