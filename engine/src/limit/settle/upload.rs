//! The length of a request's body, counted while it passes to the application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

/// The length of a request's body so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Upload(Arc<Progress>);

#[derive(Debug, Default)]
struct Progress {
    bytes: AtomicU64,
    ended: CancellationToken,
}

/// Counts a body. Dropping it ends the count.
#[derive(Debug)]
pub struct UploadMeter(Arc<Progress>);

impl Upload {
    /// Returns the meter of the body. There must be only one.
    pub(crate) fn meter(&self) -> UploadMeter {
        UploadMeter(self.0.clone())
    }

    /// Waits for the end of the body, and returns its length in bytes.
    pub(crate) async fn bytes(&self) -> u64 {
        self.0.ended.cancelled().await;
        self.0.bytes.load(Ordering::Acquire)
    }
}

impl UploadMeter {
    /// Adds the length of a part.
    pub fn add(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes as u64, Ordering::AcqRel);
    }
}

impl Drop for UploadMeter {
    fn drop(&mut self) {
        self.0.ended.cancel();
    }
}
