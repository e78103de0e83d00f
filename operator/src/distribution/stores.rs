//! The stores that sidecars count in, and what a sidecar reports about one.

use std::collections::BTreeMap;

use sluice_config::message::StoreReport;
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::store_access::{StoreChoice, StoreChoices};

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
