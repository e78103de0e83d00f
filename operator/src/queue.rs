//! The queue of what is to be done for an object or a namespace, with the guarantees of a Kubernetes work queue: a key is queued at
//! most once, and it is not handed out again until its current work has ended. A key that is queued
//! meanwhile follows directly after, unless the work has yet to look at what it was queued for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::locks::lock;
use crate::names::ObjectKey;

#[cfg(test)]
mod tests;

/// The queue: of policies by their keys, or of namespaces.
pub struct Queue<K: Ord + Clone = ObjectKey> {
    state: Mutex<QueueState<K>>,
    changed: Notify,
}

struct QueueState<K> {
    /// Keys whose work is due, and what has changed. None of them is claimed.
    ready: BTreeMap<K, Meanwhile>,
    /// Keys whose work is due later and when, and the same in the order of the times.
    delayed: BTreeMap<K, Instant>,
    due: BTreeSet<(Instant, K)>,
    /// Keys that are being worked on, and what has changed meanwhile.
    claimed: BTreeMap<K, Meanwhile>,
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

/// A key taken from the queue, which does not return it again until the claim is dropped.
pub struct Claim<K: Ord + Clone = ObjectKey> {
    queue: Arc<Queue<K>>,
    key: K,
    change: Meanwhile,
}

impl<K: Ord + Clone> Claim<K> {
    /// Returns the key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Reports whether it was queued for nothing but what a status observes.
    pub fn is_for_status(&self) -> bool {
        self.change == Meanwhile::Observed
    }

    /// Notes that the reconcile looks at what a status observes from now on. What was queued for that needs no further reconcile.
    pub fn observe(&self) {
        let mut state = lock(&self.queue.state);
        if let Some(meanwhile @ Meanwhile::Observed) = state.claimed.get_mut(&self.key) {
            *meanwhile = Meanwhile::Nothing;
        }
    }
}

impl<K: Ord + Clone> Drop for Claim<K> {
    fn drop(&mut self) {
        let mut state = lock(&self.queue.state);
        if let Some(meanwhile @ (Meanwhile::Observed | Meanwhile::Changed)) = state.claimed.remove(&self.key)
        {
            state.ready.insert(self.key.clone(), meanwhile);
        }
        drop(state);
        self.queue.changed.notify_one();
    }
}

impl<K: Ord + Clone> Default for Queue<K> {
    fn default() -> Self {
        let (ready, delayed) = (BTreeMap::new(), BTreeMap::new());
        let state = QueueState { ready, delayed, due: BTreeSet::new(), claimed: BTreeMap::new() };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl<K: Ord + Clone> Queue<K> {
    /// Queues one object.
    pub fn add(&self, key: K) {
        self.add_all([key]);
    }

    /// Queues several objects.
    pub fn add_all(&self, keys: impl IntoIterator<Item = K>) {
        self.add_for(Meanwhile::Changed, keys);
    }

    /// Queues several objects because of what a status observes: pods, and the reports of their sidecars.
    pub fn add_observed(&self, keys: impl IntoIterator<Item = K>) {
        self.add_for(Meanwhile::Observed, keys);
    }

    fn add_for(&self, change: Meanwhile, keys: impl IntoIterator<Item = K>) {
        let mut state = lock(&self.state);
        keys.into_iter().for_each(|key| state.add(key, change));
        drop(state);
        self.changed.notify_one();
    }

    /// Queues an object after a delay. If it is already delayed, the earlier time counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        lock(&self.state).add_at(key, Instant::now() + delay);
        self.changed.notify_one();
    }

    /// Waits for an object that is due and not claimed, and claims it. Only one task may call this.
    pub async fn next(self: &Arc<Self>) -> Claim<K> {
        loop {
            let next_due = {
                let mut state = lock(&self.state);
                if let Some((key, change)) = state.take(Instant::now()) {
                    return Claim { queue: self.clone(), key, change };
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

impl<K: Ord + Clone> QueueState<K> {
    fn add(&mut self, key: K, change: Meanwhile) {
        let before = match self.claimed.get_mut(&key) {
            Some(meanwhile) => meanwhile,
            None => self.ready.entry(key).or_insert(change),
        };
        *before = change.max(*before);
    }

    fn add_at(&mut self, key: K, at: Instant) {
        match self.delayed.get(&key) {
            Some(before) if *before <= at => return,
            Some(before) => drop(self.due.remove(&(*before, key.clone()))),
            None => {}
        }
        self.due.insert((at, key.clone()));
        self.delayed.insert(key, at);
    }

    fn take(&mut self, now: Instant) -> Option<(K, Meanwhile)> {
        while self.due.first().is_some_and(|(at, _)| *at <= now)
            && let Some((_, key)) = self.due.pop_first()
        {
            self.delayed.remove(&key);
            // A reconcile that failed, or a status that has to be computed again.
            self.add(key, Meanwhile::Observed);
        }
        let (key, change) = self.ready.pop_first()?;
        self.claimed.insert(key.clone(), Meanwhile::Nothing);
        Some((key, change))
    }
}
