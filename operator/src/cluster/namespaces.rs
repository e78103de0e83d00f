//! Namespaces with sidecars: those with the label, and those with a pod that asks for one itself.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher;
use sluice_crds::{INJECT_LABEL, INJECTION_LABEL};
use tokio::sync::Notify;

use crate::cluster::follow::{Change, follow};

/// Which namespaces get sidecars.
#[derive(Clone, Default)]
pub struct Namespaces {
    labelled: Arc<RwLock<BTreeSet<String>>>,
    asked: Arc<RwLock<BTreeSet<String>>>,
    changed: Arc<Notify>,
}

impl Namespaces {
    /// Follows the watch of all namespaces' metadata; says the name of each whose label has changed, and nothing when
    /// all have been listed.
    pub async fn watch(&self, client: kube::Client, mut changed: impl FnMut(Option<&str>) + Send) {
        let api: Api<PartialObjectMeta<Namespace>> = Api::all(client);
        follow(watcher::watcher(api, watcher::Config::default()), |change| {
            let (name, labelled) = match change {
                Change::Applied(object) => (
                    object.name_any(),
                    object.labels().get(INJECTION_LABEL).is_some_and(|value| value == "enabled"),
                ),
                Change::Gone { name, .. } => {
                    self.asked.write().unwrap_or_else(PoisonError::into_inner).remove(&name);
                    (name, false)
                }
                Change::Synced => return changed(None),
            };
            let mut set = self.labelled.write().unwrap_or_else(PoisonError::into_inner);
            let other = if labelled { set.insert(name.clone()) } else { set.remove(&name) };
            drop(set);
            if other {
                self.changed.notify_one();
                changed(Some(&name));
            }
        })
        .await;
    }

    /// Follows the watch of pods that ask for a sidecar themselves. Their phase does not matter: the first of a
    /// namespace waits for its authority before it runs.
    pub async fn watch_pods(&self, client: kube::Client) {
        let api: Api<PartialObjectMeta<Pod>> = Api::all(client);
        let config = watcher::Config::default().labels(&format!("{INJECT_LABEL}=true"));
        follow(watcher::watcher(api, config), |change| {
            if let Change::Applied(pod) = change {
                self.asked(&pod.namespace().unwrap_or_default());
            }
        })
        .await;
    }

    fn asked(&self, namespace: &str) {
        if self.asked.read().unwrap_or_else(PoisonError::into_inner).contains(namespace) {
            return;
        }
        self.asked.write().unwrap_or_else(PoisonError::into_inner).insert(namespace.to_owned());
        self.changed.notify_one();
    }

    /// Whether every pod of this namespace gets one.
    #[must_use]
    pub fn is_labelled(&self, namespace: &str) -> bool {
        self.labelled.read().unwrap_or_else(PoisonError::into_inner).contains(namespace)
    }

    /// All namespaces that may have sidecars.
    #[must_use]
    pub fn all(&self) -> BTreeSet<String> {
        let mut all = self.labelled.read().unwrap_or_else(PoisonError::into_inner).clone();
        all.extend(self.asked.read().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        all
    }

    /// Waits for the next change of [`Namespaces::all`].
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
