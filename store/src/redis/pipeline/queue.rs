//! The queue between a node and its worker.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tokio::sync::Notify;

use crate::failure::StoreError;
use crate::redis::batch::{Batch, BatchGroup, PendingOperation};

/// Work for a server.
#[derive(Debug)]
pub(crate) enum QueueItem {
    /// A new operation.
    New(BatchGroup, PendingOperation),
    /// A batch that a server redirected, or that a small script did not decide.
    Repeated(Box<RepeatedBatch>),
}

/// A batch that is sent again, for another server or another script.
#[derive(Debug)]
pub(crate) struct RepeatedBatch {
    pub(crate) group: BatchGroup,
    pub(crate) batch: Batch,
    /// Whether the call follows an ASKING command.
    pub(crate) asking: bool,
    /// Number of times that the batch was redirected.
    pub(crate) redirects: u32,
}

impl QueueItem {
    /// Returns an error to all callers.
    pub(crate) fn fail(self, error: &StoreError) {
        match self {
            Self::New(_, pending) => pending.operation.fail(error.clone()),
            Self::Repeated(repeated) => repeated.batch.fail(error),
        }
    }
}

/// Wakes the worker when enough operations wait to send a second call while the first one is in flight.
#[derive(Debug, Default)]
pub(super) struct SecondCallSignal {
    /// Whether exactly one call is in flight.
    one_in_flight: AtomicBool,
    notify: Notify,
    /// Number of waiting operations that suffices for a second call.
    threshold: AtomicUsize,
}

impl SecondCallSignal {
    pub(super) fn set_in_flight(&self, calls: usize) {
        self.one_in_flight.store(calls == 1, Relaxed);
    }

    pub(super) fn threshold(&self) -> usize {
        self.threshold.load(Relaxed)
    }

    pub(super) fn set_threshold(&self, waiting: usize) {
        self.threshold.store(waiting, Relaxed);
    }

    /// Wakes the worker if this number of waiting operations suffices.
    pub(super) fn notify_if_reached(&self, waiting: impl FnOnce() -> usize) {
        if self.one_in_flight.load(Relaxed)
            && waiting() >= self.threshold()
            && self.one_in_flight.swap(false, Relaxed)
        {
            self.notify.notify_one();
        }
    }

    /// Waits for [`SecondCallSignal::notify_if_reached`].
    pub(super) async fn reached(&self) {
        self.notify.notified().await;
    }
}
