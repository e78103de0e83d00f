//! The calls of a limiter that no request waits for, each a task of its own, because its progress must be recorded even if the request
//! that needs it ends: acquires blocks of leased quota, returns what is unused, and flushes local usage when the store is back.

use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::MAX_COUNT;
use smallvec::{SmallVec, smallvec};
use tokio::time::sleep;

use super::core::LimiterCore;
use crate::check::{Counter, KeyHash, LimitSpec, Settlement};
use crate::failure::{StoreError, StoreFault, StoreHealth};
use crate::lease::BlockAcquisition;
use crate::local::{FlushedRate, UnflushedUsage, UsageFlush};
use crate::pending_call::{ABANDONED, PendingCall};
use crate::plan::PlannedCounter;
use crate::store::Store;

/// Interval at which the store's health is read while there is usage to flush.
const FLUSH_INTERVAL: Duration = Duration::from_millis(20);

/// Interval at which new usage to flush is looked for.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// Shortest pause between two rounds. Timers are no more precise.
const LEAST_PAUSE: Duration = Duration::from_millis(1);

impl<S: Store> LimiterCore<S> {
    /// Runs until the task is aborted.
    pub(super) async fn run_background(self: Arc<Self>) {
        loop {
            let next_review = self.return_unused_quota();
            self.losses.review(self.time.now());
            let has_usage = self.has_usage_to_flush();
            if has_usage && self.store.health() == StoreHealth::Healthy {
                self.flush_some(self.time.now()).await;
            }
            let pause = if has_usage { FLUSH_INTERVAL } else { IDLE_INTERVAL };
            let until_review = next_review.map(|at| at.saturating_sub(self.time.now()));
            let pause =
                until_review.map_or(pause, |micros| Duration::from_micros(micros).clamp(LEAST_PAUSE, pause));
            tokio::select! {
                () = sleep(pause) => {}
                () = self.leases.earlier_review() => {}
            }
        }
    }

    /// Reviews the leases that are due. Returns the time of the next review.
    fn return_unused_quota(self: &Arc<Self>) -> Option<u64> {
        let (returns, next_review) = self.leases.review(self.time.now());
        for settlement in returns {
            let store = self.store.clone();
            self.runtime.spawn(async move {
                // Rule: lease.returned-once.
                // Quota that cannot be returned expires with its window.
                let _ = store.settle(settlement).await;
            });
        }
        next_review
    }
}

impl<S: Store> LimiterCore<S> {
    /// Starts the acquisition of a block.
    pub(super) fn acquire(self: &Arc<Self>, acquisition: BlockAcquisition) {
        // Created before the task, so that the acquisition also ends if the task never starts.
        let running = RunningAcquisition { core: self.clone(), acquisition };
        self.runtime.spawn(async move { running.run().await });
    }
}

/// An acquisition that completes its call however its task ends.
struct RunningAcquisition<S: Store> {
    core: Arc<LimiterCore<S>>,
    acquisition: BlockAcquisition,
}

impl<S: Store> RunningAcquisition<S> {
    async fn run(self) {
        let Self { core, acquisition } = &self;
        // Rule: lease.deadline-from-sending.
        let sent = core.time.now();
        let grant = core.store.acquire(acquisition.counter.clone(), acquisition.units).await;
        if let Ok(grant) = &grant {
            let now = core.time.now();
            core.record_time(grant.response.at, now);
            if grant.response.key_usages.any_overflowed() {
                let _ = core.store.settle(core.leases.overflowed(acquisition, grant)).await;
            } else if let Some(counter) = core.leases.acquired(acquisition, grant, sent, now) {
                core.record_usage(&counter, (0, &grant.response.decisions), &grant.response, now);
            }
        }
        acquisition.call.complete(grant.map(|_| ()));
    }
}

impl<S: Store> Drop for RunningAcquisition<S> {
    fn drop(&mut self) {
        // Both do nothing after a success.
        self.core.leases.acquisition_failed(&self.acquisition);
        self.acquisition.call.complete(ABANDONED);
    }
}

/// Number of counters that are flushed concurrently in the background.
const CONCURRENT_FLUSHES: usize = 64;

/// Time after which a counter is flushed again whose key cannot hold it, in microseconds. It would be asked for all the time otherwise.
const RETRY_BROKEN: u64 = 10_000_000;

/// Usage is acquired in about this many units, which keeps both the number of calls and the rounding small.
const UNITS: u64 = 1024;

impl<S: Store> LimiterCore<S> {
    /// Flushes the local usage of these counters and waits for it.
    pub(super) async fn flush_before_check(
        self: &Arc<Self>,
        counters: &[PlannedCounter],
    ) -> Result<(), StoreError> {
        for counter in counters {
            if let Some(call) = self.flush(counter.counter_id()) {
                call.wait().await?;
            }
        }
        Ok(())
    }

    /// Flushes some of the counters with local usage that are due at `at` of this process's clock, and waits for it.
    pub(super) async fn flush_some(self: &Arc<Self>, at: u64) {
        let pending = self.local_quota.some_pending(CONCURRENT_FLUSHES, at);
        let calls: Vec<_> = pending.into_iter().filter_map(|id| self.flush(id)).collect();
        for call in calls {
            let _ = call.wait().await;
        }
    }

    /// Starts to flush a counter, or joins the running flush. Returns `None` if there is nothing to flush.
    fn flush(self: &Arc<Self>, counter_id: u128) -> Option<Arc<PendingCall>> {
        let (call, flush) = self.local_quota.begin_flush(counter_id, self.time.store_now())?;
        if let Some(flush) = flush {
            let running =
                RunningFlush { core: self.clone(), flush, flushed_rates: SmallVec::new(), result: ABANDONED };
            self.runtime.spawn(async move { running.run().await });
        }
        Some(call)
    }

    /// Adds the usage of one rate to the store. `limit` has only this rate. Returns the usage that the store then has, if
    /// that is known, and the store's time.
    async fn add_usage(
        &self,
        limit: &Arc<LimitSpec>,
        key: KeyHash,
        usage: &mut UnflushedUsage,
    ) -> Result<Option<(u64, u64)>, StoreError> {
        let counter = |cost| Counter { limit: limit.clone(), key, cost };
        // Rule: share.looks-first.
        let response = self.store.check(smallvec![counter(0)]).await?;
        let is_shared = response.key_usages.any_overflowed();
        let in_store = limit.rates.first().zip(response.decisions.first());
        let in_store = in_store.map(|(rate, decision)| rate.used_after(decision)).filter(|_| !is_shared);
        let ((acquired, charged), then) =
            (usage.to_add(in_store), usage.then_in_store(in_store).map(|then| (then, response.at)));
        self.acquire_usage(counter, acquired).await?;
        if charged == 0 {
            return Ok(then);
        }
        // Rule: share.unknown-is-marked.
        usage.may_be_charged = true;
        let delta = charged.min(MAX_COUNT) as i64;
        let (limit, charged) = (limit.clone(), self.time.store_now());
        let charge = Settlement { limit, key, charged, delta, overflowed: false, least: 0 };
        self.store.settle(charge).await.map(|_| then)
    }

    /// Acquires `amount`, or as much as the limit has room for, in few calls: first in large units, then in
    /// small ones.
    async fn acquire_usage(&self, counter: impl Fn(u64) -> Counter, amount: u64) -> Result<(), StoreError> {
        let mut left = amount;
        while left > 0 {
            let unit = left.div_ceil(UNITS).max(1);
            let units = left / unit;
            let granted = self.store.acquire(counter(unit), units).await?.granted.min(units);
            left -= granted * unit;
            if granted < units {
                // There is no room for another unit of this size.
                left = left.min(unit - 1);
            }
        }
        Ok(())
    }
}

/// A flush that reports its progress and completes its call however its task ends.
struct RunningFlush<S: Store> {
    core: Arc<LimiterCore<S>>,
    flush: UsageFlush,
    /// The rates whose usage was added, and what the store then has, if that is known.
    flushed_rates: SmallVec<[FlushedRate; 1]>,
    result: Result<(), StoreError>,
}

impl<S: Store> RunningFlush<S> {
    async fn run(mut self) {
        let UsageFlush { limits, key, usages, .. } = &mut self.flush;
        for usage in usages {
            let Some(limit) = limits.get(usage.rate) else { continue };
            match self.core.add_usage(limit, *key, usage).await {
                Ok(then) => self.flushed_rates.push(FlushedRate { rate: usage.rate, then }),
                Err(error) => {
                    self.result = Err(error);
                    return;
                }
            }
        }
        self.result = Ok(());
    }
}

impl<S: Store> Drop for RunningFlush<S> {
    fn drop(&mut self) {
        let time = &self.core.time;
        let is_broken =
            matches!(self.result, Err(StoreError::Unavailable(StoreFault::WrongType | StoreFault::Nonsense)));
        let flush_after = if is_broken { time.now() + RETRY_BROKEN } else { 0 };
        let local_quota = &self.core.local_quota;
        local_quota.finish_flush(&self.flush, &self.flushed_rates, flush_after, time.store_now());
        self.flush.call.complete(self.result.clone());
    }
}
