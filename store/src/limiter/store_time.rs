//! Two clocks in microseconds: one of this process, which never goes back and by which everything is measured; and a
//! guess of the store's, for the windows that are counted here while it does not answer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::time::Instant;

use crate::clock::Clock;

/// See the module.
#[derive(Debug)]
pub(super) struct StoreTime {
    started: Instant,
    /// The store's clock when this process's was 0: by its last answer, or by the machine's clock before there was one.
    offset: AtomicU64,
}

impl StoreTime {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), offset: AtomicU64::new(Clock::system().now()) }
    }

    /// The same clocks, for another store: until that answers, its clock is taken to be the old one's.
    pub(super) fn copied(&self) -> Self {
        Self { started: self.started, offset: AtomicU64::new(self.offset.load(Relaxed)) }
    }

    /// This process's clock.
    pub(super) fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// The store answered at `at` of its clock; this was received at `now`.
    pub(super) fn heard(&self, at: u64, now: u64) {
        self.offset.store(at.saturating_sub(now), Relaxed);
    }

    /// The store's clock at `now`, behind it by no more than an answer took to come.
    pub(super) fn of_store(&self, now: u64) -> u64 {
        self.offset.load(Relaxed) + now
    }
}
