//! The replicas of a policy: the running pods with a sidecar that it selects.
//!
//! Some policies divide their rates by the number of replicas. Such a policy is held back from sessions until
//! its replicas are known, but not longer than [`MAX_HOLD`].

use std::time::Duration;

use sluice_config::message::Replica;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// Longest time that a policy is held back until its replicas are known. It is shorter than the time that a
/// sidecar delays the start of its pod.
pub(super) const MAX_HOLD: Duration = Duration::from_secs(5);

/// The replicas of one policy.
#[derive(Debug, Clone, Default)]
pub(super) struct Replicas {
    /// Sorted UIDs of the pods, or `None` until they are first counted.
    pods: Option<Vec<String>>,
    /// Whether `pods` were counted with the current selector of the policy.
    current: bool,
    /// Time until which the policy is held back, if its replicas matter and are not known.
    held_until: Option<Instant>,
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
        Self { pods: before.and_then(|before| before.pods.clone()), current, held_until }
    }

    /// Sets the pods that were counted with the policy's current selector, and ends the hold. Reports whether
    /// anything changed.
    pub(super) fn set(&mut self, mut pods: Vec<String>) -> bool {
        pods.sort_unstable();
        if self.current && self.pods.as_ref() == Some(&pods) {
            return false;
        }
        *self = Self { pods: Some(pods), current: true, held_until: None };
        true
    }

    /// Returns the UIDs of the pods, once they have been counted for the present edit.
    pub(super) fn pods(&self) -> Option<&[String]> {
        self.pods.as_deref().filter(|_| self.current)
    }

    /// Restarts the hold, if there is one. Called when the first session may begin.
    pub(super) fn restart_hold(&mut self) {
        self.held_until = self.held_until.map(|_| Instant::now() + MAX_HOLD);
    }

    /// Returns the time until which the policy is held back, or `None` if it is not.
    pub(super) fn held_until(&self) -> Option<Instant> {
        self.held_until.filter(|until| *until > Instant::now())
    }

    /// Returns the index of a pod among the replicas, and their count. A pod that has a session but is not
    /// among the counted pods is counted in addition, because it admits requests too.
    pub(super) fn replica(&self, pod_uid: &str) -> Option<Replica> {
        let pods = self.pods.as_ref()?;
        let (index, count) = match pods.binary_search_by(|other| other.as_str().cmp(pod_uid)) {
            Ok(index) => (index, pods.len()),
            Err(index) => (index, pods.len() + 1),
        };
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Some(Replica { index: number(index), count: number(count) })
    }
}
