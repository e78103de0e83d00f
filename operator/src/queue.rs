//! The queue of objects to reconcile, with the guarantees of a Kubernetes work queue: an object is queued at
//! most once, and it is not handed out again until its current reconcile has ended. An object that is queued
//! meanwhile follows directly after, unless the reconcile has yet to look at what it was queued for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::locks::lock;
use crate::names::ObjectKey;

#[cfg(test)]
mod tests;

/// The queue of objects to reconcile.
#[derive(Default)]
pub struct Queue {
    state: Mutex<QueueState>,
    changed: Notify,
}

#[derive(Default)]
struct QueueState {
    /// Objects to reconcile now. None of them is claimed.
    ready: BTreeSet<ObjectKey>,
    /// Objects to reconcile later and when, and the same in the order of the times.
    delayed: BTreeMap<ObjectKey, Instant>,
    due: BTreeSet<(Instant, ObjectKey)>,
    /// Objects that are being reconciled, and what has changed meanwhile.
    claimed: BTreeMap<ObjectKey, Meanwhile>,
}

/// The greatest change of an object since it was claimed, or since its reconcile has observed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Meanwhile {
    Nothing,
    /// Pods or reports, which only a status observes.
    Observed,
    /// Anything.
    Changed,
}

/// An object taken from the queue. The queue does not return this object again until the claim is dropped.
pub struct Claim {
    queue: Arc<Queue>,
    key: ObjectKey,
}

impl Claim {
    /// Returns the key of the object.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Notes that the reconcile looks at what a status observes from now on. What was queued for that needs no further reconcile.
    pub fn observe(&self) {
        let mut state = lock(&self.queue.state);
        if let Some(meanwhile @ Meanwhile::Observed) = state.claimed.get_mut(&self.key) {
            *meanwhile = Meanwhile::Nothing;
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        if state.claimed.remove(&self.key).is_some_and(|meanwhile| meanwhile != Meanwhile::Nothing) {
            state.ready.insert(self.key.clone());
        }
        drop(state);
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
        self.add_for(Meanwhile::Changed, keys);
    }

    /// Queues several objects because of what a status observes: pods, and the reports of their sidecars.
    pub fn add_observed(&self, keys: impl IntoIterator<Item = ObjectKey>) {
        self.add_for(Meanwhile::Observed, keys);
    }

    fn add_for(&self, change: Meanwhile, keys: impl IntoIterator<Item = ObjectKey>) {
        let mut state = lock(&self.state);
        keys.into_iter().for_each(|key| state.add(key, change));
        drop(state);
        self.changed.notify_one();
    }

    /// Queues an object after a delay. If it is already delayed, the earlier time counts.
    pub fn add_after(&self, key: ObjectKey, delay: Duration) {
        lock(&self.state).add_at(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Waits for an object that is due and not claimed, and claims it. Only one task may call this.
    pub async fn next(self: &Arc<Self>) -> Claim {
        loop {
            let next_due = {
                let mut state = lock(&self.state);
                if let Some(key) = state.take(Instant::now()) {
                    return Claim { queue: self.clone(), key };
                }
                state.due.first().map(|(at, _)| *at)
            };
            match next_due {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }
}

impl QueueState {
    fn add(&mut self, key: ObjectKey, change: Meanwhile) {
        match self.claimed.get_mut(&key) {
            Some(meanwhile) => *meanwhile = change.max(*meanwhile),
            None => drop(self.ready.insert(key)),
        }
    }

    fn add_at(&mut self, key: ObjectKey, at: Instant) {
        match self.delayed.get(&key) {
            Some(before) if *before <= at => return,
            Some(before) => drop(self.due.remove(&(*before, key.clone()))),
            None => {}
        }
        self.due.insert((at, key.clone()));
        self.delayed.insert(key, at);
    }

    fn take(&mut self, now: Instant) -> Option<ObjectKey> {
        while self.due.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, key)) = self.due.pop_first()
        {
            self.delayed.remove(&key);
            // A reconcile that failed, or a status that has to be computed again.
            self.add(key, Meanwhile::Observed);
        }
        let key = self.ready.pop_first()?;
        self.claimed.insert(key.clone(), Meanwhile::Nothing);
        Some(key)
    }
}
