//! The state that checks and background work share, with two clocks in microseconds: one of this process, which never goes back, and an
//! estimate of the store's, for windows that are counted here while the store does not answer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use sluice_limiter::Decision;
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::denial_cache::DenialCache;
use super::losses::Losses;
use crate::check::CheckResponse;
use crate::clock::Clock;
use crate::lease::Leases;
use crate::local::{LocalQuota, SeenUsage};
use crate::plan::PlannedCounter;

/// The state of a limiter in front of a remote store.
#[derive(Debug)]
pub(super) struct LimiterCore<S> {
    pub(super) store: Arc<S>,
    /// Runtime of the background calls. The runtime of a request can end before such a call does.
    pub(super) runtime: Handle,
    pub(super) time: StoreTime,
    /// Longest time that a request waits for the store.
    pub(super) latency_budget: Duration,
    pub(super) leases: Leases,
    pub(super) denials: DenialCache,
    pub(super) losses: Losses,
    /// Shared with the successor, once there is one.
    pub(super) local_quota: Arc<LocalQuota>,
    /// Whether a successor flushes the local usage.
    pub(super) has_successor: AtomicBool,
    /// Held while the limiter is being closed.
    pub(super) closing: Mutex<()>,
}

impl<S> LimiterCore<S> {
    /// Records that a response with the store's time `at` arrived at `now`.
    pub(super) fn record_time(&self, at: u64, now: u64) {
        if self.time.record(at, now) {
            self.losses.begin_epoch();
        }
    }

    /// Records what a response says about a counter: its number in the response, and its decisions.
    pub(super) fn record_usage(
        &self,
        counter: &PlannedCounter,
        (n, decisions): (usize, &[Decision]),
        response: &CheckResponse,
        now: u64,
    ) {
        let seen = SeenUsage {
            decisions,
            at: response.at,
            charged: response.admitted && counter.cost > 0,
            created: response.created.contains(n),
            epoch: self.losses.epoch(),
        };
        if self.local_quota.record_usage(counter, seen) {
            self.losses.add(now);
        }
    }

    /// Reports whether this limiter has local usage to flush.
    pub(super) fn has_usage_to_flush(&self) -> bool {
        self.local_quota.pending() > 0 && !self.has_successor.load(Relaxed)
    }
}

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
