//! A call to the store that several requests wait for. The call continues even if all of them are
//! cancelled, so its result is not lost.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::failure::{StoreError, StoreFault};

/// Result of a call whose task ended early because its runtime shut down.
pub(crate) const ABANDONED: Result<(), StoreError> = Err(StoreError::Unavailable(StoreFault::Unreachable));

/// A call to the store and its future result.
#[derive(Debug, Default)]
pub(crate) struct PendingCall {
    result: OnceLock<Result<(), StoreError>>,
    completed: Notify,
}

impl PendingCall {
    /// Sets the result and wakes all waiters. Later results are ignored.
    pub(crate) fn complete(&self, result: Result<(), StoreError>) {
        let _ = self.result.set(result);
        self.completed.notify_waiters();
    }

    /// Waits for the result.
    pub(crate) async fn wait(&self) -> Result<(), StoreError> {
        // Created before the result is read, so that a completion in between wakes it.
        let completed = self.completed.notified();
        if let Some(result) = self.result.get() {
            return result.clone();
        }
        completed.await;
        self.result.get().cloned().unwrap_or(ABANDONED)
    }
}
