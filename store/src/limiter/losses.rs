//! Counters that the store has lost, by eviction, FLUSHALL or a restart without its data.
//!
//! A counter is lost if the store had to create it although, by the store's clock, it could not have expired: a reset keeps it.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// Time for which a loss is recent, in microseconds.
const RECENT: u64 = 600_000_000;
/// Time for which losses are gathered for one line of the log, and the shortest interval between two, in microseconds.
const GATHERED: u64 = 2_000_000;
const LINE_EVERY: u64 = 60_000_000;

/// The epochs of all limiters of the process, which share what they know about counters.
static EPOCHS: AtomicU32 = AtomicU32::new(1);

/// Counts lost counters. Instants are microseconds of a clock of this process that never goes back.
#[derive(Debug)]
pub(super) struct Losses {
    epoch: AtomicU32,
    lost: AtomicU64,
    /// Time of the last loss; 0 if there was none.
    last: AtomicU64,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    /// Time of the first loss that is not logged.
    since: u64,
    unlogged: u64,
    last_line: Option<u64>,
}

impl Losses {
    pub(super) fn new() -> Self {
        Self {
            epoch: AtomicU32::new(EPOCHS.fetch_add(1, Relaxed)),
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

    /// Counts a lost counter.
    pub(super) fn add(&self, now: u64) {
        self.lost.fetch_add(1, Relaxed);
        self.last.store(now.max(1), Relaxed);
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        if log.unlogged == 0 {
            log.since = now;
        }
        log.unlogged += 1;
    }

    /// Logs the losses of the last seconds.
    pub(super) fn review(&self, now: u64) {
        if self.last.load(Relaxed) == 0 {
            return;
        }
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = log.since + GATHERED <= now && log.last_line.is_none_or(|last| last + LINE_EVERY <= now);
        if log.unlogged > 0 && is_due {
            tracing::warn!(
                counters = log.unlogged,
                "the store has lost counters before they expired, so these clients begin again with nothing used: look for \
                 evicted keys, FLUSHALL, or a restart without persistence"
            );
            *log = Log { last_line: Some(now), ..Log::default() };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_recent_for_ten_minutes() {
        let losses = Losses::new();
        assert!(!losses.has_lost_recently(RECENT));
        losses.add(10);
        assert_eq!((losses.lost(), losses.has_lost_recently(10 + RECENT - 1)), (1, true));
        assert!(!losses.has_lost_recently(10 + RECENT));
    }

    #[test]
    fn losses_of_some_seconds_are_one_line() {
        let losses = Losses::new();
        let unlogged = || losses.log.lock().unwrap().unlogged;
        (0..147).for_each(|n| losses.add(5 + n));
        losses.review(4 + GATHERED);
        assert_eq!(unlogged(), 147);
        losses.review(5 + GATHERED);
        losses.add(6 + GATHERED);
        losses.review(4 + GATHERED + LINE_EVERY);
        assert_eq!((unlogged(), losses.lost()), (1, 148));
        losses.review(5 + GATHERED + LINE_EVERY);
        assert_eq!(unlogged(), 0);
    }

    #[test]
    fn an_epoch_is_never_used_twice() {
        let (one, other) = (Losses::new(), Losses::new());
        let before = [one.epoch(), other.epoch()];
        one.begin_epoch();
        assert!(before[0] != before[1] && !before.contains(&one.epoch()));
    }
}
