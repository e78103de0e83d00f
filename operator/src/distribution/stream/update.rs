//! Computes the events that bring a sidecar up to date.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use sluice_config::PolicyHash;
use sluice_config::message::{
    CREDENTIALS_EVENT, Credentials, LIVE_EVENT, LiveReplicas, POLICIES_EVENT, Policies, PublishedPolicy,
    REFUSED_EVENT, RESETS_EVENT, Replica, ResetOrder, ResetUid, Resets, TokenKeys, VERSION,
};
use sluice_config::store_access::StoreChoices;
use tokio::time::Instant;

use crate::distribution::hub::Hub;
use crate::distribution::hub::sessions::DesiredPolicies;
use crate::distribution::publication::{EncodedEvents, MAX_HOLD};

/// Everything that a session has been sent.
pub(super) struct Sent {
    /// ID of the last event that the sidecar had applied when it connected.
    last_applied: Option<String>,
    /// The policies that the sidecar has, with their ID, or `None` before the first event with policies.
    policies: Option<(String, SentPolicies)>,
    /// The stores, and the names of those that the sidecar keeps.
    stores: Option<(StoreChoices, Vec<String>, Option<TokenKeys>)>,
    replicas: BTreeMap<String, Replica>,
    /// A sidecar drops the orders of a session before.
    resets: BTreeMap<ResetUid, ResetOrder>,
    /// Time at which the first held policy may be sent.
    pub(super) held_until: Option<Instant>,
    /// Time at which the first event with policies is sent even if some are still held.
    first_held_until: Option<Instant>,
}

/// The policies that a sidecar has.
struct SentPolicies {
    /// Hashes of the policies by UID.
    hashes: BTreeMap<String, PolicyHash>,
    /// UIDs of the policies of which the sidecar keeps its version.
    keep: Vec<String>,
    /// Hashes of the policies that it has unless it keeps its version.
    fallback: BTreeMap<String, PolicyHash>,
}

impl Sent {
    pub(super) fn new(last_applied: Option<String>) -> Self {
        Self {
            last_applied,
            policies: None,
            stores: None,
            replicas: BTreeMap::new(),
            resets: BTreeMap::new(),
            held_until: None,
            first_held_until: None,
        }
    }

    /// Returns the events that bring the sidecar up to date, or `None` if its session has ended. If
    /// `policies_changed` is false, only replicas can have changed.
    ///
    /// Replicas are sent before policies. A policy is held back for some seconds while it needs its replicas
    /// and they are not known. Afterwards it is sent anyway, and a sidecar that has never received the
    /// replicas assumes that it is alone. The first event with policies is held back as a whole, because a
    /// new pod must not start with only some of its policies.
    pub(super) fn update(&mut self, hub: &Hub, pod_uid: &str, policies_changed: bool) -> Option<Vec<Bytes>> {
        let mut events = Vec::new();
        let desired = hub.desired(pod_uid, policies_changed || self.held_until.is_some())?;
        if self.replicas != desired.replicas {
            let message = LiveReplicas { version: VERSION, policies: desired.replicas };
            events.push(event(LIVE_EVENT, None, &message));
            self.replicas = message.policies;
        }
        if self.resets != desired.resets {
            let message = Resets { version: VERSION, resets: desired.resets };
            events.push(event(RESETS_EVENT, None, &message));
            self.resets = message.resets;
        }
        let Some(policies) = desired.policies else { return Some(events) };
        self.held_until = desired.held_until;
        let holds_first = self.policies.is_none() && self.holds_first(&desired.held);
        // While a policy is held, the sidecar keeps its version, which may count in another store.
        let keeps_all = !desired.held.is_empty();
        let policies =
            if holds_first { None } else { self.policies_event(&hub.encoded, policies, desired.held) };
        // Access begins before the first policy of a store and ends after the last.
        let kept = desired.kept_stores;
        let mut union = desired.stores.clone();
        for (name, store) in self.stores.iter().flat_map(|(sent, ..)| &sent.stores) {
            if !kept.contains(name) {
                union.stores.entry(name.clone()).or_insert_with(|| store.clone());
            }
        }
        if let Some(sent) = self.stores.as_ref().and_then(|(sent, ..)| sent.namespaces.as_ref()) {
            let secrets = union.namespaces.get_or_insert_default();
            for (namespace, secret) in sent {
                secrets.entry(namespace.clone()).or_insert_with(|| secret.clone());
            }
        }
        let keys = desired.token_keys;
        events.extend(self.credentials_event(union, kept.clone(), keys.clone()));
        events.extend(policies);
        if !keeps_all {
            events.extend(self.credentials_event(desired.stores, kept, keys));
        }
        Some(events)
    }

    /// Returns the event with the access to these stores, or `None` if the sidecar has it.
    fn credentials_event(
        &mut self,
        stores: StoreChoices,
        keep: Vec<String>,
        token_keys: Option<TokenKeys>,
    ) -> Option<Bytes> {
        let sent = Some((stores, keep, token_keys));
        if self.stores == sent {
            return None;
        }
        self.stores = sent;
        let (stores, keep, token_keys) = self.stores.clone()?;
        Some(event(CREDENTIALS_EVENT, None, &Credentials { version: VERSION, stores, keep, token_keys }))
    }

    /// Reports whether the first event with policies is held back because of these policies. If policies are
    /// held one after another, the others are sent after [`MAX_HOLD`].
    fn holds_first(&mut self, held: &BTreeSet<String>) -> bool {
        if held.is_empty() {
            return false;
        }
        let now = Instant::now();
        let until = *self.first_held_until.get_or_insert(now + MAX_HOLD);
        let holds = now < until;
        if holds {
            self.held_until = self.held_until.map(|held_until| held_until.min(until));
        }
        holds
    }

    /// Returns the event with all policies or, after the first event, with the changes. Returns `None` if the
    /// sidecar is up to date.
    fn policies_event(
        &mut self,
        events: &EncodedEvents,
        mut desired: DesiredPolicies,
        held: BTreeSet<String>,
    ) -> Option<Bytes> {
        let hashes = |policies: &BTreeMap<String, Arc<PublishedPolicy>>| -> BTreeMap<_, _> {
            policies.iter().map(|(uid, policy)| (uid.clone(), policy.hash.clone())).collect()
        };
        let mut new = SentPolicies {
            hashes: hashes(&desired.policies),
            keep: Vec::new(),
            fallback: hashes(&desired.fallback),
        };
        match &self.policies {
            // The sidecar keeps its version of a held policy.
            Some((_, old)) => new.hashes.extend(
                held.iter()
                    .filter_map(|uid| old.hashes.get_key_value(uid))
                    .map(|(uid, hash)| (uid.clone(), hash.clone())),
            ),
            None => desired.keep.extend(held),
        }
        new.keep.clone_from(&desired.keep);
        let id = new.id();
        let before = self.policies.replace((id.clone(), new));
        let id_before = before.as_ref().map(|(id, _)| id.as_str());
        if id_before.or(self.last_applied.as_deref()) == Some(&id) {
            return None;
        }
        let (_, new) = self.policies.as_ref()?;
        Some(events.get(id_before, &id, || {
            let old = before.as_ref().map(|(_, old)| old);
            event(POLICIES_EVENT, Some(&id), &message(old, new, desired))
        }))
    }
}

/// Returns the message that brings a sidecar from its old policies, if it has any, to new ones.
fn message(old: Option<&SentPolicies>, new: &SentPolicies, desired: DesiredPolicies) -> Policies {
    let changed = |policies: BTreeMap<String, Arc<PublishedPolicy>>, old: Option<&BTreeMap<_, _>>| {
        let is_changed = |uid: &String, policy: &PublishedPolicy| {
            old.is_none_or(|old: &BTreeMap<String, PolicyHash>| old.get(uid) != Some(&policy.hash))
        };
        let changed = policies.into_iter().filter(|(uid, policy)| is_changed(uid, policy));
        changed.map(|(uid, policy)| (uid, PublishedPolicy::clone(&policy))).collect()
    };
    let stays = |uid: &&String| {
        new.hashes.contains_key(*uid) || new.fallback.contains_key(*uid) || new.keep.contains(*uid)
    };
    let before = old.into_iter().flat_map(|old| old.hashes.keys().chain(old.fallback.keys()));
    Policies {
        version: VERSION,
        full: old.is_none(),
        policies: changed(desired.policies, old.map(|old| &old.hashes)),
        removed: before.filter(|uid| !stays(uid)).cloned().collect(),
        keep: desired.keep,
        fallback: changed(desired.fallback, old.map(|old| &old.fallback)),
    }
}

impl SentPolicies {
    /// Returns the ID of the event with these policies. Equal policies have equal IDs, whichever replica of
    /// the operator sends them.
    fn id(&self) -> String {
        let mut text = String::new();
        for (uid, hash) in &self.hashes {
            let _ = writeln!(text, "{uid} {hash}");
        }
        for uid in &self.keep {
            let _ = writeln!(text, "{uid} keep");
        }
        for (uid, hash) in &self.fallback {
            let _ = writeln!(text, "{uid} {hash} fallback");
        }
        PolicyHash::of(&text).to_string()
    }
}

/// Returns the event that ends a session whose report was refused.
pub(super) fn refused(reason: &str) -> Bytes {
    event(REFUSED_EVENT, None, &reason)
}

/// Encodes a server-sent event. JSON contains no line breaks, so one data line holds the message.
fn event<T: serde::Serialize>(name: &str, id: Option<&str>, message: &T) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    let data = serde_json::to_string(message).unwrap_or_default();
    Bytes::from(format!("event: {name}\n{id}data: {data}\n\n"))
}
