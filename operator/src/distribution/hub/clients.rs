//! Single clients in the hub. Of a reset: which pods take part, which of them removes the counter, and what they report. Of limits in
//! Shadow: the clients that they would have denied, merged over the pods.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use sluice_config::message::{
    MAX_SHADOW_DENIED, PolicyReport, ResetOrder, ResetReport, ResetStep, ResetUid, ShadowDenied,
};
use sluice_config::policy::Mode;
use sluice_crds::policy::Enforcer;
use tokio::time::Instant;

use crate::distribution::clients::{ActiveReset, LimitKey, PodProgress, RecentClients, Reset, ResetProgress};
use crate::distribution::hub::{DistributedPolicy, Hub, HubState};
use crate::distribution::session::{Changed, Session};

/// Time that the chosen pod has to remove a counter before another one is chosen.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

impl HubState {
    fn policy_of(&self, reset: &Reset) -> Option<(&str, &DistributedPolicy)> {
        let is_of =
            |policy: &DistributedPolicy| policy.published.is_some() && policy.key.name == reset.policy;
        let (uid, policy) = self.policies.in_namespace(&reset.namespace).find(|(_, policy)| is_of(policy))?;
        Some((uid, policy))
    }

    /// Returns the connected sessions of the pods that enforce a policy.
    fn sessions_of<'a>(
        &'a self,
        policy: &'a DistributedPolicy,
    ) -> impl Iterator<Item = (&'a String, &'a Session)> {
        let of_namespace = self.sessions_for(&policy.key.namespace);
        of_namespace.filter(|(_, session)| !session.ended && policy.selects(&session.identity))
    }

    fn progress(&self, uid: &str, active: &ActiveReset) -> ResetProgress {
        let Some((_, policy)) = self.policy_of(&active.reset) else { return ResetProgress::NoPolicy };
        match policy.limits.iter().find(|limit| limit.name == active.reset.limit) {
            None => return ResetProgress::NoLimit,
            Some(limit) if !limit.has_counters => return ResetProgress::NoCounters,
            Some(_) => {}
        }
        let connected: BTreeMap<_, _> =
            self.sessions_of(policy).map(|(pod, session)| (pod.as_str(), session)).collect();
        let running = policy.replicas.pods();
        let is_counted = running.is_some();
        let not_connected = running.into_iter().flatten().filter(|pod| !connected.contains_key(pod)).count();
        let mut progress = PodProgress {
            is_counted,
            pods: connected.len() + not_connected,
            not_connected,
            is_removed: active.removed_at.is_some(),
            ..PodProgress::default()
        };
        for session in connected.values() {
            match session.resets.get(uid) {
                Some(ResetReport::Forgotten { removed_at }) if active.removed_at == Some(*removed_at) => {
                    progress.forgotten += 1;
                }
                Some(ResetReport::Failed { reason }) => {
                    progress.failure = Some((session.identity.pod.clone(), reason.clone()));
                }
                Some(ResetReport::Forgotten { .. } | ResetReport::Removed { .. }) | None => {}
            }
        }
        ResetProgress::Pods(progress)
    }

    /// Returns the pod that removes the counter: the present one, unless it has left, has failed or takes too long. Pods that enforce
    /// the policy precede others.
    fn remover_of(&self, uid: &str, active: &ActiveReset, now: Instant) -> Option<(String, Instant)> {
        let (policy_uid, policy) = self.policy_of(&active.reset)?;
        let mut pods: Vec<_> = self.sessions_of(policy).collect();
        pods.sort_by_key(|(pod, session)| {
            (!matches!(session.reports.policies.get(policy_uid), Some(PolicyReport::Applied { .. })), *pod)
        });
        let Some((present, since)) = &active.remover else {
            return pods.first().map(|(pod, _)| ((*pod).clone(), now));
        };
        let position = pods.iter().position(|(pod, _)| *pod == present);
        let next = match position {
            None => pods.first(),
            Some(at) => {
                let has_failed = matches!(pods[at].1.resets.get(uid), Some(ResetReport::Failed { .. }));
                if !has_failed && now.duration_since(*since) < REMOVAL_TIMEOUT {
                    return active.remover.clone();
                }
                pods.get((at + 1) % pods.len())
            }
        };
        next.map(|(pod, _)| ((*pod).clone(), now))
    }

    /// Returns the resets that a pod takes part in.
    pub(super) fn resets_of(&self, pod_uid: &str, session: &Session) -> BTreeMap<ResetUid, ResetOrder> {
        let is_of = |active: &ActiveReset| match session.identity.enforcer {
            Enforcer::Sidecar => active.reset.namespace == session.identity.namespace,
            Enforcer::Service => true,
        };
        let of_namespace = self.resets.iter().filter(|(_, active)| is_of(active));
        let orders = of_namespace.filter_map(|(uid, active)| {
            let step = match active.removed_at {
                Some(removed_at) => ResetStep::Forget { removed_at },
                None if active.remover.as_ref().is_some_and(|(pod, _)| pod == pod_uid) => ResetStep::Remove,
                None => return None,
            };
            let (_, policy) = self.policy_of(&active.reset)?;
            let order = ResetOrder {
                namespace: policy.key.namespace.clone(),
                policy: policy.key.name.clone(),
                limit: active.reset.limit.clone(),
                key: active.reset.key.clone(),
                step,
            };
            policy.selects(&session.identity).then(|| (uid.clone(), order))
        });
        orders.collect()
    }

    /// Takes what a pod reports about resets. Returns the namespaces in which it has removed a counter.
    pub(super) fn take_reset_reports(
        &mut self,
        pod_uid: &str,
        reports: &BTreeMap<ResetUid, ResetReport>,
    ) -> BTreeSet<String> {
        let mut removed = BTreeSet::new();
        for (uid, report) in reports {
            let (Some(active), ResetReport::Removed { at }) = (self.resets.get_mut(uid), report) else {
                continue;
            };
            let is_remover = active.remover.as_ref().is_some_and(|(pod, _)| pod == pod_uid);
            if active.removed_at.is_none() && is_remover {
                active.removed_at = Some(*at);
                removed.insert(active.reset.namespace.clone());
            }
        }
        removed
    }
}

impl Hub {
    /// Sets the resets to be carried out, and returns how far each is. Call this again from time to time: another pod
    /// removes the counter if the chosen one leaves.
    pub fn set_resets(&self, resets: BTreeMap<ResetUid, Reset>) -> BTreeMap<ResetUid, ResetProgress> {
        let mut guard = self.lock();
        let (state, now) = (&mut *guard, Instant::now());
        let mut before = std::mem::take(&mut state.resets);
        let removed = before.iter().filter(|(uid, _)| !resets.contains_key(*uid));
        let mut changed: BTreeSet<_> = removed.map(|(_, active)| active.reset.namespace.clone()).collect();
        let mut progress = BTreeMap::new();
        let mut all = BTreeMap::new();
        for (uid, reset) in resets {
            let mut active = before.remove(&uid).unwrap_or_else(|| {
                changed.insert(reset.namespace.clone());
                ActiveReset { reset, remover: None, removed_at: None }
            });
            if active.removed_at.is_none() {
                let remover = state.remover_of(&uid, &active, now);
                if active.remover.as_ref().map(|(pod, _)| pod) != remover.as_ref().map(|(pod, _)| pod) {
                    changed.insert(active.reset.namespace.clone());
                }
                active.remover = remover;
            }
            progress.insert(uid.clone(), state.progress(&uid, &active));
            all.insert(uid, active);
        }
        state.resets = all;
        for namespace in &changed {
            state.wake(namespace, Changed::Live, |_| true);
        }
        drop(guard);
        if !changed.is_empty() {
            self.changed();
        }
        progress
    }
}

/// Maximum number of limits, each of which takes 2 KiB.
const MAX_LIMITS: usize = 20_000;

impl HubState {
    /// Takes what a pod reports about its own policies.
    pub(super) fn take_shadow_denied(&mut self, pod_uid: &str, reported: &ShadowDenied) {
        if reported.is_empty() {
            return;
        }
        let Some(session) = self.sessions.get(pod_uid) else { return };
        let now = Instant::now();
        let limits = reported
            .iter()
            .flat_map(|(policy, limits)| limits.iter().map(move |(limit, sketch)| (policy, limit, sketch)));
        for (name, limit, sketch) in limits.take(MAX_SHADOW_DENIED) {
            let Some((_, policy)) =
                self.policies_of(session).find(|(_, policy)| policy.key.to_string() == *name)
            else {
                continue;
            };
            let key = (policy.key.clone(), limit.clone());
            let has_room = self.shadow_denied.len() < MAX_LIMITS || self.shadow_denied.contains_key(&key);
            if let (true, true, Ok(sketch)) = (is_shadow(policy, limit, self.mode), has_room, sketch.parse())
            {
                let recent = self.shadow_denied.entry(key).or_insert_with(|| RecentClients::new(now));
                recent.merge(&sketch, now);
            }
        }
    }
}

/// Reports whether a policy has a limit in Shadow with this name.
fn is_shadow(policy: &DistributedPolicy, limit: &str, installation: Mode) -> bool {
    let mut limits = policy.limits.iter();
    limits.any(|known| known.name == limit && (known.mode == Mode::Shadow || installation == Mode::Shadow))
}

impl Hub {
    /// Returns how many clients each limit in Shadow would have denied in the last minutes, over all pods.
    pub fn shadow_denied(&self) -> BTreeMap<LimitKey, u64> {
        let (mut state, now) = (self.lock(), Instant::now());
        let HubState { shadow_denied, policies, mode, .. } = &mut *state;
        let existing: HashMap<_, _> = policies.values().map(|policy| (&policy.key, policy)).collect();
        shadow_denied.retain(|(policy, limit), recent| {
            !recent.is_empty(now)
                && existing.get(policy).is_some_and(|policy| is_shadow(policy, limit, *mode))
        });
        let copy: Vec<_> =
            shadow_denied.iter().map(|(limit, recent)| (limit.clone(), recent.all())).collect();
        drop(state);
        copy.into_iter().map(|(limit, clients)| (limit, clients.count())).collect()
    }
}
