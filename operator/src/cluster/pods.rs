//! The table of running pods. A watch of their metadata fills it. The containers and the addresses of a single pod are fetched when they
//! are needed. The containers are kept while the pod lives, and the addresses until the pod changes. Those who need the same pod at a time,
//! such as all policies that select it, wait for one request. What a pod without a sidecar would get depends on the bounds of its namespace
//! too, and is found out again when they change.

pub mod pod;

use std::array;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt as _;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::cluster::limit_ranges::LimitRanges;
use crate::cluster::pods::pod::{Pod, PodFacts, read_addresses};
use crate::cluster::watch::{Change, follow};
use crate::injection::bounds::Bounds;
use crate::injection::config::InjectConfig;

#[cfg(test)]
mod tests;

/// Number of groups of pods. One pod of a group is read at a time.
const READING_GROUPS: usize = 256;

/// All running pods.
#[derive(Clone)]
pub struct Pods {
    client: kube::Client,
    config: Arc<InjectConfig>,
    limit_ranges: LimitRanges,
    table: Arc<RwLock<Table>>,
    /// The right to read a pod, for each group.
    reading: Arc<[Semaphore; READING_GROUPS]>,
}

#[derive(Default)]
struct Table {
    /// Pods by namespace and UID.
    by_namespace: BTreeMap<String, BTreeMap<String, Arc<Pod>>>,
    /// Facts by the UID of the pod.
    facts: HashMap<String, Known>,
    /// Addresses by the UID of the pod.
    addresses: HashMap<String, Arc<[IpAddr]>>,
}

/// The facts about a pod.
struct Known {
    facts: Arc<PodFacts>,
    /// A pod without a sidecar, and the bounds with which it was looked at.
    bare: Option<(Arc<core::Pod>, Arc<Bounds>)>,
}

impl Pods {
    /// Returns an empty table.
    #[must_use]
    pub fn new(client: kube::Client, config: Arc<InjectConfig>, limit_ranges: LimitRanges) -> Self {
        let reading = Arc::new(array::from_fn(|_| Semaphore::new(1)));
        Self { client, config, limit_ranges, table: Arc::default(), reading }
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
        // What a pod without a sidecar would get depends on its labels too.
        let before = table.by_namespace.get(&pod.namespace).and_then(|pods| pods.get(&pod.uid));
        if before.is_some_and(|before| before.labels != pod.labels)
            && table.facts.get(&pod.uid).is_some_and(|known| known.bare.is_some())
        {
            table.facts.remove(&pod.uid);
        }
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
        if let Some(facts) = self.known_facts(pod) {
            return Ok(Some(facts));
        }
        let _turn = self.turn(pod).await;
        if let Some(facts) = self.known_facts(pod) {
            return Ok(Some(facts));
        }
        Ok(self.fetch(pod).await?.map(|(facts, _)| facts))
    }

    /// Waits until nobody else reads a pod, which is then known unless it could not be read.
    async fn turn(&self, pod: &Pod) -> Option<SemaphorePermit<'_>> {
        let mut hasher = DefaultHasher::new();
        pod.uid.hash(&mut hasher);
        let group = usize::try_from(hasher.finish() % READING_GROUPS as u64).ok()?;
        self.reading.get(group)?.acquire().await.ok()
    }

    /// Returns the facts about a pod that was fetched before.
    fn known_facts(&self, pod: &Pod) -> Option<Arc<PodFacts>> {
        let bounds = self.limit_ranges.bounds(&pod.namespace);
        let table = self.read();
        let known = table.facts.get(&pod.uid)?;
        let object = match &known.bare {
            Some((object, read_with)) if *read_with != bounds => object.clone(),
            Some(_) | None => return Some(known.facts.clone()),
        };
        drop(table);
        let facts = Arc::new(PodFacts::read(&object, &self.config, &bounds));
        if let Some(known) = self.write().facts.get_mut(&pod.uid) {
            *known = Known { facts: facts.clone(), bare: Some((object, bounds)) };
        }
        Some(facts)
    }

    /// Returns a pod's addresses, which are empty if the pod no longer exists. The first call after a change of
    /// the pod sends a request to the API server.
    pub async fn addresses(&self, pod: &Arc<Pod>) -> kube::Result<Arc<[IpAddr]>> {
        let known = || self.read().addresses.get(&pod.uid).cloned();
        if let Some(addresses) = known() {
            return Ok(addresses);
        }
        let _turn = self.turn(pod).await;
        if let Some(addresses) = known() {
            return Ok(addresses);
        }
        Ok(self.fetch(pod).await?.map(|(_, addresses)| addresses).unwrap_or_default())
    }

    /// Fetches a pod and keeps what does not change without an event of the watch.
    async fn fetch(&self, pod: &Arc<Pod>) -> kube::Result<Option<(Arc<PodFacts>, Arc<[IpAddr]>)>> {
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let Some(mut object) = api.get_opt(&pod.name).await? else { return Ok(None) };
        if object.uid().as_deref() != Some(&pod.uid) {
            return Ok(None);
        }
        let addresses: Arc<[IpAddr]> = read_addresses(&object).into();
        let bounds = self.limit_ranges.bounds(&pod.namespace);
        let facts = Arc::new(PodFacts::read(&object, &self.config, &bounds));
        (object.status, object.metadata.managed_fields) = (None, None);
        let bare = (!facts.injected).then(|| (Arc::new(object), bounds));
        let mut table = self.write();
        let current = table.by_namespace.get(&pod.namespace).and_then(|pods| pods.get(&pod.uid)).cloned();
        if let Some(current) = current {
            table.facts.insert(pod.uid.clone(), Known { facts: facts.clone(), bare });
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
