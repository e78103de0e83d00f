//! Whoever needs pods of a namespace waits for its turn, and then reads the pods of all who wait. So a pod is read once, and
//! many pods of a namespace are listed instead.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::cluster::pods::pod::Pod;

/// Those who wait, by namespace.
#[derive(Clone, Default)]
pub(super) struct Reading(Arc<Mutex<HashMap<String, Waiting>>>);

/// Those who wait for pods of one namespace.
struct Waiting {
    turn: Arc<Semaphore>,
    /// Pods that are to be read, by their UID.
    pods: BTreeMap<String, Arc<Pod>>,
    /// Number of those who wait.
    callers: usize,
}

/// One of those who wait.
pub(super) struct Caller {
    reading: Reading,
    namespace: String,
    turn: Arc<Semaphore>,
}

impl Reading {
    /// Joins those who wait for pods of a namespace.
    pub(super) fn join<'a>(&self, namespace: &str, pods: impl Iterator<Item = &'a Arc<Pod>>) -> Caller {
        let mut all = self.lock();
        let waiting = all.entry(namespace.to_owned()).or_insert_with(|| Waiting {
            turn: Arc::new(Semaphore::new(1)),
            pods: BTreeMap::new(),
            callers: 0,
        });
        waiting.callers += 1;
        waiting.pods.extend(pods.map(|pod| (pod.uid.clone(), pod.clone())));
        Caller { reading: self.clone(), namespace: namespace.to_owned(), turn: waiting.turn.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Caller {
    /// Waits until no other caller reads pods of the namespace.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turn.clone().acquire_owned().await.ok()
    }

    /// Takes the pods that all who wait now need. The next caller finds those that are needed from now on.
    pub(super) fn take(&self) -> Vec<Arc<Pod>> {
        let mut all = self.reading.lock();
        let pods = all.get_mut(&self.namespace).map(|waiting| std::mem::take(&mut waiting.pods));
        pods.unwrap_or_default().into_values().collect()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut all = self.reading.lock();
        if let Some(waiting) = all.get_mut(&self.namespace) {
            waiting.callers -= 1;
            if waiting.callers == 0 {
                all.remove(&self.namespace);
            }
        }
    }
}
