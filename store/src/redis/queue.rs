//! A check and who waits for it.

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::check::{Answer, Check};
use crate::failure::StoreError;

/// How many checks may wait. More than a few batches cannot be answered within the latency budget anyway.
pub(super) const MAX_WAITING: usize = 4096;

/// A check that waits.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) check: Check,
    /// When its caller gives up.
    pub(super) deadline: Instant,
    pub(super) answer: Caller,
}

/// Where an answer goes.
pub(super) type Caller = oneshot::Sender<Result<Answer, StoreError>>;

impl Job {
    /// Answers without asking the store. A caller who has gone does not mind.
    pub(super) fn refuse(self, error: StoreError) {
        let _ = self.answer.send(Err(error));
    }
}
