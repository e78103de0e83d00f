//! The LimitRanges of all namespaces. Every replica has them, because a review of a pod must not wait for the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use k8s_openapi::api::core::v1::LimitRange;
use kube::ResourceExt as _;
use kube::api::Api;
use kube::runtime::watcher;
use tokio::sync::{Notify, watch};

use crate::cluster::watch::{Change, follow};
use crate::injection::bounds::Bounds;

/// The LimitRanges of all namespaces, and the bounds that they set.
#[derive(Clone, Default)]
pub struct LimitRanges(Arc<Inner>);

#[derive(Default)]
struct Inner {
    table: RwLock<BTreeMap<String, OfNamespace>>,
    listed: watch::Sender<bool>,
    /// Namespaces whose bounds have changed and were not taken yet.
    changed: Mutex<BTreeSet<String>>,
    has_changed: Notify,
}

#[derive(Default)]
struct OfNamespace {
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
