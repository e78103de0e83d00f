//! Counters that the store has lost, by eviction, FLUSHALL or a restart without its data.
//!
//! A counter is lost if the store had to create it although, by the store's clock, it could not have expired. First it is only
//! suspected, because a reset removes a counter before the other processes learn of it. The last resets are remembered, because
//! what was known before may be met later: by a response that arrives late, or by an edit that brings old rates back.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of suspicions. So many resets do not happen at once.
const MAX_SUSPICIONS: usize = 1024;
/// Maximum number of resets that are remembered.
const MAX_RESETS: usize = 1024;
/// Time for which a loss is recent, in microseconds.
const RECENT: u64 = 600_000_000;
/// Shortest interval between two lines of the log, in microseconds.
const LINE_EVERY: u64 = 60_000_000;

/// The epochs of all limiters of the process, which share what they know about counters.
static EPOCHS: AtomicU32 = AtomicU32::new(1);

/// Counts lost counters. Instants are microseconds of a clock of this process that never goes back.
#[derive(Debug)]
pub(super) struct Losses {
    /// Time after which a suspicion is a loss, in microseconds.
    suspicion: u64,
    epoch: AtomicU32,
    suspicions: Mutex<VecDeque<Suspicion>>,
    /// The last resets: the counter, and the time of the removal by the store's clock.
    resets: Mutex<VecDeque<(u128, u64)>>,
    /// Number of suspicions, to look at without the lock.
    suspected: AtomicUsize,
    lost: AtomicU64,
    /// Time of the last loss; 0 if there was none.
    last: AtomicU64,
    log: Mutex<Log>,
}

/// A counter that may be lost.
#[derive(Debug, Clone, Copy)]
struct Suspicion {
    counter: u128,
    since: u64,
}

#[derive(Debug, Default)]
struct Log {
    last_line: Option<u64>,
    unlogged: u64,
}

impl Losses {
    pub(super) fn new(suspicion: Duration) -> Self {
        Self {
            suspicion: suspicion.as_micros() as u64,
            epoch: AtomicU32::new(EPOCHS.fetch_add(1, Relaxed)),
            suspicions: Mutex::default(),
            resets: Mutex::default(),
            suspected: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            last: AtomicU64::new(0),
            log: Mutex::default(),
        }
    }

    /// Returns the present epoch.
    pub(super) fn epoch(&self) -> NonZeroU32 {
        // They begin with 1.
        NonZeroU32::new(self.epoch.load(Relaxed)).unwrap_or(NonZeroU32::MIN)
    }

    /// Begins another epoch: what was known before proves no loss any more.
    pub(super) fn begin_epoch(&self) {
        self.epoch.store(EPOCHS.fetch_add(1, Relaxed), Relaxed);
    }

    /// Suspects that the store has lost a counter, which it had at `known_at` of its clock.
    pub(super) fn suspect(&self, counter: u128, known_at: u64, now: u64) {
        let explains = |&(reset, removed_at): &(u128, u64)| reset == counter && removed_at >= known_at;
        if lock(&self.resets).iter().any(explains) {
            return;
        }
        let mut suspicions = lock(&self.suspicions);
        if suspicions.len() >= MAX_SUSPICIONS && suspicions.pop_front().is_some() {
            self.add(1, now);
        }
        suspicions.push_back(Suspicion { counter, since: now });
        self.suspected.store(suspicions.len(), Relaxed);
    }

    /// Acquits the store: the counter was reset at this time of its clock.
    pub(super) fn acquit(&self, counter: u128, removed_at: u64) {
        let mut resets = lock(&self.resets);
        if resets.len() >= MAX_RESETS {
            resets.pop_front();
        }
        resets.push_back((counter, removed_at));
        drop(resets);
        let mut suspicions = lock(&self.suspicions);
        suspicions.retain(|suspicion| suspicion.counter != counter);
        self.suspected.store(suspicions.len(), Relaxed);
    }

    /// Counts the suspicions that are old enough, and logs them.
    pub(super) fn review(&self, now: u64) {
        if self.suspected.load(Relaxed) > 0 {
            let mut suspicions = lock(&self.suspicions);
            let old =
                suspicions.iter().take_while(|suspicion| suspicion.since + self.suspicion <= now).count();
            suspicions.drain(..old);
            self.suspected.store(suspicions.len(), Relaxed);
            drop(suspicions);
            self.add(old as u64, now);
        }
        let mut log = lock(&self.log);
        if log.unlogged > 0 && log.last_line.is_none_or(|last| last + LINE_EVERY <= now) {
            tracing::warn!(
                counters = log.unlogged,
                "the store has lost counters before they expired, so these clients begin again with nothing used: look for \
                 evicted keys, FLUSHALL, or a restart without persistence"
            );
            *log = Log { last_line: Some(now), unlogged: 0 };
        }
    }

    /// Counts lost counters.
    pub(super) fn add(&self, counters: u64, now: u64) {
        if counters > 0 {
            self.lost.fetch_add(counters, Relaxed);
            self.last.store(now.max(1), Relaxed);
            lock(&self.log).unlogged += counters;
        }
    }

    /// Returns the number of lost counters.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    /// Reports whether a counter was lost in the last minutes.
    pub(super) fn has_lost_recently(&self, now: u64) -> bool {
        let last = self.last.load(Relaxed);
        last > 0 && now.saturating_sub(last) < RECENT
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No statement that changes the value can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUSPICION: u64 = 120_000_000;

    fn losses() -> Losses {
        Losses::new(Duration::from_micros(SUSPICION))
    }

    #[test]
    fn a_suspicion_becomes_a_loss_unless_the_counter_was_reset() {
        let losses = losses();
        losses.suspect(1, 5, 10);
        losses.suspect(2, 5, 10);
        losses.review(10 + SUSPICION - 1);
        losses.acquit(2, 6);
        losses.suspect(2, 6, 10);
        assert_eq!((losses.lost(), losses.has_lost_recently(SUSPICION)), (0, false));
        losses.review(10 + SUSPICION);
        losses.review(10 + 2 * SUSPICION);
        assert_eq!((losses.lost(), losses.has_lost_recently(10 + SUSPICION)), (1, true));
        assert!(!losses.has_lost_recently(10 + SUSPICION + RECENT));
    }

    #[test]
    fn of_many_suspicions_the_oldest_count_at_once() {
        let losses = losses();
        (0..3000).for_each(|counter| losses.suspect(counter, 1, 5));
        assert_eq!(losses.lost(), 3000 - MAX_SUSPICIONS as u64);
        losses.review(5 + SUSPICION);
        assert_eq!(losses.lost(), 3000);
    }

    #[test]
    fn an_epoch_is_never_used_twice() {
        let (one, other) = (losses(), losses());
        let before = [one.epoch(), other.epoch()];
        one.begin_epoch();
        assert!(before[0] != before[1] && !before.contains(&one.epoch()));
    }
}
