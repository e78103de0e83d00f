//! The stores in the hub, and what sidecars report about them.

use std::collections::BTreeSet;
use std::time::Duration;

use sluice_config::message::StoreReport;
use sluice_config::policy::DEFAULT_STORE;
use sluice_crds::policy::Enforcer;
use sluice_store::redis::admin::ManagedUser;
use tokio::time::Instant;

use crate::distribution::hub::{ALL_NAMESPACES, DistributedPolicy, Hub, HubState};
use crate::distribution::session::Changed;
use crate::distribution::stores::{HubStores, SidecarReport};
use crate::names::StoreKey;

/// Longest time for which a policy is held back until its namespace can use the store. Afterwards, sidecars enforce it
/// by their local quota.
const MAX_HOLD: Duration = Duration::from_secs(5);

impl HubState {
    /// Returns the time until which a policy is held back because the servers of its store do not have its namespace's
    /// user yet.
    pub(super) fn store_held_until(&self, policy: &DistributedPolicy) -> Option<Instant> {
        let namespace = &policy.key.namespace;
        let until = policy.published_at + MAX_HOLD;
        let is_prepared = || {
            let by_service = policy.enforced_by.service && policy.store == DEFAULT_STORE;
            self.stores.source(namespace, &policy.store).of_namespace(namespace).is_some()
                && (!by_service || self.stores.default.of_service().is_some())
        };
        (Instant::now() < until && policy.published.is_some() && !is_prepared()).then_some(until)
    }
}

impl Hub {
    /// Returns the namespaces with policies that count in the store of the installation, if `store` is `None`, or in a
    /// store of a namespace.
    pub fn namespaces_of_store(&self, store: Option<&StoreKey>) -> BTreeSet<String> {
        let state = self.lock();
        let uses = |policy: &&DistributedPolicy| match store {
            // The store of an invalid policy is not known.
            None => policy.store == DEFAULT_STORE || policy.published.is_none(),
            Some(store) => {
                policy.key.namespace == store.namespace
                    && (policy.store == store.name || policy.published.is_none())
            }
        };
        let users: Vec<_> = state.policies.values().filter(uses).collect();
        let mut namespaces: BTreeSet<_> = users.iter().map(|policy| policy.key.namespace.clone()).collect();
        let by_service =
            |policy: &&DistributedPolicy| policy.enforced_by.service && policy.published.is_some();
        if store.is_none() && users.iter().any(by_service) {
            namespaces.insert(ManagedUser::ALL_NAMESPACES.to_owned());
        }
        namespaces
    }

    /// Sets the stores, with the access to them.
    pub fn set_stores(&self, stores: HubStores) {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.stores, stores);
        let changed = state.stores != before;
        for namespace in state.sessions.namespaces.keys().filter(|_| changed) {
            if namespace == ALL_NAMESPACES {
                state.wake(namespace, Changed::Policies, |_| true);
                continue;
            }
            let names: BTreeSet<_> = before.names(namespace).chain(state.stores.names(namespace)).collect();
            let of_namespace = || names.iter().map(|name| (namespace.as_str(), *name));
            let choices = |stores: &HubStores| stores.choices(Enforcer::Sidecar, of_namespace());
            if choices(&before) != choices(&state.stores) {
                state.wake(namespace, Changed::Policies, |_| true);
            }
        }
        drop(state);
        self.has_stores.set();
        if changed {
            self.changed();
        }
    }

    /// Returns the reports of all connected sidecars about the store of the installation, if `store` is `None`, or about
    /// a store of a namespace.
    pub fn store_reports(&self, store: Option<&StoreKey>) -> Vec<SidecarReport> {
        let state = self.lock();
        let sessions = state.sessions.values().filter(|session| session.counts());
        let reports = sessions.filter_map(|session| {
            let identity = &session.identity;
            let name = match (store, identity.enforcer) {
                (None, _) => DEFAULT_STORE.to_owned(),
                (Some(store), Enforcer::Service) => format!("{}/{}", store.namespace, store.name),
                (Some(store), Enforcer::Sidecar) if store.namespace == identity.namespace => {
                    store.name.clone()
                }
                (Some(_), Enforcer::Sidecar) => return None,
            };
            let report =
                session.reports.stores.get(&name).filter(|report| **report != StoreReport::Unknown)?;
            Some(SidecarReport {
                pod: format!("{}/{}", identity.namespace, identity.pod),
                report: report.clone(),
            })
        });
        reports.collect()
    }
}
