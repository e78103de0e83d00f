//! The stores that sidecars count in, and what a sidecar reports about one.

use std::collections::{BTreeMap, BTreeSet};

use sluice_config::KeySecret;
use sluice_config::message::StoreReport;
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::store_access::{StoreAccess, StoreChoice, StoreChoices};
use sluice_crds::policy::Enforcer;
use sluice_store::redis::admin::ManagedUser;

use crate::names::StoreKey;

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

    /// Returns the store for the service, which hashes the keys of each namespace with a secret of its own. `None` while the
    /// servers do not have the service's user.
    pub fn of_service(&self) -> Option<StoreChoice> {
        self.of_namespace(ManagedUser::ALL_NAMESPACES)
    }

    /// Returns the secret that the keys of a namespace are hashed with.
    fn key_secret(&self, namespace: &str) -> Option<KeySecret> {
        match self {
            Self::Unconfigured | Self::Memory => None,
            Self::Shared(access) => Some(access.key_secret.of_namespace(namespace)),
            Self::Managed(source) => Some(source.access.key_secret.of_namespace(namespace)),
        }
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

    /// Returns the stores of these namespaces and names, and the names of those that an enforcer keeps as it has them. A sidecar
    /// has one namespace.
    pub(super) fn choices<'a>(
        &self,
        enforcer: Enforcer,
        stores: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> (StoreChoices, Vec<String>) {
        let is_kept = |store: &(&str, &str)| self.unresolved.contains(&StoreKey::new(store.0, store.1));
        let (kept, known): (Vec<_>, Vec<_>) = stores.into_iter().partition(is_kept);
        let namespaces = (enforcer == Enforcer::Service).then(BTreeMap::new);
        let mut choices = StoreChoices { stores: BTreeMap::new(), namespaces };
        let name_of = |(namespace, name): (&str, &str)| match enforcer {
            Enforcer::Service if name != DEFAULT_STORE => format!("{namespace}/{name}"),
            Enforcer::Sidecar | Enforcer::Service => name.to_owned(),
        };
        for (namespace, name) in known {
            let choice = match enforcer {
                Enforcer::Service if name == DEFAULT_STORE => self.default.of_service(),
                Enforcer::Sidecar | Enforcer::Service => self.source(namespace, name).of_namespace(namespace),
            };
            choices.stores.insert(name_of((namespace, name)), choice.unwrap_or_default());
            if enforcer == Enforcer::Service && name == DEFAULT_STORE {
                let secrets = choices.namespaces.get_or_insert_default();
                secrets
                    .extend(self.default.key_secret(namespace).map(|secret| (namespace.to_owned(), secret)));
            }
        }
        (choices, kept.into_iter().map(name_of).collect())
    }

    /// Returns the names of all stores, as the service names them.
    pub(super) fn all_names(&self) -> impl Iterator<Item = String> {
        let named =
            self.named.keys().chain(&self.unresolved).map(|key| format!("{}/{}", key.namespace, key.name));
        std::iter::once(DEFAULT_STORE.to_owned()).chain(named)
    }

    /// Returns the names of all stores that policies of a namespace can refer to.
    pub(super) fn names<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a str> {
        let named = self.named.keys().chain(&self.unresolved).filter(move |key| key.namespace == namespace);
        std::iter::once(DEFAULT_STORE).chain(named.map(|key| key.name.as_str()))
    }
}
