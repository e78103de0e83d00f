//! The hot counter of a shard: one that is checked again and again, outside of the shard's lock. Otherwise
//! concurrent checks of one key would wait for each other, and a single thread would lock and unlock for each
//! check. A shard has at most one hot counter. It has a plain window and stays hot until its window ends, for
//! at most [`HOT_MICROS`]; then the shard is locked again, and swept.
//!
//! While a counter is hot, its current count is here and not in its cell. A charge is one compare-and-swap of
//! a word that holds the count and a generation; a denial only reads. A counter becomes hot or cold only
//! under the shard's lock, and the generation changes each time: when a counter leaves, before the other
//! fields are overwritten, and when one arrives, after they are written. A charge therefore fails if any
//! field that it was decided on has been replaced, or if another charge came first. A generation repeats
//! after 2^32 changes, each of which takes at least as long as two checks.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::memory::cell::{CounterId, TableCell};
use crate::memory::rate::{Verdict, Window};

/// Maximum duration for which a counter stays hot, in microseconds.
pub(in crate::memory) const HOT_MICROS: u64 = 500;

/// Flag of a word with a counter. The count is below it, the generation above.
const LIVE: u64 = 1 << 31;
const GENERATION_SHIFT: u32 = 32;

/// The hot counter of a shard, or none.
#[derive(Debug)]
#[repr(C, align(128))]
pub(in crate::memory) struct Hot {
    word: AtomicU64,
    /// Id of the counter, as its cell holds it.
    high: AtomicU64,
    low: AtomicU64,
    /// Start of the window, in microseconds, and time from then for which the counter stays hot.
    begin: AtomicU64,
    span: AtomicU64,
    /// Count of the previous window.
    previous: AtomicU64,
}

impl Default for Hot {
    fn default() -> Self {
        let zero = AtomicU64::default;
        let high = AtomicU64::new(u64::MAX);
        Self { word: zero(), high, low: zero(), begin: zero(), span: zero(), previous: zero() }
    }
}

impl Hot {
    /// Reports whether this may be the hot counter. The result is rarely wrong; under the shard's lock it is
    /// never false for the hot counter.
    #[inline]
    pub(in crate::memory) fn may_hold(&self, id: CounterId) -> bool {
        self.high.load(Ordering::Relaxed) == id.high
    }

    /// Decides and charges a check of the hot counter in the most frequent cases. Otherwise returns `None`
    /// and changes nothing.
    #[inline]
    pub(in crate::memory) fn check_plain(
        &self,
        id: CounterId,
        window: &Window,
        cost: u64,
        now: u64,
    ) -> Option<Verdict> {
        let word = self.word.load(Ordering::Acquire);
        let here =
            CounterId { high: self.high.load(Ordering::Relaxed), low: self.low.load(Ordering::Relaxed) };
        let elapsed = now.wrapping_sub(self.begin.load(Ordering::Relaxed));
        if word & LIVE == 0 || here != id || elapsed >= self.span.load(Ordering::Relaxed) {
            return None;
        }
        let previous = self.previous.load(Ordering::Relaxed);
        let left = window.left(count(word), previous, elapsed)?;
        // If any of these loads read a value of another generation, the loads of the word below see that
        // generation.
        fence(Ordering::Acquire);
        if cost.wrapping_sub(1) < left {
            // At most the limit of the window, which is below LIVE.
            let charged = word + cost;
            let found = self.word.compare_exchange(word, charged, Ordering::AcqRel, Ordering::Relaxed);
            return found.is_ok().then(|| window.admitted(left - cost, elapsed));
        }
        let plain = cost == 1 && left == 0 && previous == 0 && count(word) > 0;
        let same = self.word.load(Ordering::Relaxed) >> GENERATION_SHIFT == word >> GENERATION_SHIFT;
        (plain && same).then(|| window.full(elapsed))
    }

    /// Decides and charges a check. Returns `None` and changes nothing if the counter is not hot (any more).
    #[inline]
    pub(in crate::memory) fn check(
        &self,
        id: CounterId,
        window: &Window,
        cost: u64,
        now: u64,
    ) -> Option<Verdict> {
        let mut word = self.word.load(Ordering::Acquire);
        while word & LIVE != 0 && self.high.load(Ordering::Relaxed) == id.high {
            let low = self.low.load(Ordering::Relaxed);
            let elapsed = now.wrapping_sub(self.begin.load(Ordering::Relaxed));
            if low != id.low || elapsed >= self.span.load(Ordering::Relaxed) {
                return None;
            }
            let verdict = window.decide(count(word), self.previous.load(Ordering::Relaxed), elapsed, cost);
            // See `check_plain`.
            fence(Ordering::Acquire);
            let found = if verdict.admitted {
                self.word.compare_exchange_weak(word, word + cost, Ordering::AcqRel, Ordering::Acquire)
            } else {
                let found = self.word.load(Ordering::Acquire);
                if found >> GENERATION_SHIFT == word >> GENERATION_SHIFT { Ok(found) } else { Err(found) }
            };
            match found {
                Ok(_) => return Some(verdict),
                Err(found) => word = found,
            }
        }
        None
    }

    /// Reports whether there is a hot counter. This changes only under the shard's lock.
    #[inline]
    pub(in crate::memory) fn is_live(&self) -> bool {
        self.word.load(Ordering::Relaxed) & LIVE != 0
    }

    /// Makes a counter hot. The shard must be locked, and must have no hot counter.
    #[cold]
    pub(in crate::memory) fn put(&self, cell: &TableCell, window: &Window, elapsed: u64) {
        let generation = (self.word.load(Ordering::Relaxed) >> GENERATION_SHIFT).wrapping_add(1);
        let (current, previous) = cell.halves();
        // Together with the fence in `take`: other threads see the new generation before the stores below.
        fence(Ordering::Release);
        self.high.store(cell.id.high, Ordering::Relaxed);
        self.low.store(cell.id.low, Ordering::Relaxed);
        self.begin.store(cell.instant() * 1000, Ordering::Relaxed);
        self.span.store(window.micros().min(elapsed + HOT_MICROS), Ordering::Relaxed);
        self.previous.store(previous, Ordering::Relaxed);
        self.word.store(generation << GENERATION_SHIFT | LIVE | current, Ordering::Release);
    }

    /// Removes the hot counter and returns its id, as its cell holds it, and its current count. The shard
    /// must be locked.
    pub(in crate::memory) fn take(&self) -> Option<(CounterId, u64)> {
        let word = self.word.load(Ordering::Relaxed);
        if word & LIVE == 0 {
            return None;
        }
        let generation = (word >> GENERATION_SHIFT).wrapping_add(1);
        let word = self.word.swap(generation << GENERATION_SHIFT, Ordering::AcqRel);
        let id = CounterId { high: self.high.load(Ordering::Relaxed), low: self.low.load(Ordering::Relaxed) };
        fence(Ordering::Release);
        // The id of an empty cell.
        self.high.store(u64::MAX, Ordering::Relaxed);
        Some((id, count(word)))
    }
}

#[inline]
fn count(word: u64) -> u64 {
    word & (LIVE - 1)
}
