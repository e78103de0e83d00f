//! The number of a limit's live keys, counted by the time at which their records expire.
//!
//! A key is counted when its record is created, and moves when its record gets another expiry, but only from one
//! slot of expiries to another. The slots of a limit of plain windows are as long as its longest window, whose
//! records expire at the ends of such slots. Then the registry is exact, and a key moves once a window. Other
//! records expire at any instant; their slots take an eighth of the longest lifetime, and a key counts until the
//! end of the slot in which its record expires.

use crate::rate::Rate;

/// Largest number of slots of a registry. Records that expire later count for the last slot.
const MAX_SLOTS: usize = 16;
/// Largest number of keys of a registry that is valid.
const MAX_KEYS: u64 = 1 << 30;
/// Latest end of a slot of a registry that is valid, in milliseconds. Doubles are exact far beyond it.
const LATEST: u128 = 1 << 50;

/// The numbers of live keys by the slot in which their records expire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRegistry {
    /// Length of a slot, in milliseconds.
    grid: u64,
    /// The slot of the first count. Slot n ends at n * grid.
    first: u64,
    counts: Vec<u64>,
}

impl KeyRegistry {
    /// Returns the length of the slots for a limit of these rates, in milliseconds.
    #[must_use]
    pub fn grid(rates: &[Rate]) -> u64 {
        if rates.iter().all(|rate| rate.script_arguments(0, 1).is_none()) {
            return rates.iter().map(|rate| rate.period.millis()).max().unwrap_or(1);
        }
        rates.iter().map(Rate::longest_lifetime).max().unwrap_or(0).div_ceil(8).max(1)
    }

    /// An empty registry at `now`, in milliseconds.
    #[must_use]
    pub fn new(now: u64, grid: u64) -> Self {
        Self { grid, first: now / grid + 1, counts: Vec::new() }
    }

    /// Decodes a registry: the length of a slot and the first slot in 6 bytes each, and 1 to 16 counts in 4
    /// bytes each. Returns `None` for other bytes, which count as an empty registry.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, counts) = bytes.split_at_checked(12)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
        let (grid, first) = (number(head.get(..6)?), number(head.get(6..)?));
        let (counts, []) = counts.as_chunks::<4>() else { return None };
        let counts: Vec<u64> = counts.iter().map(|count| u64::from(u32::from_le_bytes(*count))).collect();
        let end = u128::from(grid) * (u128::from(first) + MAX_SLOTS as u128);
        let is_valid = (1..=MAX_SLOTS).contains(&counts.len())
            && grid > 0
            && end <= LATEST
            && counts.iter().sum::<u64>() <= MAX_KEYS;
        is_valid.then_some(Self { grid, first, counts })
    }

    /// Encodes the registry for [`KeyRegistry::decode`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(12 + 4 * self.counts.len());
        bytes.extend_from_slice(&self.grid.to_le_bytes()[..6]);
        bytes.extend_from_slice(&self.first.to_le_bytes()[..6]);
        self.counts.iter().for_each(|&count| bytes.extend_from_slice(&(count as u32).to_le_bytes()));
        bytes
    }

    /// Returns the registry as it is at `now`, in milliseconds, with slots of this length. Slots that have ended
    /// are gone. A count goes to the slot whose end is nearest to that of its own, so that two versions of a
    /// limit with different slots can take turns without shifting it ever further.
    #[must_use]
    pub fn at(self, now: u64, grid: u64) -> Self {
        let mut rolled = Self::new(now, grid);
        for (slot, count) in (self.first..).zip(self.counts) {
            let end = slot * self.grid;
            if count > 0 && end > now {
                let index = rolled.index((2 * end + grid) / (2 * grid));
                *rolled.count(index) += count;
            }
        }
        rolled
    }

    /// Rolls the registry to `now` as [`KeyRegistry::at`] does, if that changes it.
    pub fn roll(&mut self, now: u64, grid: u64) {
        if self.grid != grid || self.first != now / grid + 1 {
            *self = std::mem::replace(self, Self::new(now, grid)).at(now, grid);
        }
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Counts a key whose record expires at `to` instead of `from`, in milliseconds; 0 is the former expiry of a
    /// new key. A key that is not counted, because the registry was lost, is counted now. Reports whether the key
    /// moved from one slot to another.
    pub fn replace(&mut self, from: u64, to: u64) -> bool {
        let (from, to) = (from.div_ceil(self.grid), to.div_ceil(self.grid));
        if from == to {
            return false;
        }
        let index = self.index(from);
        if from >= self.first
            && let Some(count) = self.counts.get_mut(index)
        {
            *count = count.saturating_sub(1);
        }
        if to >= self.first {
            let index = self.index(to);
            *self.count(index) += 1;
        }
        true
    }

    /// Returns the end of the last slot, in milliseconds.
    #[must_use]
    pub fn expires_at(&self) -> u64 {
        (self.first + self.counts.len() as u64).saturating_sub(1) * self.grid
    }

    fn index(&self, slot: u64) -> usize {
        (slot.saturating_sub(self.first) as usize).min(MAX_SLOTS - 1)
    }

    fn count(&mut self, index: usize) -> &mut u64 {
        if self.counts.len() <= index {
            self.counts.resize(index + 1, 0);
        }
        &mut self.counts[index]
    }
}

/// Returns how many keys of a limit one of so many partitions takes, if keys are spread over them by chance.
///
/// The margin of 2.5 standard deviations makes sure that hardly any partition is full before the limit is. It is at
/// most a quarter, so that all partitions together never take more than 125 %.
#[must_use]
pub fn partition_share(max_keys: u64, partitions: u64) -> u64 {
    let mean = max_keys / partitions.max(1);
    (mean + (25 * mean / 4).isqrt().min(mean / 4)).max(1)
}

#[cfg(test)]
mod tests;
