//! Namespaces whose pods get sidecars: labelled namespaces, and namespaces with a pod that is labelled for
//! injection.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher;
use sluice_crds::{INJECT_LABEL, INJECTION_LABEL};
use tokio::sync::Notify;

use crate::cluster::watch::{Change, NamespaceChange, follow};

/// The namespaces whose pods get sidecars.
#[derive(Clone, Default)]
pub struct Namespaces {
    /// Namespaces in which every pod gets a sidecar.
    labelled: Arc<RwLock<BTreeSet<String>>>,
    /// Namespaces with a pod that is labelled for injection.
    with_labelled_pods: Arc<RwLock<BTreeSet<String>>>,
    changed: Arc<Notify>,
}

impl Namespaces {
    /// Watches the metadata of all namespaces and passes on the name of each namespace whose label changes.
    pub async fn watch(&self, client: kube::Client, mut on_change: impl FnMut(NamespaceChange<'_>) + Send) {
        let api: Api<PartialObjectMeta<Namespace>> = Api::all(client);
        follow(watcher::watcher(api, watcher::Config::default()), |change| {
            let (name, labelled) = match change {
                Change::Applied(object) => {
                    let label = object.labels().get(INJECTION_LABEL);
                    (object.name_any(), label.is_some_and(|value| value == "enabled"))
                }
                Change::Deleted { name, .. } => {
                    self.with_labelled_pods.write().unwrap_or_else(PoisonError::into_inner).remove(&name);
                    (name, false)
                }
                Change::Listed => return on_change(NamespaceChange::Listed),
            };
            let mut set = self.labelled.write().unwrap_or_else(PoisonError::into_inner);
            let changed = if labelled { set.insert(name.clone()) } else { set.remove(&name) };
            drop(set);
            if changed {
                self.changed.notify_one();
                on_change(NamespaceChange::Changed(&name));
            }
        })
        .await;
    }

    /// Watches pods that are labelled for injection, in any phase: the first such pod of a namespace cannot
    /// run before the namespace has the ConfigMap with the operator's authority.
    pub async fn watch_pods(&self, client: kube::Client) {
        let api: Api<PartialObjectMeta<Pod>> = Api::all(client);
        let config = watcher::Config::default().labels(&format!("{INJECT_LABEL}=true"));
        follow(watcher::watcher(api, config), |change| {
            if let Change::Applied(pod) = change {
                self.add_with_labelled_pod(&pod.namespace().unwrap_or_default());
            }
        })
        .await;
    }

    fn add_with_labelled_pod(&self, namespace: &str) {
        if self.with_labelled_pods.read().unwrap_or_else(PoisonError::into_inner).contains(namespace) {
            return;
        }
        let mut set = self.with_labelled_pods.write().unwrap_or_else(PoisonError::into_inner);
        set.insert(namespace.to_owned());
        drop(set);
        self.changed.notify_one();
    }

    /// Reports whether every new pod of this namespace gets a sidecar.
    #[must_use]
    pub fn is_labelled(&self, namespace: &str) -> bool {
        self.labelled.read().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }

    /// Returns all namespaces that may have sidecars.
    #[must_use]
    pub fn all(&self) -> BTreeSet<String> {
        let mut all = self.labelled.read().unwrap_or_else(PoisonError::into_inner).clone();
        all.extend(self.with_labelled_pods.read().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        all
    }

    /// Waits for the next change of [`Namespaces::all`].
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
