//! Who reads pods at the same time. Whoever needs pods of a namespace waits for its turn, and then reads the pods of all who wait. So a
//! pod is read once, and many pods of a namespace are listed instead. If the watch reports a pod while it is read early, others who need
//! it wait for that read.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use crate::cluster::pods::pod::Pod;
use crate::locks::lock;

/// The reads that have not ended.
#[derive(Clone, Default)]
pub(super) struct EarlyReads(Arc<RunningReads>);

#[derive(Default)]
struct RunningReads {
    /// Number of reads by namespace and name of the pod.
    reads: Mutex<BTreeMap<(String, String), usize>>,
    ended: Notify,
}

/// A read of a pod, which ends when this is dropped.
pub(super) struct EarlyRead {
    reads: EarlyReads,
    pod: (String, String),
}

impl EarlyReads {
    pub(super) fn begin(&self, namespace: &str, name: &str) -> EarlyRead {
        let pod = (namespace.to_owned(), name.to_owned());
        *lock(&self.0.reads).entry(pod.clone()).or_default() += 1;
        EarlyRead { reads: self.clone(), pod }
    }

    /// Waits until none of these pods is being read.
    pub(super) async fn ended(&self, pods: impl Iterator<Item = &Arc<Pod>> + Clone) {
        loop {
            let ended = self.0.ended.notified();
            let is_read = {
                let reads = lock(&self.0.reads);
                let is_read = |pod: &Arc<Pod>| reads.contains_key(&(pod.namespace.clone(), pod.name.clone()));
                !reads.is_empty() && pods.clone().any(is_read)
            };
            if !is_read {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for EarlyRead {
    fn drop(&mut self) {
        let mut reads = lock(&self.reads.0.reads);
        if let Some(count) = reads.get_mut(&self.pod) {
            *count -= 1;
            if *count == 0 {
                reads.remove(&self.pod);
            }
        }
        drop(reads);
        self.reads.0.ended.notify_waiters();
    }
}

/// Those who wait, by namespace.
#[derive(Clone, Default)]
pub(super) struct Reading(Arc<Mutex<HashMap<String, WaitingForPods>>>);

/// Those who wait for pods of one namespace.
struct WaitingForPods {
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
        let mut all = lock(&self.0);
        let waiting = all.entry(namespace.to_owned()).or_insert_with(|| WaitingForPods {
            turn: Arc::new(Semaphore::new(1)),
            pods: BTreeMap::new(),
            callers: 0,
        });
        waiting.callers += 1;
        waiting.pods.extend(pods.map(|pod| (pod.uid.clone(), pod.clone())));
        Caller { reading: self.clone(), namespace: namespace.to_owned(), turn: waiting.turn.clone() }
    }
}

impl Caller {
    /// Waits until no other caller reads pods of the namespace.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.turn.clone().acquire_owned().await.ok()
    }

    /// Takes the pods that all who wait now need. The next caller finds those that are needed from now on.
    pub(super) fn take(&self) -> Vec<Arc<Pod>> {
        let mut all = lock(&self.reading.0);
        let pods = all.get_mut(&self.namespace).map(|waiting| std::mem::take(&mut waiting.pods));
        pods.unwrap_or_default().into_values().collect()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        let mut all = lock(&self.reading.0);
        if let Some(waiting) = all.get_mut(&self.namespace) {
            waiting.callers -= 1;
            if waiting.callers == 0 {
                all.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use kube::api::ObjectMeta;

    use super::*;

    #[tokio::test]
    async fn who_needs_a_pod_waits_for_all_reads_of_it_and_for_no_other() {
        let reads = EarlyReads::default();
        let pod = |name: &str| {
            Arc::new(Pod::read(&ObjectMeta {
                name: Some(name.into()),
                namespace: Some("n".into()),
                ..ObjectMeta::default()
            }))
        };
        let (one, other) = ([pod("1")], [pod("2")]);
        let (first, second) = (reads.begin("n", "1"), reads.begin("n", "1"));
        assert!(reads.ended(other.iter()).now_or_never().is_some());
        assert!(reads.ended(one.iter()).now_or_never().is_none());
        let waiting = tokio::spawn({
            let reads = reads.clone();
            async move { reads.ended(one.iter()).await }
        });
        drop(first);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(second);
        waiting.await.unwrap();
        assert!(lock(&reads.0.reads).is_empty());
    }
}
