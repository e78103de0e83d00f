//! Sessions in the hub.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_config::PolicyHash;
use sluice_config::message::{Report, StoreReport, UntrustedProxy};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use super::Hub;
use crate::distribution::identity::Identity;
use crate::distribution::session::{
    Confirmation, EXPIRY, Session, sanitized, sanitized_ports, sanitized_reset, sanitized_store,
};

impl Hub {
    /// Begins a session. An older session of the same pod ends, and its reports count until they expire or
    /// the new session reports. The session must end when the returned receiver closes.
    pub fn connect(self: &Arc<Self>, identity: Identity, name: &str) -> mpsc::Receiver<()> {
        let (close, closed) = mpsc::channel(1);
        let mut state = self.lock();
        let old = state.sessions.remove(&identity.pod_uid);
        let (reports, stores) =
            old.map_or((BTreeMap::new(), BTreeMap::new()), |old| (old.reports, old.stores));
        let session = Session {
            name: name.to_owned(),
            reports,
            stores,
            resets: BTreeMap::new(),
            unreachable: Vec::new(),
            unreachable_told: false,
            expires: Some(Instant::now() + EXPIRY),
            ended: false,
            replicas_changed: Arc::default(),
            _close: close,
            identity,
        };
        let pod_uid = session.identity.pod_uid.clone();
        state.sessions.insert(pod_uid.clone(), session);
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
            let Some(ended) = session.filter(|session| !session.counts()).map(|session| session.ended) else {
                return;
            };
            let keys = state.policies_of(&pod_uid);
            if ended {
                state.sessions.remove(&pod_uid);
            }
            drop(state);
            hub.store_reports.notify_one();
            hub.queue.add_all(keys);
        });
    }

    /// Ends the session of a deleted pod and discards its reports.
    pub fn remove_pod(&self, pod_uid: &str) {
        self.lock().sessions.remove(pod_uid);
    }

    /// Updates the labels of a pod.
    pub fn set_pod_labels(&self, pod_uid: &str, labels: &BTreeMap<String, String>) {
        let mut state = self.lock();
        let session = state.sessions.get_mut(pod_uid).filter(|session| session.identity.labels != *labels);
        if let Some(session) = session {
            session.identity.labels.clone_from(labels);
            drop(state);
            self.changed();
        }
    }

    /// Reports whether there is a session of this name.
    #[must_use]
    pub fn has_session(&self, name: &str) -> bool {
        self.lock().sessions.values().any(|session| session.name == name)
    }

    /// Takes a report. Returns false if the session does not exist.
    pub fn report(&self, report: Report) -> bool {
        let mut state = self.lock();
        let found = state.sessions.iter().find(|(_, session)| session.name == report.session);
        let Some(pod_uid) = found.map(|(uid, _)| uid.clone()) else { return false };
        let keys = state.policies_of(&pod_uid);
        let reports: BTreeMap<_, _> = report
            .policies
            .into_iter()
            .filter(|(uid, _)| state.policies.contains_key(uid))
            .map(|(uid, report)| (uid, sanitized(report)))
            .collect();
        let namespace = state.sessions.get(&pod_uid).map(|session| session.identity.namespace.clone());
        let known: BTreeSet<_> = state.stores.names(&namespace.unwrap_or_default()).collect();
        let stores = report.stores.into_iter().filter(|(name, _)| known.contains(name.as_str()));
        let stores: BTreeMap<_, _> = stores.map(|(name, report)| (name, sanitized_store(report))).collect();
        let resets: BTreeMap<_, _> = report
            .resets
            .into_iter()
            .filter(|(uid, _)| state.resets.contains_key(uid))
            .map(|(uid, report)| (uid, sanitized_reset(report)))
            .collect();
        let removed = state.take_reset_reports(&pod_uid, &resets);
        state.take_shadow_denied(&pod_uid, &report.shadow_denied);
        let Some(session) = state.sessions.get_mut(&pod_uid) else { return false };
        let unreachable = sanitized_ports(report.unreachable);
        let changed = session.reports != reports
            || session.stores != stores
            || session.unreachable != unreachable
            || session.expires.is_some();
        session.unreachable_told &= !unreachable.is_empty();
        session.unreachable = unreachable;
        let resets_changed = std::mem::replace(&mut session.resets, resets.clone()) != resets;
        session.reports = reports;
        session.stores = stores;
        session.expires = None;
        drop(state);
        if removed {
            self.changed();
        }
        if resets_changed {
            self.reset_reports.notify_one();
        }
        if changed {
            self.store_reports.notify_one();
            self.queue.add_all(keys);
        }
        true
    }

    /// Returns the last report of a pod's sidecar about this edit of a policy.
    #[must_use]
    pub fn confirmation(&self, pod_uid: &str, policy_uid: &str, hash: &PolicyHash) -> Confirmation {
        let state = self.lock();
        let session = state.sessions.get(pod_uid).filter(|session| session.counts());
        session.map_or(Confirmation::NotConnected, |session| session.confirmation(policy_uid, hash))
    }

    /// Returns the proxy through which most requests reach a pod, if this edit of a policy does not trust it.
    #[must_use]
    pub fn untrusted_proxy(
        &self,
        pod_uid: &str,
        policy_uid: &str,
        hash: &PolicyHash,
    ) -> Option<UntrustedProxy> {
        let state = self.lock();
        let session = state.sessions.get(pod_uid).filter(|session| session.counts())?;
        session.untrusted_proxy(policy_uid, hash)
    }

    /// Returns the names of the limits of this edit of a policy that have nearly as many keys as they may have, as a pod
    /// reports them.
    #[must_use]
    pub fn nearly_full(&self, pod_uid: &str, policy_uid: &str, hash: &PolicyHash) -> Vec<String> {
        let state = self.lock();
        let session = state.sessions.get(pod_uid).filter(|session| session.counts());
        session.map(|session| session.nearly_full(policy_uid, hash)).unwrap_or_default()
    }

    /// Returns the ports of the applications that a pod's sidecar has not reached for a minute although requests came.
    #[must_use]
    pub fn unreachable(&self, pod_uid: &str) -> Vec<u16> {
        let state = self.lock();
        let session = state.sessions.get(pod_uid).filter(|session| session.counts());
        session.map(|session| session.unreachable.clone()).unwrap_or_default()
    }

    /// Reports whether an event is to tell that a pod's application is not reached: once, until it is reached again.
    pub fn tell_unreachable(&self, pod_uid: &str) -> bool {
        let mut state = self.lock();
        let session = state.sessions.get_mut(pod_uid).filter(|session| !session.unreachable.is_empty());
        session.is_some_and(|session| !std::mem::replace(&mut session.unreachable_told, true))
    }

    /// Returns the last report of a pod's sidecar about a store, or `None` if it is not connected or has not reported
    /// on it.
    #[must_use]
    pub fn store_report(&self, pod_uid: &str, store: &str) -> Option<StoreReport> {
        let state = self.lock();
        let session = state.sessions.get(pod_uid).filter(|session| session.counts())?;
        session.stores.get(store).cloned()
    }

    /// Returns the namespaces of the pods that have sessions.
    #[must_use]
    pub fn namespaces_with_sessions(&self) -> BTreeSet<String> {
        self.lock().sessions.values().map(|session| session.identity.namespace.clone()).collect()
    }

    /// Returns the number of sessions, including recently ended ones.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.lock().sessions.len()
    }

    /// Returns what is notified when the replicas of one of the pod's policies change, or `None` if the pod
    /// has no session.
    #[must_use]
    pub fn replica_changes(&self, pod_uid: &str) -> Option<Arc<Notify>> {
        self.lock().sessions.get(pod_uid).map(|session| session.replicas_changed.clone())
    }
}
