//! Checks of one counter with a plain window or a bucket, which are most checks. Whatever a function here
//! does not handle, it passes on to a more general one.

use std::sync::MutexGuard;

use super::rate::{Bucket, Window};
use super::store::{MemoryStore, shard_of};
use super::table::Shard;
use crate::check::{CheckResponse, Counter};

impl MemoryStore {
    /// Checks a plain window whose counter may be hot. Handles only the most frequent cases, like
    /// [`Self::check_window`].
    #[inline(never)]
    pub(super) fn check_hot(&self, counter: &Counter, window: &Window, now: u64) -> CheckResponse {
        let id = window.tagged(counter.limit.prepared.id(counter.key.0));
        match self.hot[shard_of(id)].check_plain(id, window, counter.cost, now) {
            Some(verdict) => CheckResponse::single(window.decision(verdict), now),
            None => self.check_hot_in_full(counter, window, now),
        }
    }

    /// Checks a plain window whose counter may be hot.
    #[inline(never)]
    fn check_hot_in_full(&self, counter: &Counter, window: &Window, now: u64) -> CheckResponse {
        let id = window.tagged(counter.limit.prepared.id(counter.key.0));
        match self.hot[shard_of(id)].check(id, window, counter.cost, now) {
            Some(verdict) => CheckResponse::single(window.decision(verdict), now),
            None => self.check_window(counter, window, now),
        }
    }

    /// Checks a plain window. Handles only the most frequent case, in as few instructions as possible: while
    /// the cell is loaded from memory, the processor executes the following checks as far as its reorder
    /// buffer reaches.
    #[inline(never)]
    pub(super) fn check_window(&self, counter: &Counter, window: &Window, now: u64) -> CheckResponse {
        let id = window.tagged(counter.limit.prepared.id(counter.key.0));
        let Ok(mut shard) = self.shards[shard_of(id)].0.try_lock() else {
            let shard = self.lock_without_hot(shard_of(id));
            return self.check_window_in_full(shard, counter, window, now);
        };
        if !self.hot[shard_of(id)].may_hold(id)
            && shard.is_quiet(id)
            && let Some(cell) = shard.table.find(id)
            && let Some(elapsed) = window.elapsed(cell, now)
            && let Some((current, previous)) = cell.narrow()
            && let Some(left) = window.left(current, previous, elapsed)
            && counter.cost.wrapping_sub(1) < left
        {
            cell.charge(counter.cost);
            shard.note(id);
            drop(shard);
            let verdict = window.admitted(left - counter.cost, elapsed);
            return CheckResponse::single(window.decision(verdict), now);
        }
        self.check_window_in_full(shard, counter, window, now)
    }

    /// Checks a plain window.
    #[inline(never)]
    fn check_window_in_full(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        counter: &Counter,
        window: &Window,
        now: u64,
    ) -> CheckResponse {
        let id = window.tagged(counter.limit.prepared.id(counter.key.0));
        let hot = &self.hot[shard_of(id)];
        if hot.may_hold(id) && hot.is_live() {
            shard.cool(hot);
            // Checks of the hot counter did not tick.
            shard.make_due();
        }
        let is_repeated = shard.is_repeated(id);
        if !shard.tick()
            && let Some(cell) = shard.table.find(id)
            && let Some(elapsed) = window.elapsed(cell, now)
            && let Some((current, previous)) = cell.narrow()
        {
            let verdict = window.decide(current, previous, elapsed, counter.cost);
            if verdict.admitted {
                cell.charge(counter.cost);
            }
            if is_repeated && !hot.is_live() {
                hot.put(cell, window, elapsed);
            }
            drop(shard);
            return CheckResponse::single(window.decision(verdict), now);
        }
        drop(shard);
        self.check_any(std::slice::from_ref(counter), now)
    }

    /// Checks a bucket with a cost of 1.
    #[inline(never)]
    pub(super) fn check_bucket(&self, counter: &Counter, bucket: &Bucket, now: u64) -> CheckResponse {
        let id = bucket.tagged(counter.limit.prepared.id(counter.key.0));
        let mut shard = self.lock_without_hot(shard_of(id));
        if !shard.tick()
            && let Some(cell) = shard.table.find(id)
            && let before = cell.instant()
            && let Some(verdict) = bucket.check(cell, now)
        {
            // The record of a bucket expires a millisecond after its instant.
            let after = cell.instant();
            self.registries.replace(&counter.limit, before + 1, after + 1, now);
            drop(shard);
            return CheckResponse::single(bucket.decision(verdict), now);
        }
        drop(shard);
        self.check_any(std::slice::from_ref(counter), now)
    }
}
