//! Policies in the hub.

use std::sync::Arc;

use bytes::Bytes;
use sluice_config::policy::{BlobHash, Mode};
use sluice_crds::policy::PodSelection;
use tokio::time::Instant;

use super::{DistributedPolicy, Hub, State};
use crate::distribution::publication::Publication;
use crate::distribution::replicas::Replicas;
use crate::object_key::PolicyKey;
use crate::pod_selector::PodSelector;

impl Hub {
    /// Publishes a valid edit of a policy. Returns the time since which it is published, and the mode of the
    /// installation under which it is. Publishing the same edit again changes nothing.
    pub fn publish(&self, uid: &str, key: &PolicyKey, edit: Publication) -> (Instant, Mode) {
        let mut state = self.lock();
        let old = state.policies.get(uid);
        let is_same = |old: &&DistributedPolicy| {
            let published = old.published.as_ref();
            old.is_fallback == edit.is_fallback
                && published.is_some_and(|forms| forms.as_written.hash == edit.forms.as_written.hash)
        };
        let same = old.filter(is_same);
        let same_selector = old.is_some_and(|old| old.selector == edit.selector);
        let published_at = same.map_or_else(Instant::now, |same| same.published_at);
        if same.is_some() && same_selector {
            return (published_at, state.mode);
        }
        let replicas = Replicas::after_edit(edit.needs_replicas, old.map(|old| &old.replicas), same_selector);
        let previous_blobs = old.map(|old| old.blobs.clone()).unwrap_or_default();
        let policy = DistributedPolicy {
            key: key.clone(),
            selector: edit.selector,
            pods: Some(edit.pods),
            store: edit.store,
            limits: edit.limits,
            published: Some(edit.forms),
            is_fallback: edit.is_fallback,
            blobs: edit.blobs,
            previous_blobs,
            published_at,
            replicas,
        };
        state.policies.insert(uid.to_owned(), policy);
        let mode = state.mode;
        drop(state);
        self.changed();
        (published_at, mode)
    }

    /// Reports whether a policy is published, and not only for pods without a version of it.
    #[must_use]
    pub fn has_whole(&self, uid: &str) -> bool {
        let state = self.lock();
        state.policies.get(uid).is_some_and(|policy| policy.published.is_some() && !policy.is_fallback)
    }

    /// Returns content that a policy of the session's pod refers to, or did before its last change. No pod receives that of
    /// others.
    #[must_use]
    pub fn blob(&self, session: &str, hash: &BlobHash) -> Option<Bytes> {
        let state = self.lock();
        let session = state.sessions.values().find(|known| known.name == session && !known.ended)?;
        let policies = state.policies.values().filter(|policy| policy.selects(&session.identity));
        let mut blobs = policies.flat_map(|policy| policy.blobs.iter().chain(&policy.previous_blobs));
        blobs.find(|blob| blob.hash == *hash).map(|blob| blob.bytes.clone())
    }

    /// Records that the newest edit of a policy cannot be published. Sidecars keep the last one that was.
    pub fn keep_published(&self, uid: &str, key: &PolicyKey) {
        let mut state = self.lock();
        if state.policies.contains_key(uid) {
            return;
        }
        // It selects every pod of the namespace, because any of them may have a valid edit from a former
        // leader.
        let policy = DistributedPolicy {
            key: key.clone(),
            selector: PodSelector::all(),
            pods: None,
            store: String::new(),
            limits: Arc::default(),
            published: None,
            is_fallback: false,
            blobs: Vec::new(),
            previous_blobs: Vec::new(),
            published_at: Instant::now(),
            replicas: Replicas::default(),
        };
        state.policies.insert(uid.to_owned(), policy);
        drop(state);
        self.changed();
    }

    /// Removes a deleted policy.
    pub fn remove(&self, uid: &str) {
        if self.lock().policies.remove(uid).is_some() {
            self.changed();
        }
    }

    /// Returns the selector of the last valid edit of a policy.
    #[must_use]
    pub fn selector(&self, uid: &str) -> Option<PodSelector> {
        let state = self.lock();
        let policy = state.policies.get(uid).filter(|policy| policy.published.is_some())?;
        Some(policy.selector.clone())
    }

    /// Returns the pods of the last valid edit of a policy, as the policy says it.
    #[must_use]
    pub fn pods(&self, uid: &str) -> Option<PodSelection> {
        self.lock().policies.get(uid)?.pods.clone()
    }

    /// Sets the selector of the last valid edit of a policy, whose targets have changed.
    pub fn select(&self, uid: &str, selector: PodSelector) {
        let mut state = self.lock();
        let policy = state.policies.get_mut(uid).filter(|policy| policy.published.is_some());
        let Some(policy) = policy.filter(|policy| policy.selector != selector) else { return };
        policy.selector = selector;
        // They are counted next.
        policy.replicas = Replicas::after_edit(false, Some(&policy.replicas), false);
        drop(state);
        self.changed();
    }

    /// Sets the replicas of a policy, by the UIDs of the pods, unless its selector has changed since they
    /// were counted. If the replicas have changed, wakes the sessions of all selected pods.
    pub fn set_replicas(&self, uid: &str, selector: &PodSelector, pods: Vec<String>) {
        let mut state = self.lock();
        let State { policies, sessions, .. } = &mut *state;
        let Some(policy) = policies.get_mut(uid).filter(|policy| policy.selector == *selector) else {
            return;
        };
        if !policy.replicas.set(pods) {
            return;
        }
        // A selected pod that is not among the replicas is counted in addition, so its count has changed too.
        for session in sessions.values().filter(|session| policy.selects(&session.identity)) {
            session.replicas_changed.notify_one();
        }
    }
}
