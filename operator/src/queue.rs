//! The queue of objects to reconcile, with the guarantees of a Kubernetes work queue: an object is queued at
//! most once, and it is not handed out again until its current reconcile has ended. An object that is queued
//! meanwhile follows directly after.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::object_key::ObjectKey;

#[cfg(test)]
mod tests;

/// The queue of objects to reconcile.
#[derive(Default)]
pub struct Queue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Objects to reconcile now.
    ready: BTreeSet<ObjectKey>,
    /// Objects to reconcile later, and when.
    delayed: BTreeMap<ObjectKey, Instant>,
    /// Objects that are being reconciled.
    claimed: BTreeSet<ObjectKey>,
}

/// An object taken from the queue. The queue does not return this object again until the claim is dropped.
pub struct Claim {
    queue: Arc<Queue>,
    key: ObjectKey,
}

impl Claim {
    /// Returns the key of the object.
    #[must_use]
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.queue.lock().claimed.remove(&self.key);
        self.queue.changed.notify_one();
    }
}

impl Queue {
    /// Queues one object.
    pub fn add(&self, key: ObjectKey) {
        self.add_all([key]);
    }

    /// Queues several objects.
    pub fn add_all(&self, keys: impl IntoIterator<Item = ObjectKey>) {
        self.lock().ready.extend(keys);
        self.changed.notify_one();
    }

    /// Queues an object after a delay. If it is already delayed, the earlier time counts.
    pub fn add_after(&self, key: ObjectKey, delay: Duration) {
        let at = Instant::now() + delay;
        self.lock().delayed.entry(key).and_modify(|old| *old = at.min(*old)).or_insert(at);
        self.changed.notify_one();
    }

    /// Waits for an object that is due and not claimed, and claims it. Only one task may call this.
    pub async fn next(self: &Arc<Self>) -> Claim {
        loop {
            let next_due = {
                let mut state = self.lock();
                if let Some(key) = state.take(Instant::now()) {
                    return Claim { queue: self.clone(), key };
                }
                state.delayed.values().min().copied()
            };
            match next_due {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No statement that changes the state can panic halfway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, now: Instant) -> Option<ObjectKey> {
        let due = self.delayed.extract_if(.., |_, at| *at <= now);
        self.ready.extend(due.map(|(key, _)| key));
        let key = self.ready.iter().find(|key| !self.claimed.contains(*key)).cloned()?;
        self.ready.remove(&key);
        self.claimed.insert(key.clone());
        Some(key)
    }
}
