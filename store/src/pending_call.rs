//! A call to the store that several wait for. It goes on if they leave, so that what it brings is not lost.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::failure::{StoreError, StoreFault};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct PendingCall {
    result: OnceLock<Result<(), StoreError>>,
    landed: Notify,
}

impl PendingCall {
    /// Tells everybody, now and later. Only the first result counts.
    pub(crate) fn complete(&self, result: Result<(), StoreError>) {
        let _ = self.result.set(result);
        self.landed.notify_waiters();
    }

    /// The result, as soon as there is one.
    pub(crate) async fn completed(&self) -> Result<(), StoreError> {
        // Made before looking: it misses no landing from here on.
        let landed = self.landed.notified();
        if let Some(result) = self.result.get() {
            return result.clone();
        }
        landed.await;
        self.result.get().cloned().unwrap_or(LOST)
    }
}

/// What becomes of a call whose task ended without a result: its runtime is ending.
pub(crate) const LOST: Result<(), StoreError> = Err(StoreError::Unavailable(StoreFault::Unreachable));
