//! Sessions in the hub, and the desired state of the pod of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_config::PolicyHash;
use sluice_config::message::{PublishedPolicy, Replica, Report, ResetOrder, ResetUid, TokenKeys};
use sluice_config::store_access::StoreChoices;
use sluice_crds::policy::Enforcer;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::cluster::pods::pod::Labels;
use crate::distribution::hub::{ALL_NAMESPACES, Hub, HubState, Namespaced as _};
use crate::distribution::publication::Places;
use crate::distribution::session::{
    Changed, EXPIRY, Identity, Reported, Reports, Session, Wakeup, sanitized, sanitized_ports,
    sanitized_reset,
};

impl HubState {
    fn remove_session(&mut self, pod_uid: &str) -> Option<Session> {
        let session = self.sessions.remove(pod_uid)?;
        self.names.remove(&session.name);
        let namespace = session.namespace();
        if self.sessions.in_namespace(namespace).next().is_none() {
            self.reports.forget(namespace);
        }
        Some(session)
    }
}

impl Hub {
    /// Begins a session. An older session of the same pod ends, and its reports count until they expire or
    /// the new session reports. The session must end when the returned receiver closes.
    pub fn connect(self: &Arc<Self>, identity: Identity, name: &str) -> mpsc::Receiver<()> {
        let (close, closed) = mpsc::channel(1);
        let mut state = self.lock();
        let old = state.remove_session(&identity.pod_uid);
        let session = Session {
            name: name.to_owned(),
            reports: old.map(|old| old.reports).unwrap_or_default(),
            resets: BTreeMap::new(),
            unreachable: Vec::new(),
            unreachable_told: false,
            expires: Some(Instant::now() + EXPIRY),
            ended: false,
            wakeup: Arc::default(),
            _close: close,
            identity,
        };
        let pod_uid = session.identity.pod_uid.clone();
        state.sessions.insert(&pod_uid, session);
        state.names.insert(name.to_owned(), pod_uid.clone());
        drop(state);
        // The sidecar may never report in the new session.
        self.expire_later(&pod_uid, name);
        closed
    }

    /// Ends a session.
    pub fn disconnect(self: &Arc<Self>, pod_uid: &str, name: &str) {
        let mut state = self.lock();
        let Some(session) = state.sessions.get_mut(pod_uid).filter(|session| session.name == name) else {
            return;
        };
        session.expires = Some(Instant::now() + EXPIRY);
        session.ended = true;
        drop(state);
        self.expire_later(pod_uid, name);
    }

    /// Waits for the expiry of a session's reports. If they have expired then, queues the pod's policies and,
    /// if the session has ended, removes it.
    fn expire_later(self: &Arc<Self>, pod_uid: &str, name: &str) {
        let (hub, pod_uid, name) = (self.clone(), pod_uid.to_owned(), name.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(EXPIRY).await;
            let mut state = hub.lock();
            let session = state.sessions.get(&pod_uid).filter(|session| session.name == name);
            let Some(session) = session.filter(|session| !session.counts()) else { return };
            let keys: Vec<_> = state.policies_of(session).map(|(_, policy)| policy.key.clone()).collect();
            if session.ended {
                state.remove_session(&pod_uid);
            }
            drop(state);
            hub.store_reports.notify_one();
            hub.queue.add_observed(keys);
        });
    }

    /// Ends a number of sessions, so that their sidecars look for the next leader.
    pub fn end_sessions(&self, count: usize) {
        let mut state = self.lock();
        let some: Vec<_> = state.sessions.keys().take(count).cloned().collect();
        for uid in some {
            state.remove_session(&uid);
        }
    }

    /// Ends the session of a deleted pod and discards its reports.
    pub fn remove_pod(&self, pod_uid: &str) {
        self.lock().remove_session(pod_uid);
    }

    /// Updates the labels of a pod.
    pub fn set_pod_labels(&self, pod_uid: &str, labels: &Labels) {
        let mut state = self.lock();
        let Some(session) = state.sessions.get_mut(pod_uid) else { return };
        // Equal ones are shared from now on.
        if std::mem::replace(&mut session.identity.labels, labels.clone()) != *labels {
            session.wakeup.wake(Changed::Policies);
        }
    }

    /// Reports whether there is a session of this name.
    pub fn has_session(&self, name: &str) -> bool {
        self.lock().names.contains_key(name)
    }

    /// Takes a report of a session. Returns false if there is no session of this name.
    pub fn report(&self, name: &str, report: Report) -> bool {
        let mut state = self.lock();
        let Some(pod_uid) = state.names.get(name).cloned() else { return false };
        let Some(session) = state.sessions.get(&pod_uid) else { return false };
        let (namespace, enforcer) = (session.identity.namespace.clone(), session.identity.enforcer);
        let policies = report
            .policies
            .into_iter()
            .filter(|(uid, _)| state.policies.get(uid).is_some())
            .map(|(uid, report)| (uid, sanitized(report)))
            .collect();
        let known: BTreeSet<_> = match enforcer {
            Enforcer::Sidecar => state.stores.names(&namespace).map(str::to_owned).collect(),
            Enforcer::Service => state.stores.all_names().collect(),
        };
        let stores = report.stores.into_iter().filter(|(name, _)| known.contains(name)).collect();
        let index = session.namespace().to_owned();
        let reports = state.reports.share(&index, Reports { policies, stores });
        let Some(session) = state.sessions.get(&pod_uid) else { return false };
        let resets: BTreeMap<_, _> = report
            .resets
            .into_iter()
            .filter(|(uid, _)| state.resets.contains_key(uid))
            .map(|(uid, report)| (uid, sanitized_reset(report)))
            .collect();
        let unreachable = sanitized_ports(report.unreachable);
        let before = &session.reports;
        let stores_changed = before.stores != reports.stores || session.expires.is_some();
        let all_changed = stores_changed || session.unreachable != unreachable;
        let has_changed = |uid: &String| all_changed || before.policies.get(uid) != reports.policies.get(uid);
        let changed = state.policies_of(session).filter(|(uid, _)| has_changed(uid));
        let changed: Vec<_> = changed.map(|(_, policy)| policy.key.clone()).collect();
        let removed = state.take_reset_reports(&pod_uid, &resets);
        let has_removed = !removed.is_empty();
        state.take_shadow_denied(&pod_uid, &report.shadow_denied);
        let Some(session) = state.sessions.get_mut(&pod_uid) else { return false };
        session.unreachable_told &= !unreachable.is_empty();
        session.unreachable = unreachable;
        let resets_changed = std::mem::replace(&mut session.resets, resets.clone()) != resets;
        session.reports = reports;
        session.expires = None;
        for namespace in removed {
            state.wake(&namespace, Changed::Live, |_| true);
        }
        drop(state);
        if has_removed {
            self.changed();
        }
        if resets_changed {
            self.reset_reports.notify_one();
        }
        if stores_changed {
            self.store_reports.notify_one();
        }
        self.queue.add_observed(changed);
        true
    }

    /// Returns what pods have reported last about this edit of a policy and about a store, which has a namespace and a name.
    pub fn reported<'a>(
        &self,
        pods: impl Iterator<Item = &'a str>,
        policy_uid: &str,
        hash: &PolicyHash,
        store: (&str, &str),
    ) -> Vec<Reported> {
        let state = self.lock();
        let mut last: Option<(&Session, Reported)> = None;
        let reported = pods.map(|pod| {
            let session = state.sessions.get(pod).filter(|session| session.counts());
            let Some(session) = session else { return Reported::NOTHING };
            if let Some((_, reported)) = last.as_ref().filter(|(like, _)| session.is_like(like)) {
                return Reported { unreachable: session.unreachable.clone(), ..reported.clone() };
            }
            last.insert((session, session.reported(policy_uid, hash, store))).1.clone()
        });
        reported.collect()
    }

    /// Reports whether the sidecar of one of these pods is not connected, or has not reported yet.
    pub fn awaits_report<'a>(&self, mut pods: impl Iterator<Item = &'a str>) -> bool {
        let state = self.lock();
        pods.any(|pod| state.sessions.get(pod).is_none_or(|session| !session.has_reported()))
    }

    /// Reports whether an event is to tell that a pod's application is not reached: once, until it is reached again.
    pub fn tell_unreachable(&self, pod_uid: &str) -> bool {
        let mut state = self.lock();
        let session = state.sessions.get_mut(pod_uid).filter(|session| !session.unreachable.is_empty());
        session.is_some_and(|session| !std::mem::replace(&mut session.unreachable_told, true))
    }

    /// Returns the namespaces of the pods that have sessions.
    pub fn namespaces_with_sessions(&self) -> BTreeSet<String> {
        let state = self.lock();
        let of_service = state.sessions.in_namespace(ALL_NAMESPACES);
        let of_service = of_service.map(|(_, session)| &session.identity.namespace);
        let others = state.sessions.namespaces.keys().filter(|namespace| *namespace != ALL_NAMESPACES);
        others.chain(of_service).cloned().collect()
    }

    /// Returns the number of sessions, including recently ended ones.
    pub fn session_count(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Returns what wakes the session of a pod, or `None` if it has none.
    pub(in crate::distribution) fn wakeup(&self, pod_uid: &str) -> Option<Arc<Wakeup>> {
        self.lock().sessions.get(pod_uid).map(|session| session.wakeup.clone())
    }
}

/// The desired state of one pod, taken from the hub at one moment.
pub struct Desired {
    /// The stores of the pod's policies, if policies were requested. Others have nothing to do with it.
    pub stores: StoreChoices,
    /// Names of further stores, of which the sidecar keeps the access that it has.
    pub kept_stores: Vec<String>,
    /// The keys that tokens of callers are verified with, of a session of the service.
    pub token_keys: Option<TokenKeys>,
    /// Replica index and count of the pod for each of its policies, by UID, where they are known.
    pub replicas: BTreeMap<String, Replica>,
    /// Resets that the pod takes part in.
    pub resets: BTreeMap<ResetUid, ResetOrder>,
    /// All policies of the pod, if requested.
    pub policies: Option<DesiredPolicies>,
    /// UIDs of policies that are held back until their replicas are known. The pod keeps its version of them.
    pub held: BTreeSet<String>,
    /// Time at which the first hold ends.
    pub held_until: Option<Instant>,
}

/// The policies of one pod, by UID.
#[derive(Debug, Default)]
pub struct DesiredPolicies {
    /// Policies that it receives.
    pub policies: BTreeMap<String, Arc<PublishedPolicy>>,
    /// Policies of which it keeps its version.
    pub keep: Vec<String>,
    /// Policies that it receives unless it has a version of them.
    pub fallback: BTreeMap<String, Arc<PublishedPolicy>>,
}

impl Hub {
    /// Returns the desired state of a pod, or `None` if the pod has no session.
    pub fn desired(&self, pod_uid: &str, with_policies: bool) -> Option<Desired> {
        let state = self.lock();
        let session = state.sessions.get(pod_uid)?;
        let mut desired = Desired {
            stores: StoreChoices::default(),
            kept_stores: Vec::new(),
            token_keys: state.token_keys.clone().filter(|_| session.identity.enforcer == Enforcer::Service),
            replicas: BTreeMap::new(),
            resets: state.resets_of(pod_uid, session),
            policies: with_policies.then(DesiredPolicies::default),
            held: BTreeSet::new(),
            held_until: None,
        };
        let (mut stores, mut found) = (BTreeSet::new(), None);
        for (uid, policy) in state.policies_of(session) {
            match &policy.published {
                Some(_) if !policy.is_fallback => {
                    stores.insert((policy.key.namespace.as_str(), policy.store.as_str()));
                }
                // The edit that the sidecar keeps is not known.
                Some(_) | None => {
                    let namespace = policy.key.namespace.as_str();
                    stores.extend(state.stores.names(namespace).map(|name| (namespace, name)));
                }
            }
            if let Some(places) = policy.replicas.places() {
                // Most policies of a pod select the same pods.
                let known = found.filter(|(of, _): &(&Arc<Places>, _)| Arc::ptr_eq(of, places));
                let (_, replica) = *found.insert(known.unwrap_or_else(|| (places, places.replica(pod_uid))));
                desired.replicas.insert(uid.clone(), replica);
            }
            if let Some(until) = policy.replicas.held_until().or_else(|| state.store_held_until(policy)) {
                desired.held.insert(uid.clone());
                desired.held_until = Some(desired.held_until.map_or(until, |first| first.min(until)));
                continue;
            }
            let Some(policies) = &mut desired.policies else { continue };
            match &policy.published {
                // After an invalid edit, new sessions receive the last valid one too.
                Some(published) => {
                    let list =
                        if policy.is_fallback { &mut policies.fallback } else { &mut policies.policies };
                    list.insert(uid.clone(), published.under(state.mode).clone());
                }
                None => policies.keep.push(uid.clone()),
            }
        }
        if with_policies {
            (desired.stores, desired.kept_stores) = state.stores.choices(session.identity.enforcer, stores);
        }
        Some(desired)
    }
}
