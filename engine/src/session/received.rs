//! Everything received from the operator so far: policies, access to the store, and replica counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_config::Nack;
use sluice_config::message::{
    Credentials, LiveReplicas, Policies, PolicyReport, PolicyUid, PublishedPolicy, TokenKeys, VERSION,
};
use sluice_config::policy::BlobHash;
use sluice_config::prepared::Blobs;
use sluice_config::prepared::exceptions::references_of;
use sluice_config::store_access::StoreChoices;

use crate::publish::fit::{IdentifiedPolicy, MAX_OVERRIDES};
use crate::publish::publisher::Publisher;
use crate::session::versions::PolicyVersions;

/// Everything that was received. The policies become active with the first credentials.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// `None` before the first message about policies.
    policies: Option<PolicyVersions>,
    /// Content that the policies refer to.
    blobs: Blobs,
    credentials: Option<Credentials>,
    replicas: Option<LiveReplicas>,
}

impl Received {
    /// Records policies, until [`Self::apply`] activates them.
    pub(crate) fn policies(&mut self, message: Policies) {
        self.policies.get_or_insert_default().receive(message, &self.blobs);
    }

    /// Returns the hashes of the content that a message refers to and that was not received.
    pub(crate) fn missing_blobs(&self, message: &Policies) -> BTreeSet<BlobHash> {
        let policies = message.policies.values().chain(message.fallback.values());
        let references = policies.flat_map(|policy| references_of(policy.policy.get()));
        references.filter(|hash| !self.blobs.contains(hash)).collect()
    }

    /// Returns how much content there is still room for, in bytes. There is room for all tables that a namespace may have, before
    /// and after a change, and so for each.
    pub(crate) fn room(&self) -> usize {
        let namespaces = self.policies.as_ref().map_or(1, |policies| policies.namespaces().max(1));
        (3 * MAX_OVERRIDES * namespaces).saturating_sub(self.blobs.size())
    }

    /// Records that there is no room for content.
    pub(crate) fn refuse_blob(&mut self, hash: BlobHash) {
        let nack = format!(
            "the overrides of this pod's policies have more than {} MiB together, at about 21 bytes each: use fewer",
            MAX_OVERRIDES >> 20
        );
        self.blobs.refuse(hash, Nack(nack));
    }

    /// Splits a message about policies into those that can be applied now, and those that wait for content.
    pub(crate) fn split(&self, message: Policies) -> (Policies, Policies) {
        let is_ready = |policy: &PublishedPolicy| {
            references_of(policy.policy.get()).iter().all(|hash| self.blobs.contains(hash))
        };
        let Policies { version, full, policies, removed, mut keep, fallback } = message;
        let (ready, waiting): (BTreeMap<_, _>, BTreeMap<_, _>) =
            policies.into_iter().partition(|(_, policy)| is_ready(policy));
        keep.extend(waiting.keys().chain(fallback.keys()).cloned());
        let later = Policies {
            version,
            full: false,
            policies: waiting,
            removed: Vec::new(),
            keep: Vec::new(),
            fallback,
        };
        (Policies { version, full, policies: ready, removed, keep, fallback: BTreeMap::new() }, later)
    }

    /// Records content. It must precede the policies that refer to it.
    pub(crate) fn blob(&mut self, bytes: Arc<[u8]>) {
        self.blobs.insert(bytes);
    }

    /// Records access to the store, until [`Self::apply`] uses it.
    pub(crate) fn credentials(&mut self, mut credentials: Credentials) {
        let before = self.credentials.take().map(|before| before.stores.stores).unwrap_or_default();
        for (name, choice) in before.into_iter().filter(|(name, _)| credentials.keep.contains(name)) {
            credentials.stores.stores.entry(name).or_insert(choice);
        }
        credentials.keep.clear();
        self.credentials = Some(credentials);
    }

    /// Records that credentials cannot be parsed. The previous ones stay; without any, there is no store.
    pub(crate) fn malformed_credentials(&mut self) {
        let (stores, keep) = (StoreChoices::default(), Vec::new());
        self.credentials.get_or_insert(Credentials { version: VERSION, stores, keep, token_keys: None });
    }

    /// Records replica counts and publishes them immediately. A policy that the message does not name keeps
    /// its count.
    pub(crate) fn replicas(&mut self, mut message: LiveReplicas, publisher: &Publisher) {
        let is_received = |uid: &PolicyUid| self.policies.as_ref().is_some_and(|all| all.contains(uid));
        for (uid, replica) in self.replicas.take().into_iter().flat_map(|before| before.policies) {
            if is_received(&uid) {
                message.policies.entry(uid).or_insert(replica);
            }
        }
        publisher.set_replicas(&message.policies);
        self.replicas = Some(message);
    }

    /// Publishes the policies that fit together, with their store. Returns `false` while policies or
    /// credentials are missing.
    pub(crate) fn apply(&mut self, publisher: &Publisher) -> bool {
        let (Some(policies), Some(credentials)) = (&mut self.policies, &self.credentials) else {
            return false;
        };
        policies.activate(check_fit);
        self.blobs.retain(|hash| policies.refer_to(hash));
        publisher.publish(&credentials.stores, &policies.active());
        true
    }

    /// Returns the keys that tokens of callers are verified with.
    pub(crate) fn token_keys(&self) -> Option<&TokenKeys> {
        self.credentials.as_ref()?.token_keys.as_ref()
    }

    /// Reports whether content is in use.
    pub(crate) fn has_blob(&self, hash: &BlobHash) -> bool {
        self.blobs.contains(hash)
    }

    /// Returns the result for each policy.
    pub(crate) fn report(&self) -> BTreeMap<PolicyUid, PolicyReport> {
        self.policies.as_ref().map(PolicyVersions::report).unwrap_or_default()
    }

    /// Returns the active configuration as messages that would lead to it. `None` before it is complete.
    pub(crate) fn last_good(&self) -> Option<(Policies, Credentials, Option<&LiveReplicas>)> {
        let policies = Policies {
            version: VERSION,
            full: true,
            policies: self.policies.as_ref()?.published(),
            removed: Vec::new(),
            keep: Vec::new(),
            fallback: BTreeMap::new(),
        };
        Some((policies, self.credentials.clone()?, self.replicas.as_ref()))
    }
}

/// Returns why the last of these policies does not fit beside the others.
fn check_fit(policies: &[IdentifiedPolicy]) -> Result<(), Nack> {
    match Publisher::misfits(policies).pop() {
        None => Ok(()),
        Some((_, nack)) => Err(nack),
    }
}
