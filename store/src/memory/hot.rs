//! A counter that is asked for again and again, outside of its shard's lock: threads that ask for the same key at once
//! would otherwise wait for one another, and one thread would lock and unlock for each check. At most one counter of a
//! shard is here, of a plain window, as long as its slot is the current one, and for a lease at most; then the shard is
//! locked again, and swept.
//!
//! While it is here, the newest count stands here and not in its entry. A charge is one compare-and-swap of a word that
//! holds the count and a generation; a denial only reads. Only who holds the shard's lock takes a counter in or out, and
//! each time the generation changes: first before what stands beside the word is written, then after. So a charge fails if
//! any of what it was decided by has been replaced meanwhile, or if another charge came between. A generation comes back
//! after 2^32 changes, of which none is quicker than two checks.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::entry::{Entry, Id};
use super::window::{Verdict, Window};

/// How long a counter may be asked for without the shard's lock, in microseconds.
pub(super) const LEASE: u64 = 500;

/// Set while a counter is here. Below it is the count, above it the generation.
const LIVE: u64 = 1 << 31;
const GENERATION: u32 = 32;

/// At most one counter.
#[derive(Debug)]
#[repr(C, align(128))]
pub(super) struct Hot {
    word: AtomicU64,
    /// Its id, as its entry holds it.
    high: AtomicU64,
    low: AtomicU64,
    /// When its slot begins, in microseconds, and how long after that it is here.
    begin: AtomicU64,
    span: AtomicU64,
    /// The count of the slot before.
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
    /// Whether this counter may be here: rarely, if it is not. With the shard locked: always, if it is.
    #[inline]
    pub(super) fn may_be(&self, id: Id) -> bool {
        self.high.load(Ordering::Relaxed) == id.high
    }

    /// Decides, and charges, if the counter is here and it is as easy as for most; otherwise `None`, and nothing changed.
    #[inline]
    pub(super) fn check_plain(&self, id: Id, window: &Window, cost: u64, now: u64) -> Option<Verdict> {
        let word = self.word.load(Ordering::Acquire);
        let here = Id { high: self.high.load(Ordering::Relaxed), low: self.low.load(Ordering::Relaxed) };
        let spent = now.wrapping_sub(self.begin.load(Ordering::Relaxed));
        if word & LIVE == 0 || here != id || spent >= self.span.load(Ordering::Relaxed) {
            return None;
        }
        let previous = self.previous.load(Ordering::Relaxed);
        let left = window.left(count(word), previous, spent)?;
        // Who has read what was written for another generation sees that generation from here on.
        fence(Ordering::Acquire);
        if cost.wrapping_sub(1) < left {
            // No more than the window's number, which is below LIVE.
            let charged = word + cost;
            let found = self.word.compare_exchange(word, charged, Ordering::AcqRel, Ordering::Relaxed);
            return found.is_ok().then(|| window.admitted(left - cost, spent));
        }
        let plain = cost == 1 && left == 0 && previous == 0 && count(word) > 0;
        let same = self.word.load(Ordering::Relaxed) >> GENERATION == word >> GENERATION;
        (plain && same).then(|| window.full(spent))
    }

    /// Decides, and charges; `None`, and nothing changed, if the counter is not here (any more).
    #[inline]
    pub(super) fn check(&self, id: Id, window: &Window, cost: u64, now: u64) -> Option<Verdict> {
        let mut word = self.word.load(Ordering::Acquire);
        while word & LIVE != 0 && self.high.load(Ordering::Relaxed) == id.high {
            let low = self.low.load(Ordering::Relaxed);
            let spent = now.wrapping_sub(self.begin.load(Ordering::Relaxed));
            if low != id.low || spent >= self.span.load(Ordering::Relaxed) {
                return None;
            }
            let verdict = window.decide(count(word), self.previous.load(Ordering::Relaxed), spent, cost);
            // As above.
            fence(Ordering::Acquire);
            let found = if verdict.admitted {
                self.word.compare_exchange_weak(word, word + cost, Ordering::AcqRel, Ordering::Acquire)
            } else {
                let found = self.word.load(Ordering::Acquire);
                if found >> GENERATION == word >> GENERATION { Ok(found) } else { Err(found) }
            };
            match found {
                Ok(_) => return Some(verdict),
                Err(found) => word = found,
            }
        }
        None
    }

    /// Whether a counter is here. It changes only while the shard is locked.
    #[inline]
    pub(super) fn is_live(&self) -> bool {
        self.word.load(Ordering::Relaxed) & LIVE != 0
    }

    /// Takes a counter in, with the shard locked and none here.
    #[cold]
    pub(super) fn put(&self, entry: &Entry, window: &Window, spent: u64) {
        let generation = (self.word.load(Ordering::Relaxed) >> GENERATION).wrapping_add(1);
        let (current, previous) = entry.halves();
        // As in `take`, whose change of the generation comes before these for all.
        fence(Ordering::Release);
        self.high.store(entry.id.high, Ordering::Relaxed);
        self.low.store(entry.id.low, Ordering::Relaxed);
        self.begin.store(entry.instant() * 1000, Ordering::Relaxed);
        self.span.store(window.micros().min(spent + LEASE), Ordering::Relaxed);
        self.previous.store(previous, Ordering::Relaxed);
        self.word.store(generation << GENERATION | LIVE | current, Ordering::Release);
    }

    /// Takes the counter out, with the shard locked: its id, as its entry holds it, and its newest count.
    pub(super) fn take(&self) -> Option<(Id, u64)> {
        let word = self.word.load(Ordering::Relaxed);
        if word & LIVE == 0 {
            return None;
        }
        let generation = (word >> GENERATION).wrapping_add(1);
        let word = self.word.swap(generation << GENERATION, Ordering::AcqRel);
        let id = Id { high: self.high.load(Ordering::Relaxed), low: self.low.load(Ordering::Relaxed) };
        fence(Ordering::Release);
        // As of no key.
        self.high.store(u64::MAX, Ordering::Relaxed);
        Some((id, count(word)))
    }
}

#[inline]
fn count(word: u64) -> u64 {
    word & (LIVE - 1)
}
