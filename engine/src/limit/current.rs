//! The snapshot in use.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use crate::limit::snapshot::Snapshot;

/// The snapshot that requests use now. It tells waiting requests when it has changed.
#[derive(Debug)]
pub(crate) struct CurrentSnapshot {
    snapshot: ArcSwap<Snapshot>,
    changes: watch::Sender<()>,
}

impl CurrentSnapshot {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot: ArcSwap::from_pointee(snapshot), changes: watch::Sender::new(()) }
    }

    pub(crate) fn get(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Replaces the snapshot for every request that arrives after this call.
    pub(crate) fn set(&self, snapshot: Snapshot) {
        self.snapshot.store(Arc::new(snapshot));
        self.changes.send_replace(());
    }

    /// Observes changes of the snapshot.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}
