//! Handles to a limiter, which count its users so that a replaced limiter is closed after the last of them.

use std::ops::Deref;
use std::sync::Arc;

use sluice_store::Limiter;
use tokio_util::task::task_tracker::{TaskTracker, TaskTrackerToken};

/// A limiter in use. A replaced limiter is closed when its last handle has been dropped.
#[derive(Debug, Clone)]
pub(crate) struct LimiterHandle {
    limiter: Arc<Limiter>,
    _in_use: TaskTrackerToken,
}

impl LimiterHandle {
    /// Creates a handle that `users` counts.
    pub(crate) fn new(limiter: Arc<Limiter>, users: &TaskTracker) -> Self {
        Self { limiter, _in_use: users.token() }
    }

    /// Returns the limiter for callers that are not counted, and so do not delay its closing.
    pub(crate) fn limiter(&self) -> &Arc<Limiter> {
        &self.limiter
    }
}

impl Deref for LimiterHandle {
    type Target = Limiter;

    fn deref(&self) -> &Limiter {
        &self.limiter
    }
}
