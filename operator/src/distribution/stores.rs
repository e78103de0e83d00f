//! The stores that sidecars count in, and what a sidecar reports about one.

use std::collections::{BTreeMap, BTreeSet};

use sluice_config::message::StoreReport;
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::store_access::{StoreAccess, StoreChoice, StoreChoices};
use sluice_store::redis::admin::ManagedUser;

use crate::object_key::StoreKey;

/// The stores that sidecars count in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HubStores {
    /// The store of the installation.
    pub default: StoreSource,
    /// The stores of namespaces.
    pub named: BTreeMap<StoreKey, StoreSource>,
    /// Stores of namespaces that exist and that this replica has never been able to resolve. Sidecars keep what they have
    /// from another one.
    pub unresolved: BTreeSet<StoreKey>,
}

/// A store, and what each namespace receives of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum StoreSource {
    /// None.
    #[default]
    Unconfigured,
    /// In the memory of each sidecar.
    Memory,
    /// All namespaces have the same credentials.
    Shared(Box<StoreAccess>),
    /// Each namespace has a user of its own.
    Managed(Box<ManagedSource>),
}

/// A store with a user for each namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedSource {
    /// The store, with the credentials of its administrator.
    pub access: StoreAccess,
    /// The users that all servers have, by namespace.
    pub users: BTreeMap<String, ManagedUser>,
}

impl StoreSource {
    /// Returns the store for the sidecars of a namespace, which hash keys with a secret of their own. `None` while the
    /// servers do not have the namespace's user.
    #[must_use]
    pub fn of_namespace(&self, namespace: &str) -> Option<StoreChoice> {
        let (redis, access) = match self {
            Self::Unconfigured => return Some(StoreChoice::Unconfigured),
            Self::Memory => return Some(StoreChoice::Memory),
            Self::Shared(access) => (access.redis.clone(), &**access),
            Self::Managed(source) => {
                let user = source.users.get(namespace)?;
                (user.options(&source.access.redis), &source.access)
            }
        };
        let key_secret = access.key_secret.of_namespace(namespace);
        Some(StoreChoice::Access(Box::new(StoreAccess { redis, key_secret })))
    }
}

/// Report of one sidecar about a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SidecarReport {
    /// Namespace and name of the pod.
    pub pod: String,
    /// Its report.
    pub report: StoreReport,
}

impl HubStores {
    /// Returns a store of a namespace by the name that its policies use.
    pub(super) fn source(&self, namespace: &str, name: &str) -> &StoreSource {
        match name {
            DEFAULT_STORE => &self.default,
            _ => self.named.get(&StoreKey::new(namespace, name)).unwrap_or(&StoreSource::Unconfigured),
        }
    }

    /// Returns the stores of a namespace that have these names, and the names of those that a sidecar keeps as it has them.
    pub(super) fn choices<'a>(
        &self,
        namespace: &str,
        names: impl IntoIterator<Item = &'a str>,
    ) -> (StoreChoices, Vec<String>) {
        let is_kept = |name: &&str| self.unresolved.contains(&StoreKey::new(namespace, *name));
        let (kept, known): (Vec<&str>, Vec<&str>) = names.into_iter().partition(is_kept);
        let choice = |name: &str| {
            let choice = self.source(namespace, name).of_namespace(namespace);
            (name.to_owned(), choice.unwrap_or_default())
        };
        let known = StoreChoices(known.into_iter().map(choice).collect());
        (known, kept.into_iter().map(str::to_owned).collect())
    }

    /// Returns the names of all stores that policies of a namespace can refer to.
    pub(super) fn names<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a str> {
        let named = self.named.keys().chain(&self.unresolved).filter(move |key| key.namespace == namespace);
        std::iter::once(DEFAULT_STORE).chain(named.map(|key| key.name.as_str()))
    }
}
