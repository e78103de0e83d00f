//! The replicas of a policy: the running pods with a sidecar that it selects.
//!
//! Some policies divide their rates by the number of replicas. Such a policy is held back from sessions until
//! its replicas are known, but not longer than [`MAX_HOLD`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use sluice_config::message::Replica;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// Longest time that a policy is held back until its replicas are known. It is shorter than the time that a
/// sidecar delays the start of its pod.
pub(super) const MAX_HOLD: Duration = Duration::from_secs(5);

/// Part of the replicas below which a change hardly matters, as a divisor.
const NEARLY: u32 = 100;

/// Pods by UID, each with its index in the order of the UIDs.
#[derive(Debug, Default)]
pub struct Places {
    by_uid: HashMap<Arc<str>, u32, RandomState>,
    /// Their UIDs in order.
    sorted: Vec<Arc<str>>,
}

impl Places {
    /// Returns the places of pods, by their UIDs.
    #[must_use]
    pub fn of<'a>(pods: impl IntoIterator<Item = &'a str>) -> Arc<Self> {
        let mut sorted: Vec<_> = pods.into_iter().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let sorted: Vec<Arc<str>> = sorted.into_iter().map(Arc::from).collect();
        let by_uid = sorted.iter().cloned().zip(0..).collect();
        Arc::new(Self { by_uid, sorted })
    }

    fn are(self: &Arc<Self>, others: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, others) || self.sorted == others.sorted
    }

    /// Returns the UIDs of the pods in order.
    pub fn pods(&self) -> impl Iterator<Item = &str> {
        self.sorted.iter().map(|uid| &**uid)
    }

    /// Returns the index of a pod, and the count. A pod that is not among them is counted in addition.
    pub(super) fn replica(&self, pod_uid: &str) -> Replica {
        let count = number(self.by_uid.len());
        self.by_uid.get(pod_uid).map_or_else(
            || Replica {
                index: number(self.sorted.partition_point(|uid| **uid < *pod_uid)),
                count: count.saturating_add(1),
            },
            |&index| Replica { index, count },
        )
    }
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The replicas of one policy.
#[derive(Debug, Clone, Default)]
pub(super) struct Replicas {
    /// The pods, or `None` until they are first counted. Policies that select the same pods share them.
    pods: Option<Arc<Places>>,
    /// Whether `pods` were counted with the current selector of the policy.
    current: bool,
    /// Time until which the policy is held back, if its replicas matter and are not known.
    held_until: Option<Instant>,
    /// How many there were when sessions were woken for them last.
    told: Option<u32>,
}

impl Replicas {
    /// Returns the replicas of a new edit. The pods counted for the edit before it, if any, are the best
    /// estimate until they are counted again.
    pub(super) fn after_edit(needs_replicas: bool, before: Option<&Self>, same_selector: bool) -> Self {
        let current = same_selector && before.is_some_and(|before| before.current);
        // A series of edits does not extend the hold.
        let until =
            || before.and_then(|before| before.held_until).unwrap_or_else(|| Instant::now() + MAX_HOLD);
        let held_until = (needs_replicas && !current).then(until);
        let pods = before.and_then(|before| before.pods.clone());
        Self { pods, current, held_until, told: before.and_then(|before| before.told) }
    }

    /// Reports whether these pods were counted with the policy's current selector.
    pub(super) fn are(&self, pods: &Arc<Places>) -> bool {
        self.current && self.pods.as_ref().is_some_and(|own| own.are(pods))
    }

    /// Returns the replicas that were counted next with a policy's current selector: those of one of these others, if they are the
    /// same.
    pub(super) fn counted<'a>(&self, pods: &Arc<Places>, mut others: impl Iterator<Item = &'a Self>) -> Self {
        let shared = others.find_map(|other| other.pods.as_ref().filter(|places| places.are(pods)));
        Self { pods: Some(shared.unwrap_or(pods).clone()), current: true, held_until: None, told: self.told }
    }

    fn count(&self) -> u32 {
        self.pods.as_ref().map_or(0, |places| number(places.by_uid.len()))
    }

    /// Notes that sessions are woken for them.
    pub(super) fn tell(&mut self) {
        self.told = Some(self.count());
    }

    /// Reports whether the share of a replica is nearly what sessions have been told: its change is below a hundredth.
    pub(super) fn are_nearly_told(&self) -> bool {
        self.told.is_some_and(|told| told > NEARLY && self.count().abs_diff(told) < told / NEARLY)
    }

    /// Returns the UIDs of the pods, once they have been counted for the present edit.
    pub(super) fn pods(&self) -> Option<impl Iterator<Item = &str>> {
        Some(self.pods.as_ref().filter(|_| self.current)?.pods())
    }

    /// Restarts the hold, if there is one. Called when the first session may begin.
    pub(super) fn restart_hold(&mut self) {
        self.held_until = self.held_until.map(|_| Instant::now() + MAX_HOLD);
    }

    /// Returns the time until which the policy is held back, or `None` if it is not.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held_until.filter(|until| *until > Instant::now())
    }

    /// Returns the places of the pods, once they have been counted. A pod that has a session but is not among them admits requests
    /// too.
    pub(super) fn places(&self) -> Option<&Arc<Places>> {
        self.pods.as_ref()
    }
}
