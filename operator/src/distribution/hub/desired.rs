//! The desired state of one pod.

use std::collections::{BTreeMap, BTreeSet};

use sluice_config::message::{Policies, Replica, VERSION};
use sluice_config::store_access::StoreChoice;
use tokio::time::Instant;

use super::Hub;

/// The desired state of one pod, taken from the hub at one moment.
pub struct Desired {
    /// Whether some policy selects the pod.
    pub is_selected: bool,
    /// The store, if policies were requested and some select the pod: others have nothing to do with it.
    pub store: Option<StoreChoice>,
    /// Replica index and count of the pod for each of its policies, by UID, where they are known.
    pub replicas: BTreeMap<String, Replica>,
    /// All policies of the pod, if requested.
    pub policies: Option<Policies>,
    /// UIDs of policies that are held back until their replicas are known. The pod keeps its version of them.
    pub held: BTreeSet<String>,
    /// Time at which the first hold ends.
    pub held_until: Option<Instant>,
}

impl Hub {
    /// Returns the desired state of a pod, or `None` if the pod has no session.
    #[must_use]
    pub fn desired(&self, pod_uid: &str, with_policies: bool) -> Option<Desired> {
        let state = self.lock();
        let session = state.sessions.get(pod_uid)?;
        let mut desired = Desired {
            is_selected: false,
            store: None,
            replicas: BTreeMap::new(),
            policies: with_policies.then(|| Policies {
                version: VERSION,
                full: true,
                policies: BTreeMap::new(),
                removed: Vec::new(),
                keep: Vec::new(),
            }),
            held: BTreeSet::new(),
            held_until: None,
        };
        for (uid, policy) in state.policies.iter().filter(|(_, policy)| policy.selects(&session.identity)) {
            desired.is_selected = true;
            if let Some(replica) = policy.replicas.replica(pod_uid) {
                desired.replicas.insert(uid.clone(), replica);
            }
            if let Some(until) = policy.replicas.held_until() {
                desired.held.insert(uid.clone());
                desired.held_until = Some(desired.held_until.map_or(until, |first| first.min(until)));
                continue;
            }
            let Some(policies) = &mut desired.policies else { continue };
            match &policy.published {
                // After an invalid edit, new sessions receive the last valid one too.
                Some(published) => {
                    policies.policies.insert(uid.clone(), published.under(state.mode).clone());
                }
                None => policies.keep.push(uid.clone()),
            }
        }
        if with_policies && desired.is_selected {
            let namespace = &session.identity.namespace;
            desired.store = state.store.as_ref().map(|store| store.of_namespace(namespace));
        }
        Some(desired)
    }
}
