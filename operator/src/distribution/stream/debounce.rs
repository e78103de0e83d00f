//! Waits for changes that may affect a session, and merges the ones that come together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Changes that follow each other within this time are sent together.
const QUIET: Duration = Duration::from_millis(100);
/// Longest time that a change waits for others.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// The changes that may affect a session.
pub(super) struct Changes {
    /// Version of the hub.
    pub(super) version: watch::Receiver<u64>,
    /// Notified when the replicas of one of the pod's policies change.
    pub(super) replicas: Arc<Notify>,
}

impl Changes {
    /// Returns the version of the hub and marks it as seen.
    pub(super) fn version(&mut self) -> u64 {
        *self.version.borrow_and_update()
    }

    /// Waits for a change, or until policies are no longer held back.
    pub(super) async fn next(&mut self, held_until: Option<Instant>) {
        match held_until {
            Some(until) => {
                let _ = tokio::time::timeout_at(until, self.change()).await;
            }
            None => self.change().await,
        }
    }

    /// Waits until nothing has changed for [`QUIET`], but not longer than [`MAX_DELAY`].
    pub(super) async fn settle(&mut self) {
        let latest = Instant::now() + MAX_DELAY;
        while Instant::now() < latest {
            let quiet = (Instant::now() + QUIET).min(latest);
            if tokio::time::timeout_at(quiet, self.change()).await.is_err() {
                return;
            }
        }
    }

    async fn change(&mut self) {
        tokio::select! {
            // The session holds the hub, so the sender of the version lives.
            _ = self.version.changed() => {}
            () = self.replicas.notified() => {}
        }
    }
}
