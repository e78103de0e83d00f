//! Namespaces: whose pods get sidecars (labelled namespaces, and namespaces with a pod that is labelled for injection), and what their
//! LimitRanges allow. Every replica has the LimitRanges, because a review of a pod must not wait for the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher;
use sluice_crds::{INJECT_LABEL, INJECTION_LABEL};
use tokio::sync::{Notify, watch};

use crate::cluster::watch::{Change, NamespaceChange, follow};
use crate::injection::resources::Bounds;

/// The namespaces whose pods get sidecars.
#[derive(Clone, Default)]
pub struct Namespaces {
    /// Namespaces in which every pod gets a sidecar, and since when, if that is known.
    labelled: Arc<RwLock<BTreeMap<String, Option<Timestamp>>>>,
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
                    let labelled = label.is_some_and(|value| value == "enabled");
                    (object.name_any(), labelled.then(|| labelled_since(&object.metadata)))
                }
                Change::Deleted { name, .. } => {
                    self.with_labelled_pods.write().unwrap_or_else(PoisonError::into_inner).remove(&name);
                    (name, None)
                }
                Change::Listed => return on_change(NamespaceChange::Listed),
            };
            let mut set = self.labelled.write().unwrap_or_else(PoisonError::into_inner);
            let changed = match labelled {
                Some(since) => set.insert(name.clone(), since).is_none(),
                None => set.remove(&name).is_some(),
            };
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
        self.labelled.read().unwrap_or_else(PoisonError::into_inner).contains_key(namespace)
    }

    /// Returns since when every new pod of this namespace gets a sidecar, if it does and that is known.
    #[must_use]
    pub fn labelled_since(&self, namespace: &str) -> Option<Timestamp> {
        self.labelled.read().unwrap_or_else(PoisonError::into_inner).get(namespace).copied().flatten()
    }

    /// Returns all namespaces that may have sidecars.
    #[must_use]
    pub fn all(&self) -> BTreeSet<String> {
        let labelled = self.labelled.read().unwrap_or_else(PoisonError::into_inner);
        let mut all: BTreeSet<String> = labelled.keys().cloned().collect();
        all.extend(self.with_labelled_pods.read().unwrap_or_else(PoisonError::into_inner).iter().cloned());
        all
    }

    /// Waits for the next change of [`Namespaces::all`].
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Returns the last time at which somebody set the label of a namespace, from its managed fields.
fn labelled_since(metadata: &ObjectMeta) -> Option<Timestamp> {
    let label = format!("f:{INJECTION_LABEL}");
    let times = metadata.managed_fields.iter().flatten().filter_map(|entry| {
        let fields = &entry.fields_v1.as_ref()?.0;
        fields["f:metadata"]["f:labels"].get(&label)?;
        Some(entry.time.as_ref()?.0)
    });
    times.max()
}

/// The LimitRanges of all namespaces, and the bounds that they set.
#[derive(Clone, Default)]
pub struct LimitRanges(Arc<RangesByNamespace>);

#[derive(Default)]
struct RangesByNamespace {
    table: RwLock<BTreeMap<String, RangesOfNamespace>>,
    listed: watch::Sender<bool>,
    /// Namespaces whose bounds have changed and were not taken yet.
    changed: Mutex<BTreeSet<String>>,
    has_changed: Notify,
}

#[derive(Default)]
struct RangesOfNamespace {
    ranges: BTreeMap<String, LimitRange>,
    bounds: Arc<Bounds>,
}

impl LimitRanges {
    /// Keeps the table up to date.
    pub async fn watch(&self, client: kube::Client) {
        let api: Api<LimitRange> = Api::all(client);
        follow(watcher::watcher(api, watcher::Config::default()), |change| match change {
            Change::Applied(range) => {
                let (namespace, name) = (range.namespace().unwrap_or_default(), range.name_any());
                self.change(&namespace, |ranges| drop(ranges.insert(name, range)));
            }
            Change::Deleted { namespace, name, .. } => {
                self.change(&namespace, |ranges| drop(ranges.remove(&name)));
            }
            Change::Listed => drop(self.0.listed.send_replace(true)),
        })
        .await;
    }

    fn change(&self, namespace: &str, change: impl FnOnce(&mut BTreeMap<String, LimitRange>)) {
        let mut table = self.0.table.write().unwrap_or_else(PoisonError::into_inner);
        let of_namespace = table.entry(namespace.to_owned()).or_default();
        change(&mut of_namespace.ranges);
        let bounds = Bounds::of(of_namespace.ranges.values());
        let is_new = *of_namespace.bounds != bounds;
        if is_new {
            of_namespace.bounds = Arc::new(bounds);
        }
        if of_namespace.ranges.is_empty() {
            table.remove(namespace);
        }
        drop(table);
        if is_new {
            self.0.changed.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace.to_owned());
            self.0.has_changed.notify_one();
        }
    }

    /// Returns the bounds of a namespace.
    #[must_use]
    pub fn bounds(&self, namespace: &str) -> Arc<Bounds> {
        let table = self.0.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(namespace).map(|of_namespace| of_namespace.bounds.clone()).unwrap_or_default()
    }

    /// Waits until all LimitRanges have been read.
    pub async fn listed(&self) {
        let _ = self.0.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// Waits for changes, and returns the namespaces whose bounds have changed since the last call.
    pub async fn changed(&self) -> BTreeSet<String> {
        self.0.has_changed.notified().await;
        std::mem::take(&mut self.0.changed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_managed_fields_of_a_namespace_tell_since_when_it_has_the_label() {
        let entry = |manager: &str, time: &str, label: &str| {
            json!({
                "manager": manager, "operation": "Update", "time": time, "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:labels": {label: {}}}},
            })
        };
        let metadata = |entries: serde_json::Value| -> ObjectMeta {
            serde_json::from_value(json!({"name": "shop", "managedFields": entries})).unwrap()
        };
        let entries = json!([
            entry("kubectl-create", "2026-01-01T00:00:00Z", "f:team"),
            entry("kubectl-label", "2026-02-01T00:00:00Z", "f:sluice.dev/injection"),
            entry("helm", "2026-03-01T00:00:00Z", "f:team"),
        ]);
        assert_eq!(labelled_since(&metadata(entries)), Some("2026-02-01T00:00:00Z".parse().unwrap()));
        assert_eq!(labelled_since(&metadata(json!([]))), None);
    }
}
