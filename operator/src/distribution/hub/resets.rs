//! Resets of single clients in the hub: which pods take part, which of them removes the counter, and what they report.

use std::collections::BTreeMap;

use std::sync::Arc;

use sluice_config::message::{ResetOrder, ResetReport, ResetStep, ResetUid};
use tokio::sync::Notify;

use super::{DistributedPolicy, Hub, State};
use crate::distribution::session::Session;

/// A reset that pods carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// Namespace of the policy.
    pub namespace: String,
    /// Name of the policy.
    pub policy: String,
    /// Name of the limit.
    pub limit: String,
    /// Hash of the client's key.
    pub key: String,
}

/// A reset in the hub.
#[derive(Debug)]
pub(super) struct ActiveReset {
    reset: Reset,
    /// UID of the pod that removes the counter in the store.
    remover: Option<String>,
    /// Time at which a pod has removed it, by the store's clock. It is not removed twice, or requests that were counted in
    /// between would be lost.
    removed_at: Option<u64>,
}

/// How far a reset is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResetProgress {
    /// Whether the policy is published.
    pub has_policy: bool,
    /// Number of connected pods that enforce the policy.
    pub pods: usize,
    /// Number of those that have forgotten the client.
    pub forgotten: usize,
    /// Whether the counter in the store has been removed.
    pub is_removed: bool,
    /// Reason why a pod has failed.
    pub failure: Option<String>,
}

impl ActiveReset {
    fn policy<'a>(&self, policies: &'a BTreeMap<String, DistributedPolicy>) -> Option<&'a DistributedPolicy> {
        let reset = &self.reset;
        policies.values().find(|policy| {
            policy.published.is_some()
                && policy.key.namespace == reset.namespace
                && policy.key.name == reset.policy
        })
    }

    /// Returns the connected sessions of the pods that enforce the policy.
    fn sessions<'a>(&self, state: &'a State) -> Vec<(&'a String, &'a Session)> {
        let Some(policy) = self.policy(&state.policies) else { return Vec::new() };
        let is_of = |session: &Session| !session.ended && policy.selects(&session.identity);
        state.sessions.iter().filter(|(_, session)| is_of(session)).collect()
    }

    fn progress(&self, uid: &str, state: &State) -> ResetProgress {
        let sessions = self.sessions(state);
        let reports = || sessions.iter().filter_map(|(_, session)| session.resets.get(uid));
        let failure = reports().find_map(|report| match report {
            ResetReport::Failed { reason } => Some(reason.clone()),
            ResetReport::Removed { .. } | ResetReport::Forgotten => None,
        });
        ResetProgress {
            has_policy: self.policy(&state.policies).is_some(),
            pods: sessions.len(),
            forgotten: reports().filter(|report| **report == ResetReport::Forgotten).count(),
            is_removed: self.removed_at.is_some(),
            failure,
        }
    }
}

impl State {
    /// Returns the resets that a pod takes part in.
    pub(super) fn resets_of(&self, pod_uid: &str, session: &Session) -> BTreeMap<ResetUid, ResetOrder> {
        let orders = self.resets.iter().filter_map(|(uid, active)| {
            let policy = active.policy(&self.policies).filter(|policy| policy.selects(&session.identity))?;
            let step = match active.removed_at {
                Some(removed_at) => ResetStep::Forget { removed_at },
                None if active.remover.as_deref() == Some(pod_uid) => ResetStep::Remove,
                None => return None,
            };
            let order = ResetOrder {
                policy: policy.key.name.clone(),
                limit: active.reset.limit.clone(),
                key: active.reset.key.clone(),
                step,
            };
            Some((uid.clone(), order))
        });
        orders.collect()
    }

    /// Takes what a pod reports about resets. Reports whether it has removed a counter.
    pub(super) fn take_reset_reports(
        &mut self,
        pod_uid: &str,
        reports: &BTreeMap<ResetUid, ResetReport>,
    ) -> bool {
        let mut removed = false;
        for (uid, report) in reports {
            let (Some(active), ResetReport::Removed { at }) = (self.resets.get_mut(uid), report) else {
                continue;
            };
            if active.removed_at.is_none() && active.remover.as_deref() == Some(pod_uid) {
                active.removed_at = Some(*at);
                removed = true;
            }
        }
        removed
    }
}

impl Hub {
    /// Returns what is notified when a pod reports about a reset.
    #[must_use]
    pub fn reset_reports_changed(&self) -> Arc<Notify> {
        self.reset_reports.clone()
    }

    /// Sets the resets to be carried out, and returns how far each is. Call this again from time to time: another pod
    /// removes the counter if the chosen one leaves.
    pub fn set_resets(&self, resets: BTreeMap<ResetUid, Reset>) -> BTreeMap<ResetUid, ResetProgress> {
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut before = std::mem::take(&mut state.resets);
        let mut changed = before.keys().any(|uid| !resets.contains_key(uid));
        let mut progress = BTreeMap::new();
        let mut all = BTreeMap::new();
        for (uid, reset) in resets {
            let mut active = before.remove(&uid).unwrap_or_else(|| {
                changed = true;
                ActiveReset { reset, remover: None, removed_at: None }
            });
            let sessions = active.sessions(state);
            let is_connected = |pod: &String| sessions.iter().any(|(uid, _)| *uid == pod);
            if active.removed_at.is_none() && !active.remover.as_ref().is_some_and(is_connected) {
                let next = sessions.iter().map(|(uid, _)| (*uid).clone()).min();
                changed |= active.remover != next;
                active.remover = next;
            }
            progress.insert(uid.clone(), active.progress(&uid, state));
            all.insert(uid, active);
        }
        state.resets = all;
        drop(guard);
        if changed {
            self.changed();
        }
        progress
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribution::fixtures::{hub, identity, publish, selector, strict};
    use crate::distribution::identity::Identity;
    use sluice_config::message::{Report, VERSION};

    fn resets() -> BTreeMap<ResetUid, Reset> {
        let [namespace, policy, limit, key] = ["n", "p", "l", "q83vEjRWeJCrze8SNFZ4kA"].map(str::to_owned);
        [("r".to_owned(), Reset { namespace, policy, limit, key })].into()
    }

    fn pod(uid: &str, app: &str) -> Identity {
        Identity { pod_uid: uid.into(), ..identity(&[("app", app)]) }
    }

    fn report(hub: &Hub, session: &str, report: ResetReport) {
        let resets = [("r".to_owned(), report), ("unknown".to_owned(), ResetReport::Forgotten)].into();
        let (policies, stores, shadow_denied) = Default::default();
        assert!(hub.report(Report {
            version: VERSION,
            session: session.into(),
            policies,
            stores,
            shadow_denied,
            resets
        }));
    }

    /// Returns the step that a pod is to take.
    fn step(hub: &Hub, pod: &str) -> Option<ResetStep> {
        hub.desired(pod, false).unwrap().resets.get("r").map(|order| order.step)
    }

    #[tokio::test]
    async fn one_pod_removes_the_counter_before_all_forget_the_client() {
        let hub = hub();
        assert!(!hub.set_resets(resets())["r"].has_policy);
        publish(&hub, "1", selector("a"), &strict());
        let mut version = hub.version();
        assert_eq!(hub.set_resets(resets())["r"], ResetProgress { has_policy: true, ..Default::default() });
        let _one = hub.connect(pod("1", "a"), "one");
        let _two = hub.connect(pod("2", "a"), "two");
        let _other = hub.connect(pod("3", "b"), "other");
        version.mark_unchanged();
        hub.set_resets(resets());
        assert!(version.has_changed().unwrap());
        assert_eq!(["1", "2", "3"].map(|pod| step(&hub, pod)), [Some(ResetStep::Remove), None, None]);
        // Another pod cannot say that it has removed the counter, and what a pod says is made fit for a message.
        report(&hub, "two", ResetReport::Removed { at: 5 });
        report(&hub, "one", ResetReport::Failed { reason: "no\n answer".into() });
        let progress = hub.set_resets(resets());
        assert_eq!(
            progress["r"],
            ResetProgress {
                has_policy: true,
                pods: 2,
                failure: Some("no answer".into()),
                ..Default::default()
            }
        );
        version.mark_unchanged();
        report(&hub, "one", ResetReport::Removed { at: 7 });
        assert!(version.has_changed().unwrap(), "sessions are woken");
        let forget = Some(ResetStep::Forget { removed_at: 7 });
        assert_eq!(["1", "2", "3"].map(|pod| step(&hub, pod)), [forget, forget, None]);
        report(&hub, "two", ResetReport::Forgotten);
        let progress =
            ResetProgress { has_policy: true, pods: 2, forgotten: 1, is_removed: true, failure: None };
        assert_eq!(hub.set_resets(resets())["r"], progress);
        report(&hub, "one", ResetReport::Forgotten);
        assert_eq!(hub.set_resets(resets())["r"], ResetProgress { forgotten: 2, ..progress });
        version.mark_unchanged();
        hub.set_resets(BTreeMap::new());
        assert!(version.has_changed().unwrap());
        assert_eq!(step(&hub, "1"), None);
    }

    #[tokio::test]
    async fn another_pod_removes_the_counter_if_the_chosen_one_leaves_before() {
        let hub = hub();
        publish(&hub, "1", selector("a"), &strict());
        let _one = hub.connect(pod("1", "a"), "one");
        let _two = hub.connect(pod("2", "a"), "two");
        hub.set_resets(resets());
        hub.disconnect("1", "one");
        hub.set_resets(resets());
        assert_eq!(step(&hub, "2"), Some(ResetStep::Remove));
        report(&hub, "two", ResetReport::Removed { at: 9 });
        hub.remove_pod("2");
        let _three = hub.connect(pod("3", "a"), "three");
        hub.set_resets(resets());
        assert_eq!(step(&hub, "3"), Some(ResetStep::Forget { removed_at: 9 }), "the counter is removed once");
    }
}
