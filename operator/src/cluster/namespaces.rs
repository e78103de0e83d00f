//! Namespaces: whose pods get sidecars (labelled namespaces, and namespaces with a pod that is labelled for injection), and what their
//! LimitRanges allow. Every replica has the LimitRanges, because a review of a pod must not wait for the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, RwLock};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{LimitRange, Namespace, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher;
use sluice_crds::{INJECT_LABEL, INJECTION_LABEL};
use tokio::sync::Notify;

use crate::cluster::watch::{Change, follow, key_of};
use crate::injection::resources::Bounds;
use crate::locks::{Latch, lock, read, write};
use crate::names::ObjectKey;

/// The namespaces whose pods get sidecars.
#[derive(Default)]
pub struct Namespaces {
    table: RwLock<Labelled>,
    /// Notified when there are other [`Namespaces::all`].
    pub changed: Notify,
    /// Whether the first list is complete.
    pub listed: Latch,
}

#[derive(Default)]
struct Labelled {
    /// Namespaces in which every pod gets a sidecar, and since when, if that is known.
    namespaces: BTreeMap<String, Option<Timestamp>>,
    /// Namespaces with a pod that is labelled for injection.
    with_pods: BTreeSet<String>,
}

impl Namespaces {
    /// Watches the metadata of all namespaces and passes on the name of each namespace whose label changes.
    pub async fn watch(&self, client: kube::Client, mut on_change: impl FnMut(&str) + Send) {
        let api: Api<PartialObjectMeta<Namespace>> = Api::all(client);
        follow(watcher::watcher(api, watcher::Config::default()), |change| {
            let (name, labelled) = match change {
                Change::Applied(object) => {
                    let labelled =
                        object.labels().get(INJECTION_LABEL).is_some_and(|value| value == "enabled");
                    (object.name_any(), labelled.then(|| labelled_since(&object.metadata)))
                }
                Change::Deleted { key, .. } => {
                    write(&self.table).with_pods.remove(&key.name);
                    (key.name, None)
                }
                Change::Listed => return self.listed.set(),
            };
            let changed = match labelled {
                Some(since) => write(&self.table).namespaces.insert(name.clone(), since).is_none(),
                None => write(&self.table).namespaces.remove(&name).is_some(),
            };
            if changed {
                self.changed.notify_one();
                on_change(&name);
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
            if let Change::Applied(pod) = change
                && write(&self.table).with_pods.insert(pod.namespace().unwrap_or_default())
            {
                self.changed.notify_one();
            }
        })
        .await;
    }

    /// Reports whether every new pod of this namespace gets a sidecar.
    pub fn is_labelled(&self, namespace: &str) -> bool {
        read(&self.table).namespaces.contains_key(namespace)
    }

    /// Returns since when every new pod of this namespace gets a sidecar, if it does and that is known.
    pub fn labelled_since(&self, namespace: &str) -> Option<Timestamp> {
        read(&self.table).namespaces.get(namespace).copied().flatten()
    }

    /// Returns all namespaces that may have sidecars.
    pub fn all(&self) -> BTreeSet<String> {
        let table = read(&self.table);
        table.namespaces.keys().chain(&table.with_pods).cloned().collect()
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
    listed: Latch,
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
            Change::Applied(range) => self.set(key_of(&range), Some(range)),
            Change::Deleted { key, .. } => self.set(key, None),
            Change::Listed => self.0.listed.set(),
        })
        .await;
    }

    fn set(&self, ObjectKey { namespace, name }: ObjectKey, range: Option<LimitRange>) {
        let mut table = write(&self.0.table);
        let of_namespace = table.entry(namespace.clone()).or_default();
        match range {
            Some(range) => of_namespace.ranges.insert(name, range),
            None => of_namespace.ranges.remove(&name),
        };
        let bounds = Bounds::of(of_namespace.ranges.values());
        let is_new = *of_namespace.bounds != bounds;
        if is_new {
            of_namespace.bounds = Arc::new(bounds);
        }
        if of_namespace.ranges.is_empty() {
            table.remove(&namespace);
        }
        drop(table);
        if is_new {
            lock(&self.0.changed).insert(namespace);
            self.0.has_changed.notify_one();
        }
    }

    /// Returns the bounds of a namespace.
    pub fn bounds(&self, namespace: &str) -> Arc<Bounds> {
        read(&self.0.table).get(namespace).map(|of_namespace| of_namespace.bounds.clone()).unwrap_or_default()
    }

    /// Waits until all LimitRanges have been read.
    pub async fn listed(&self) {
        self.0.listed.wait().await;
    }

    /// Waits for changes, and returns the namespaces whose bounds have changed since the last call.
    pub async fn changed(&self) -> BTreeSet<String> {
        self.0.has_changed.notified().await;
        std::mem::take(&mut *lock(&self.0.changed))
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
