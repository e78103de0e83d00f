//! Policies in the hub.
//!
//! For changes of replicas sessions are woken at once for the first change of a namespace, and then once a second for all that
//! have come together. In a rollout the replicas of all policies change with every pod. Changes that hardly matter wait for others
//! for some seconds, because each of a thousand sidecars would get a message for each pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_config::policy::BlobHash;
use sluice_crds::policy::{EnforcedBy, Enforcer, PodSelection};
use tokio::time::Instant;

use crate::distribution::hub::{DistributedPolicy, Hub, HubState, WaitingReplicas};
use crate::distribution::publication::{Places, Publication, PublishedEdit, Replicas};
use crate::distribution::session::Changed;
use crate::names::{PodSelector, PolicyKey};

impl Hub {
    /// Publishes a valid edit of a policy. Publishing the same edit again changes nothing.
    pub fn publish(&self, uid: &str, key: &PolicyKey, edit: Publication) -> PublishedEdit {
        let mut state = self.lock();
        let old = state.policies.get(uid);
        let is_same = |old: &&DistributedPolicy| {
            let published = old.published.as_ref();
            old.is_fallback == edit.is_fallback
                && published.is_some_and(|forms| forms.as_written.hash == edit.forms.as_written.hash)
        };
        let same = old.filter(is_same);
        let same_selector =
            old.is_some_and(|old| old.selector == edit.selector && old.enforced_by == edit.enforced_by);
        let published_at = same.map_or_else(Instant::now, |same| same.published_at);
        let is_first = same.map_or(old.is_none(), |same| same.is_first);
        let published = PublishedEdit { at: published_at, is_first, installation: state.mode };
        if same.is_some() && same_selector {
            return published;
        }
        let replicas = Replicas::after_edit(edit.needs_replicas, old.map(|old| &old.replicas), same_selector);
        let previous_blobs = old.map(|old| old.blobs.clone()).unwrap_or_default();
        let policy = DistributedPolicy {
            key: key.clone(),
            selector: edit.selector,
            enforced_by: edit.enforced_by,
            pods: Some(edit.pods),
            store: edit.store,
            limits: edit.limits,
            published: Some(edit.forms),
            is_fallback: edit.is_fallback,
            blobs: edit.blobs,
            previous_blobs,
            published_at,
            is_first,
            replicas,
        };
        let before = state.policies.insert(uid, policy);
        let after = state.policies.get(uid);
        state.wake(&key.namespace, Changed::Policies, |session| {
            [before.as_ref(), after].into_iter().flatten().any(|policy| policy.selects(&session.identity))
        });
        drop(state);
        self.changed();
        published
    }

    /// Reports whether a policy is published, and not only for pods without a version of it.
    pub fn has_whole(&self, uid: &str) -> bool {
        let state = self.lock();
        state.policies.get(uid).is_some_and(|policy| policy.published.is_some() && !policy.is_fallback)
    }

    /// Returns content that a policy of the session's pod refers to, or did before its last change. No pod receives that of
    /// others.
    pub fn blob(&self, session: &str, hash: &BlobHash) -> Option<Bytes> {
        let state = self.lock();
        let session = state.sessions.get(state.names.get(session)?).filter(|session| !session.ended)?;
        let policies = state.policies_of(session);
        let mut blobs = policies.flat_map(|(_, policy)| policy.blobs.iter().chain(&policy.previous_blobs));
        blobs.find(|blob| blob.hash == *hash).map(|blob| blob.bytes.clone())
    }

    /// Records that the newest edit of a policy cannot be published. Sidecars keep the last one that was.
    pub fn keep_published(&self, uid: &str, key: &PolicyKey) {
        let mut state = self.lock();
        if state.policies.get(uid).is_some() {
            return;
        }
        // It selects every pod of the namespace, because any of them may have a valid edit from a former
        // leader.
        let policy = DistributedPolicy {
            key: key.clone(),
            selector: PodSelector::all(),
            // The service may have one too.
            enforced_by: EnforcedBy { sidecar: true, service: true },
            pods: None,
            store: String::new(),
            limits: Arc::default(),
            published: None,
            is_fallback: false,
            blobs: Vec::new(),
            previous_blobs: Vec::new(),
            published_at: Instant::now(),
            is_first: false,
            replicas: Replicas::default(),
        };
        state.policies.insert(uid, policy);
        state.wake(&key.namespace, Changed::Policies, |_| true);
        drop(state);
        self.changed();
    }

    /// Records that the newest edit of a policy must not be enforced by the service, nor the one before it.
    pub fn take_from_service(&self, uid: &str, key: &PolicyKey) {
        self.keep_published(uid, key);
        let mut state = self.lock();
        let Some(policy) = state.policies.get_mut(uid).filter(|policy| policy.enforced_by.service) else {
            return;
        };
        policy.enforced_by.service = false;
        policy.replicas = Replicas::after_edit(false, Some(&policy.replicas), false);
        state.wake(&key.namespace, Changed::Policies, |_| true);
        drop(state);
        self.changed();
    }

    /// Removes a deleted policy.
    pub fn remove(&self, uid: &str) {
        let mut state = self.lock();
        let Some(policy) = state.policies.remove(uid) else { return };
        state.wake(&policy.key.namespace, Changed::Policies, |session| policy.selects(&session.identity));
        drop(state);
        self.changed();
    }

    /// Returns the policies of a namespace that select pods with some of these labels.
    pub fn selecting(&self, namespace: &str, labels: &[&BTreeMap<String, String>]) -> Vec<PolicyKey> {
        let state = self.lock();
        let policies = state.policies.in_namespace(namespace).map(|(_, policy)| policy);
        let selecting = policies.filter(|policy| labels.iter().any(|labels| policy.selector.matches(labels)));
        selecting.map(|policy| policy.key.clone()).collect()
    }

    /// Returns the policies that the service enforces.
    pub fn enforced_by_service(&self) -> Vec<PolicyKey> {
        let state = self.lock();
        let policies = state.policies.values().filter(|policy| policy.enforced_by.service);
        policies.map(|policy| policy.key.clone()).collect()
    }

    /// Returns the policies of a namespace that have replicas: the UID, selector and enforcement by the service of the last valid edit.
    pub fn counted_policies(&self, namespace: &str) -> Vec<(String, PodSelector, bool)> {
        let state = self.lock();
        let policies =
            state.policies.in_namespace(namespace).filter(|(_, policy)| policy.published.is_some());
        let counted =
            policies.map(|(uid, policy)| (uid.clone(), policy.selector.clone(), policy.enforced_by.service));
        counted.collect()
    }

    /// Reports whether the service enforces the last valid edit of a policy.
    pub fn is_enforced_by_service(&self, uid: &str) -> bool {
        self.lock().policies.get(uid).is_some_and(|policy| policy.enforced_by.service)
    }

    /// Reports whether the replicas of a policy have been counted, if it has some.
    pub fn is_counted(&self, uid: &str) -> bool {
        let state = self.lock();
        let policy = state.policies.get(uid).filter(|policy| policy.published.is_some());
        policy.is_none_or(|policy| policy.replicas.pods().is_some())
    }

    /// Returns the pods of the last valid edit of a policy, as the policy says it.
    pub fn pods(&self, uid: &str) -> Option<PodSelection> {
        self.lock().policies.get(uid)?.pods.clone()
    }

    /// Sets the selector of the last valid edit of a policy, whose targets have changed.
    pub fn select(&self, uid: &str, selector: PodSelector) {
        let mut state = self.lock();
        let policy = state.policies.get_mut(uid).filter(|policy| policy.published.is_some());
        let Some(policy) = policy.filter(|policy| policy.selector != selector) else { return };
        let before = std::mem::replace(&mut policy.selector, selector);
        // They are counted next.
        policy.replicas = Replicas::after_edit(false, Some(&policy.replicas), false);
        if let Some(policy) = state.policies.get(uid) {
            state.wake(&policy.key.namespace, Changed::Policies, |session| {
                policy.selects(&session.identity)
                    || session.identity.enforcer == Enforcer::Sidecar
                        && before.matches(&session.identity.labels)
            });
        }
        drop(state);
        self.changed();
    }

    /// Sets the replicas of a policy, unless its selector has changed since they were counted. If the replicas have changed,
    /// wakes the sessions of all selected pods, at once if the policy is held back until they are known.
    pub fn set_replicas(self: &Arc<Self>, uid: &str, selector: &PodSelector, pods: &Arc<Places>) {
        let mut state = self.lock();
        let policy = state.policies.get(uid).filter(|policy| policy.selector == *selector);
        let Some(policy) = policy.filter(|policy| !policy.replicas.are(pods)) else { return };
        let was_held = policy.replicas.held_until().is_some();
        let others = state.policies.in_namespace(&policy.key.namespace).map(|(_, other)| &other.replicas);
        let replicas = policy.replicas.counted(pods, others);
        let Some(policy) = state.policies.get_mut(uid) else { return };
        policy.replicas = replicas;
        // A selected pod that is not among the replicas is counted in addition, so its count has changed too.
        let namespace = policy.key.namespace.clone();
        if !was_held {
            return self.wake_for_replicas(&mut state, &namespace, uid);
        }
        policy.replicas.tell();
        if let Some(policy) = state.policies.get(uid) {
            state.wake(&namespace, Changed::Policies, |session| policy.selects(&session.identity));
        }
    }
}

/// Interval between two wakes of a namespace's sessions for changes of replicas.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest time that changes wait which hardly matter.
const MINOR_INTERVAL: Duration = Duration::from_secs(30);

impl HubState {
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
        let WaitingReplicas { policies, .. } = std::mem::take(waiting);
        self.wake_selected(namespace, &policies);
        Some(true)
    }
}

impl Hub {
    /// Wakes the sessions that a policy selects because its replicas have changed, now or soon.
    fn wake_for_replicas(self: &Arc<Self>, state: &mut HubState, namespace: &str, policy: &str) {
        let matters = state.policies.get(policy).is_some_and(|policy| !policy.replicas.are_nearly_told());
        if let Some(waiting) = state.replicas_changed.get_mut(namespace) {
            waiting.policies.insert(policy.to_owned());
            waiting.matters |= matters;
            return;
        }
        let mut waiting = WaitingReplicas::default();
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
