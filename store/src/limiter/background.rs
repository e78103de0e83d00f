//! The background task of a limiter: it returns unused quota, and flushes local usage when the store is back.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::core::LimiterCore;
use crate::failure::StoreHealth;
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
