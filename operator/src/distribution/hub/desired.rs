//! The desired state of one pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluice_config::message::{PublishedPolicy, Replica, ResetOrder, ResetUid, TokenKeys};
use sluice_config::store_access::StoreChoices;
use sluice_crds::policy::Enforcer;
use tokio::time::Instant;

use super::Hub;
use crate::distribution::replicas::Places;

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
    #[must_use]
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
