//! Acquires a block of leased quota. The call is a task of its own, so the block is not lost when the request
//! that wanted it ends.

use std::sync::Arc;

use super::core::LimiterCore;
use crate::lease::BlockAcquisition;
use crate::pending_call::ABANDONED;
use crate::store::Store;

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
