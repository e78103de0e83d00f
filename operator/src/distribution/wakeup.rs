//! Wakes a session when something changes that concerns it.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// The kind of a change that concerns a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Changed {
    /// Only replicas or resets.
    Live,
    /// The policies of its pod, its labels, or the access to stores.
    Policies,
}

/// Wakes one session.
#[derive(Debug, Default)]
pub(super) struct Wakeup {
    notify: Notify,
    /// Whether policies have changed since the session has looked.
    policies: AtomicBool,
}

impl Wakeup {
    pub(super) fn wake(&self, changed: Changed) {
        if changed == Changed::Policies {
            self.policies.store(true, Ordering::Release);
        }
        self.notify.notify_one();
    }

    /// Waits until the session is woken.
    pub(super) async fn woken(&self) {
        self.notify.notified().await;
    }

    /// Reports whether policies have changed since the last call.
    pub(super) fn take_policies(&self) -> bool {
        self.policies.swap(false, Ordering::AcqRel)
    }
}
