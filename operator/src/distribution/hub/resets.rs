//! Resets of single clients in the hub: which pods take part, which of them removes the counter, and what they report.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_config::message::{ResetOrder, ResetReport, ResetStep, ResetUid};
use tokio::sync::Notify;

use super::{DistributedPolicy, Hub, State};
use crate::distribution::clients::reset::{ActiveReset, Reset, ResetProgress};
use crate::distribution::session::Session;

impl State {
    fn policy_of(&self, reset: &Reset) -> Option<&DistributedPolicy> {
        self.policies.values().find(|policy| {
            policy.published.is_some()
                && policy.key.namespace == reset.namespace
                && policy.key.name == reset.policy
        })
    }

    /// Returns the connected sessions of the pods that enforce the policy.
    fn sessions_of(&self, reset: &Reset) -> Vec<(&String, &Session)> {
        let Some(policy) = self.policy_of(reset) else { return Vec::new() };
        let is_of = |session: &Session| !session.ended && policy.selects(&session.identity);
        self.sessions.iter().filter(|(_, session)| is_of(session)).collect()
    }

    fn progress(&self, uid: &str, active: &ActiveReset) -> ResetProgress {
        let sessions = self.sessions_of(&active.reset);
        let reports = || sessions.iter().filter_map(|(_, session)| session.resets.get(uid));
        let failure = reports().find_map(|report| match report {
            ResetReport::Failed { reason } => Some(reason.clone()),
            ResetReport::Removed { .. } | ResetReport::Forgotten => None,
        });
        ResetProgress {
            has_policy: self.policy_of(&active.reset).is_some(),
            pods: sessions.len(),
            forgotten: reports().filter(|report| **report == ResetReport::Forgotten).count(),
            is_removed: active.removed_at.is_some(),
            failure,
        }
    }
}

impl State {
    /// Returns the resets that a pod takes part in.
    pub(super) fn resets_of(&self, pod_uid: &str, session: &Session) -> BTreeMap<ResetUid, ResetOrder> {
        let orders = self.resets.iter().filter_map(|(uid, active)| {
            let policy = self.policy_of(&active.reset).filter(|policy| policy.selects(&session.identity))?;
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
            let sessions = state.sessions_of(&active.reset);
            let is_connected = |pod: &String| sessions.iter().any(|(uid, _)| *uid == pod);
            if active.removed_at.is_none() && !active.remover.as_ref().is_some_and(is_connected) {
                let next = sessions.iter().map(|(uid, _)| (*uid).clone()).min();
                changed |= active.remover != next;
                active.remover = next;
            }
            progress.insert(uid.clone(), state.progress(&uid, &active));
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
