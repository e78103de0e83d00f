//! Corrections of a charge: a refund of a request that is not forwarded, or the difference to what its outcome costs.

use std::time::Duration;

use sluice_limiter::MAX_COUNT;
use sluice_store::{PlannedCounter, Reservation, StoreError, StoreHealth};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::stores::limiter_handle::LimiterHandle;

/// Longest time for which a correction waits for a store that does not answer.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// Longest time for which a worker that ends waits for its corrections.
pub const LONGEST_END: Duration = Duration::from_secs(2);
/// Interval at which the health of such a store is read, and a settlement is repeated.
pub(crate) const HEALTH_INTERVAL: Duration = Duration::from_millis(50);

/// Number of corrections of the process that may wait for a store. Further ones are lost.
static WAITING: Semaphore = Semaphore::const_new(4096);

/// A charge, and by how much it is corrected.
#[derive(Debug)]
pub(crate) struct Correction {
    limiter: LimiterHandle,
    counter: PlannedCounter,
    reservation: Reservation,
    /// Additional cost; negative for a refund.
    delta: i64,
}

thread_local! {
    /// The corrections that tasks of this worker make.
    static RUNNING: TaskTracker = TaskTracker::new();
}

/// Runs a future that makes a correction. [`finish`] waits for it.
pub(crate) fn spawn(correction: impl Future<Output = ()> + Send + 'static) {
    // Without a runtime the process is about to end.
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(RUNNING.with(|running| running.track_future(correction)));
    }
}

/// Waits for the corrections of this worker, for a limited time.
pub(crate) async fn finish() {
    let running = RUNNING.with(Clone::clone);
    running.close();
    let _ = timeout(LONGEST_END, running.wait()).await;
}

impl Correction {
    /// Gives the whole charge back.
    pub(crate) fn refund(limiter: LimiterHandle, counter: PlannedCounter, reservation: Reservation) -> Self {
        Self::to(0, limiter, counter, reservation)
    }

    /// Changes the charge to `cost`.
    pub(crate) fn to(
        cost: u64,
        limiter: LimiterHandle,
        counter: PlannedCounter,
        reservation: Reservation,
    ) -> Self {
        // Both are at most 2^40.
        let delta = cost.min(MAX_COUNT) as i64 - counter.cost.min(MAX_COUNT) as i64;
        Self { limiter, counter, reservation, delta }
    }

    /// Changes the charge by `delta`.
    pub(crate) fn by(
        delta: i64,
        limiter: LimiterHandle,
        counter: PlannedCounter,
        reservation: Reservation,
    ) -> Self {
        Self { limiter, counter, reservation, delta }
    }

    /// Makes the correction in a task of its own, which ends even if the request does. Drops `after` then.
    pub(crate) fn start(self, after: impl Send + 'static) {
        if self.is_nothing() {
            return;
        }
        spawn(async move {
            // Without an answer the charge may stay, as if the request had been admitted.
            let _ = self.apply().await;
            drop(after);
        });
    }

    /// Reports whether there is nothing to correct.
    pub(crate) fn is_nothing(&self) -> bool {
        self.reservation == Reservation::Nothing || self.delta == 0
    }

    /// Makes the correction. It waits for a store that does not answer, or whose queue is full, and is then sent once: sent
    /// twice, it could be made twice.
    ///
    /// # Errors
    /// The store did not answer. The correction may or may not have been made.
    pub(crate) async fn apply(self) -> Result<(), StoreError> {
        let until = Instant::now() + LONGEST_WAIT;
        let mut waiting = None;
        loop {
            let is_failing = matches!(self.limiter.health(), StoreHealth::Failing(_)) && self.is_in_store();
            if !is_failing || Instant::now() >= until {
                match self.limiter.settle(&self.counter, self.reservation, self.delta).await {
                    // It has not been sent.
                    Err(StoreError::Overloaded) if Instant::now() < until => {}
                    result => return result,
                }
            }
            if waiting.is_none() {
                waiting = Some(WAITING.try_acquire().map_err(|_| StoreError::Overloaded)?);
            }
            sleep(HEALTH_INTERVAL).await;
        }
    }

    fn is_in_store(&self) -> bool {
        match self.reservation {
            Reservation::Store(_) | Reservation::Overflow(_) => true,
            Reservation::Local(_) | Reservation::Nothing => false,
        }
    }
}
