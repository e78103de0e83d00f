//! Wakes sessions for changes of replicas: at once for the first change of a namespace, and then once a second for all that
//! have come together. In a rollout the replicas of all policies change with every pod. Changes that hardly matter wait for others
//! for some seconds, because each of a thousand sidecars would get a message for each pod.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{Hub, State};
use crate::distribution::wakeup::Changed;

/// Interval between two wakes of a namespace's sessions for changes of replicas.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that changes wait which hardly matter.
const MINOR_INTERVAL: Duration = Duration::from_secs(30);

/// The policies of a namespace whose replicas have changed since its sessions were woken last. A namespace without changes
/// for [`INTERVAL`] has no entry.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    policies: BTreeSet<String>,
    /// Whether the change of one of them matters.
    matters: bool,
}

impl State {
    /// Wakes the sessions that policies of a namespace select.
    fn wake_selected(&mut self, namespace: &str, policies: &BTreeSet<String>) {
        for uid in policies {
            if let Some(policy) = self.policies.get_mut(uid) {
                policy.replicas.tell();
            }
        }
        let policies: Vec<_> = policies.iter().filter_map(|uid| self.policies.get(uid)).collect();
        self.wake(namespace, Changed::Live, |session| {
            policies.iter().any(|policy| policy.selects(&session.identity))
        });
    }

    /// Wakes the sessions of a namespace for the changes that wait, unless all of them hardly matter and `since` is not long ago.
    /// Reports whether it has, or `None` if none waits.
    fn wake_waiting(&mut self, namespace: &str, since: Instant) -> Option<bool> {
        let waiting =
            self.replicas_changed.get_mut(namespace).filter(|waiting| !waiting.policies.is_empty())?;
        if !waiting.matters && since.elapsed() < MINOR_INTERVAL {
            return Some(false);
        }
        let Waiting { policies, .. } = std::mem::take(waiting);
        self.wake_selected(namespace, &policies);
        Some(true)
    }
}

impl Hub {
    /// Wakes the sessions that a policy selects because its replicas have changed, now or soon.
    pub(super) fn wake_for_replicas(self: &Arc<Self>, state: &mut State, namespace: &str, policy: &str) {
        let matters = state.policies.get(policy).is_some_and(|policy| !policy.replicas.are_nearly_told());
        if let Some(waiting) = state.replicas_changed.get_mut(namespace) {
            waiting.policies.insert(policy.to_owned());
            waiting.matters |= matters;
            return;
        }
        let mut waiting = Waiting::default();
        if matters {
            state.wake_selected(namespace, &[policy.to_owned()].into());
        } else {
            waiting.policies.insert(policy.to_owned());
        }
        state.replicas_changed.insert(namespace.to_owned(), waiting);
        let (hub, namespace) = (self.clone(), namespace.to_owned());
        tokio::spawn(async move {
            // Time of the last wake, and at first of the change that began this.
            let mut since = Instant::now();
            loop {
                tokio::time::sleep(INTERVAL).await;
                let mut state = hub.lock();
                match state.wake_waiting(&namespace, since) {
                    Some(true) => since = Instant::now(),
                    Some(false) => {}
                    None => {
                        state.replicas_changed.remove(&namespace);
                        return;
                    }
                }
            }
        });
    }
}
