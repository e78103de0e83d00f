//! The table of running pods. A watch of their metadata fills it. The containers and the addresses of a single
//! pod are fetched when they are needed. The containers are kept while the pod lives, and the addresses until
//! the pod changes.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt as _;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher;

use crate::cluster::pod::{Pod, PodFacts, read_addresses};
use crate::cluster::watch::{Change, follow};

/// All running pods.
#[derive(Clone)]
pub struct Pods {
    client: kube::Client,
    table: Arc<RwLock<Table>>,
}

#[derive(Default)]
struct Table {
    /// Pods by namespace and UID.
    by_namespace: BTreeMap<String, BTreeMap<String, Arc<Pod>>>,
    /// Facts by the UID of the pod.
    facts: HashMap<String, Arc<PodFacts>>,
    /// Addresses by the UID of the pod.
    addresses: HashMap<String, Arc<[IpAddr]>>,
}

impl Pods {
    /// Returns an empty table.
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        Self { client, table: Arc::default() }
    }

    /// Keeps the table up to date and passes on every change.
    pub async fn watch(&self, mut on_change: impl FnMut(Change<Arc<Pod>>) + Send) {
        let api: Api<PartialObjectMeta<core::Pod>> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields("status.phase=Running");
        follow(watcher::watcher(api, config), |change| {
            on_change(match change {
                Change::Applied(object) => {
                    let pod = Arc::new(Pod::read(&object));
                    self.insert(pod.clone());
                    Change::Applied(pod)
                }
                Change::Deleted { namespace, name, uid } => {
                    self.remove(&namespace, &uid);
                    Change::Deleted { namespace, name, uid }
                }
                Change::Listed => Change::Listed,
            });
        })
        .await;
    }

    pub(crate) fn insert(&self, pod: Arc<Pod>) {
        let mut table = self.write();
        table.addresses.remove(&pod.uid);
        table.by_namespace.entry(pod.namespace.clone()).or_default().insert(pod.uid.clone(), pod);
    }

    fn remove(&self, namespace: &str, uid: &str) {
        let mut table = self.write();
        if let Some(pods) = table.by_namespace.get_mut(namespace) {
            pods.remove(uid);
            if pods.is_empty() {
                table.by_namespace.remove(namespace);
            }
        }
        table.facts.remove(uid);
        table.addresses.remove(uid);
    }

    /// Returns the running pods of a namespace that satisfy `wanted`, ordered by name.
    #[must_use]
    pub fn select(&self, namespace: &str, wanted: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        let table = self.read();
        let mut pods: Vec<_> = table
            .by_namespace
            .get(namespace)
            .into_iter()
            .flat_map(BTreeMap::values)
            .filter(|pod| wanted(pod))
            .cloned()
            .collect();
        pods.sort_by(|a, b| a.name.cmp(&b.name));
        pods
    }

    /// Returns the facts about a pod's containers, or `None` if the pod no longer exists. The first call for
    /// a pod sends a request to the API server.
    pub async fn facts(&self, pod: &Arc<Pod>) -> kube::Result<Option<Arc<PodFacts>>> {
        if let Some(facts) = self.read().facts.get(&pod.uid) {
            return Ok(Some(facts.clone()));
        }
        Ok(self.fetch(pod).await?.map(|(facts, _)| facts))
    }

    /// Returns a pod's addresses, which are empty if the pod no longer exists. The first call after a change of
    /// the pod sends a request to the API server.
    pub async fn addresses(&self, pod: &Arc<Pod>) -> kube::Result<Arc<[IpAddr]>> {
        if let Some(addresses) = self.read().addresses.get(&pod.uid) {
            return Ok(addresses.clone());
        }
        Ok(self.fetch(pod).await?.map(|(_, addresses)| addresses).unwrap_or_default())
    }

    /// Fetches a pod and keeps what does not change without an event of the watch.
    async fn fetch(&self, pod: &Arc<Pod>) -> kube::Result<Option<(Arc<PodFacts>, Arc<[IpAddr]>)>> {
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let Some(object) = api.get_opt(&pod.name).await? else { return Ok(None) };
        if object.uid().as_deref() != Some(&pod.uid) {
            return Ok(None);
        }
        let facts = Arc::new(PodFacts::read(&object));
        let addresses: Arc<[IpAddr]> = read_addresses(&object).into();
        let mut table = self.write();
        let current = table.by_namespace.get(&pod.namespace).and_then(|pods| pods.get(&pod.uid)).cloned();
        if let Some(current) = current {
            table.facts.insert(pod.uid.clone(), facts.clone());
            // A change that the watch has reported meanwhile may be newer than the response.
            if Arc::ptr_eq(&current, pod) {
                table.addresses.insert(pod.uid.clone(), addresses.clone());
            }
        }
        Ok(Some((facts, addresses)))
    }

    // The table is consistent even if a holder of the lock panicked: each change is a single statement.
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}
