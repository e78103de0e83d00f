//! Waits for changes that concern a session, and merges the ones that come together.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::distribution::wakeup::Wakeup;

/// Changes that follow each other within this time are sent together.
const QUIET: Duration = Duration::from_millis(100);
/// Longest time that a change waits for others.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// The changes that concern a session.
pub(super) struct Changes(pub(super) Arc<Wakeup>);

impl Changes {
    /// Reports whether policies have changed since the last call.
    pub(super) fn take_policies(&self) -> bool {
        self.0.take_policies()
    }

    /// Waits for a change, or until policies are no longer held back.
    pub(super) async fn next(&self, held_until: Option<Instant>) {
        match held_until {
            Some(until) => {
                let _ = tokio::time::timeout_at(until, self.change()).await;
            }
            None => self.change().await,
        }
    }

    /// Waits until nothing has changed for [`QUIET`], but not longer than [`MAX_DELAY`], and not after `latest`.
    pub(super) async fn settle(&self, latest: Instant) {
        let latest = latest.min(Instant::now() + MAX_DELAY);
        while Instant::now() < latest {
            let quiet = (Instant::now() + QUIET).min(latest);
            if tokio::time::timeout_at(quiet, self.change()).await.is_err() {
                return;
            }
        }
    }

    async fn change(&self) {
        self.0.woken().await;
    }
}
