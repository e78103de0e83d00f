//! Wakes sessions for changes of replicas: at once for the first change of a namespace, and then once a second for all that
//! have come together. In a rollout the replicas of all policies change with every pod.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::{Hub, State};
use crate::distribution::wakeup::Changed;

/// Interval between two wakes of a namespace's sessions for changes of replicas.
const INTERVAL: Duration = Duration::from_secs(1);

/// Policies whose replicas have changed since the sessions of their namespace were woken last, by namespace. A namespace
/// whose sessions were not woken for [`INTERVAL`] has no entry.
pub(super) type Waiting = HashMap<String, BTreeSet<String>>;

impl State {
    /// Wakes the sessions that policies of a namespace select.
    fn wake_selected(&self, namespace: &str, policies: &BTreeSet<String>) {
        let policies: Vec<_> = policies.iter().filter_map(|uid| self.policies.get(uid)).collect();
        self.wake(namespace, Changed::Live, |session| {
            policies.iter().any(|policy| policy.selects(&session.identity))
        });
    }
}

impl Hub {
    /// Wakes the sessions that a policy selects because its replicas have changed, now or soon.
    pub(super) fn wake_for_replicas(self: &Arc<Self>, state: &mut State, namespace: &str, policy: &str) {
        if let Some(waiting) = state.replicas_changed.get_mut(namespace) {
            waiting.insert(policy.to_owned());
            return;
        }
        state.wake_selected(namespace, &[policy.to_owned()].into());
        state.replicas_changed.insert(namespace.to_owned(), BTreeSet::new());
        let (hub, namespace) = (self.clone(), namespace.to_owned());
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                let mut state = hub.lock();
                let changed =
                    state.replicas_changed.get_mut(&namespace).map(std::mem::take).unwrap_or_default();
                if changed.is_empty() {
                    state.replicas_changed.remove(&namespace);
                    return;
                }
                state.wake_selected(&namespace, &changed);
            }
        });
    }
}
