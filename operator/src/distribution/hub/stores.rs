//! The stores in the hub, and what sidecars report about them.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_config::message::StoreReport;
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use tokio::sync::Notify;

use super::Hub;
use crate::object_key::StoreKey;

/// The stores that sidecars count in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HubStores {
    /// The store of the installation.
    pub default: StoreChoice,
    /// The stores of namespaces.
    pub named: BTreeMap<StoreKey, StoreChoice>,
}

/// What one sidecar reports about a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarReport {
    /// Namespace and name of the pod.
    pub pod: String,
    /// Its report.
    pub report: StoreReport,
}

impl HubStores {
    /// Returns the stores of a namespace that have these names.
    pub(super) fn choices<'a>(
        &self,
        namespace: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> StoreChoices {
        let choice = |name: &str| match name {
            DEFAULT_STORE => self.default.of_namespace(namespace),
            _ => self
                .named
                .get(&StoreKey::new(namespace, name))
                .map_or(StoreChoice::Unconfigured, |store| store.of_namespace(namespace)),
        };
        StoreChoices(names.into_iter().map(|name| (name.to_owned(), choice(name))).collect())
    }

    /// Returns the names of all stores that policies of a namespace can refer to.
    pub(super) fn names<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a str> {
        let named = self.named.keys().filter(move |key| key.namespace == namespace);
        std::iter::once(DEFAULT_STORE).chain(named.map(|key| key.name.as_str()))
    }
}

impl Hub {
    /// Sets the stores, with the access to them.
    pub fn set_stores(&self, stores: HubStores) {
        let mut state = self.lock();
        let changed = state.stores != stores;
        state.stores = stores;
        drop(state);
        self.readiness.send_if_modified(|readiness| !std::mem::replace(&mut readiness.stores, true));
        if changed {
            self.changed();
        }
    }

    /// Reports whether the stores are known.
    #[must_use]
    pub fn has_stores(&self) -> bool {
        self.readiness.borrow().stores
    }

    /// Returns what is notified when reports about stores may have changed.
    #[must_use]
    pub fn store_reports_changed(&self) -> Arc<Notify> {
        self.store_reports.clone()
    }

    /// Returns the reports of all connected sidecars about the store of the installation, if `store` is `None`, or about
    /// a store of a namespace.
    #[must_use]
    pub fn store_reports(&self, store: Option<&StoreKey>) -> Vec<SidecarReport> {
        let state = self.lock();
        let sessions = state.sessions.values().filter(|session| session.counts());
        let reports = sessions.filter_map(|session| {
            let identity = &session.identity;
            let name = match store {
                None => DEFAULT_STORE,
                Some(store) if store.namespace == identity.namespace => &store.name,
                Some(_) => return None,
            };
            let report = session.stores.get(name).filter(|report| **report != StoreReport::Unknown)?;
            Some(SidecarReport {
                pod: format!("{}/{}", identity.namespace, identity.pod),
                report: report.clone(),
            })
        });
        reports.collect()
    }
}
