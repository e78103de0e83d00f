//! Which policies to look at again, now or later. Each at most once, however often it is asked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// The name of a policy object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The queue.
#[derive(Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    changed: Notify,
}

#[derive(Default)]
struct Waiting {
    now: BTreeSet<PolicyKey>,
    later: BTreeMap<PolicyKey, Instant>,
}

impl Queue {
    /// Look at this one.
    pub fn add(&self, key: PolicyKey) {
        self.add_all([key]);
    }

    /// Look at these.
    pub fn add_all(&self, keys: impl IntoIterator<Item = PolicyKey>) {
        self.lock().now.extend(keys);
        self.changed.notify_one();
    }

    /// Look at this one after a while, or sooner if that was asked before.
    pub fn add_after(&self, key: PolicyKey, wait: Duration) {
        let at = Instant::now() + wait;
        self.lock().later.entry(key).and_modify(|old| *old = at.min(*old)).or_insert(at);
        self.changed.notify_one();
    }

    /// Waits until there are some and takes them all.
    pub async fn next(&self) -> BTreeSet<PolicyKey> {
        loop {
            let next = {
                let mut waiting = self.lock();
                let now = Instant::now();
                let due: Vec<_> =
                    waiting.later.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
                for key in due {
                    waiting.later.remove(&key);
                    waiting.now.insert(key);
                }
                if !waiting.now.is_empty() {
                    return std::mem::take(&mut waiting.now);
                }
                waiting.later.values().min().copied()
            };
            match next {
                Some(at) => {
                    let _ = tokio::time::timeout_at(at, self.changed.notified()).await;
                }
                None => self.changed.notified().await,
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Sets are whole between any two statements that can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_comes_once_now_or_when_it_is_due() {
        let queue = Queue::default();
        let key = |name: &str| PolicyKey { namespace: "n".into(), name: name.into() };
        queue.add(key("a"));
        queue.add(key("a"));
        queue.add_after(key("b"), Duration::from_secs(60));
        queue.add_after(key("b"), Duration::from_secs(30));
        assert_eq!(queue.next().await.into_iter().collect::<Vec<_>>(), [key("a")]);
        let before = Instant::now();
        assert_eq!(queue.next().await.into_iter().collect::<Vec<_>>(), [key("b")]);
        assert!(before.elapsed() >= Duration::from_secs(30) && before.elapsed() < Duration::from_secs(31));
    }
}
