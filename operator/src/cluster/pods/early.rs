//! Reads of pods that the watch has not reported. If it reports one meanwhile, others who need the pod wait for the read in place of
//! reading it again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::pod::Pod;

/// The reads that have not ended.
#[derive(Clone, Default)]
pub(super) struct EarlyReads(Arc<Inner>);

#[derive(Default)]
struct Inner {
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
        *self.lock().entry(pod.clone()).or_default() += 1;
        EarlyRead { reads: self.clone(), pod }
    }

    /// Waits until none of these pods is being read.
    pub(super) async fn ended(&self, pods: impl Iterator<Item = &Arc<Pod>> + Clone) {
        loop {
            let ended = self.0.ended.notified();
            let is_read = {
                let reads = self.lock();
                let is_read = |pod: &Arc<Pod>| reads.contains_key(&(pod.namespace.clone(), pod.name.clone()));
                !reads.is_empty() && pods.clone().any(is_read)
            };
            if !is_read {
                return;
            }
            ended.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), usize>> {
        self.0.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for EarlyRead {
    fn drop(&mut self) {
        let mut reads = self.reads.lock();
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
        assert!(reads.lock().is_empty());
    }
}
