//! The clients that a limit in Shadow would have denied recently, merged over the pods.

use std::time::Duration;

use sluice_config::distinct::DistinctSketch;
use tokio::time::Instant;

use crate::object_key::PolicyKey;

/// Half of the time for which a client that a pod has reported counts at most. Pods report those of 5 to 10 minutes.
pub(in crate::distribution) const HALF: Duration = Duration::from_secs(300);

/// A limit of a policy.
pub(crate) type LimitKey = (PolicyKey, String);

/// The clients that a limit would have denied recently.
#[derive(Debug)]
pub(in crate::distribution) struct RecentClients {
    older: DistinctSketch,
    newer: DistinctSketch,
    /// Begin of the newer half.
    begun: Instant,
}

impl RecentClients {
    pub(in crate::distribution) fn new(now: Instant) -> Self {
        Self { older: DistinctSketch::default(), newer: DistinctSketch::default(), begun: now }
    }

    /// Begins another half if the newer one is over.
    fn turn(&mut self, now: Instant) {
        let passed = now - self.begun;
        if passed >= HALF {
            let newer = std::mem::take(&mut self.newer);
            self.older = if passed < 2 * HALF { newer } else { DistinctSketch::default() };
            self.begun = now;
        }
    }

    /// Adds the clients that a pod reports.
    pub(in crate::distribution) fn merge(&mut self, clients: &DistinctSketch, now: Instant) {
        self.turn(now);
        self.newer.merge(clients);
    }

    /// Reports whether there are no clients any more.
    pub(in crate::distribution) fn is_empty(&mut self, now: Instant) -> bool {
        self.turn(now);
        self.older.is_empty() && self.newer.is_empty()
    }

    /// Returns all clients.
    pub(in crate::distribution) fn all(&self) -> DistinctSketch {
        let mut all = self.older.clone();
        all.merge(&self.newer);
        all
    }
}
