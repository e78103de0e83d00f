//! Two clocks in microseconds: one of this process, which never goes back, and an estimate of the store's,
//! for windows that are counted here while the store does not answer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::time::Instant;

use crate::clock::Clock;

/// The store's clock has gone back if it is this much behind, in microseconds. A response may be late, too.
const STEP: u64 = 500_000;

/// The clock of this process, and its offset to the store's.
#[derive(Debug)]
pub(super) struct StoreTime {
    started: Instant,
    /// The store's time when this process's clock was 0. It comes from the last response, or from the
    /// machine's clock before the first one.
    offset: AtomicU64,
}

impl StoreTime {
    pub(super) fn new() -> Self {
        Self { started: Instant::now(), offset: AtomicU64::new(Clock::system().now()) }
    }

    /// Returns clocks for a limiter in front of another store. They assume the same store time until that
    /// store answers.
    pub(super) fn for_successor(&self) -> Self {
        Self { started: self.started, offset: AtomicU64::new(self.offset.load(Relaxed)) }
    }

    /// Returns the time of this process's clock.
    pub(super) fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    /// Estimates the store's time now.
    pub(super) fn store_now(&self) -> u64 {
        self.store_time_at(self.now())
    }

    /// Estimates the store's time at `now` of this process's clock. It is late by the latency of the last
    /// response at most.
    pub(super) fn store_time_at(&self, now: u64) -> u64 {
        self.offset.load(Relaxed) + now
    }

    /// Records that a response with the store's time `at` arrived at `now`. Returns whether the store's clock has gone back.
    pub(super) fn record(&self, at: u64, now: u64) -> bool {
        let offset = at.saturating_sub(now);
        offset.saturating_add(STEP) < self.offset.swap(offset, Relaxed)
    }
}
