//! The table of running pods. A watch of their metadata fills it. The containers and the addresses of pods are read when they
//! are needed. The containers are kept while the pod lives, and the addresses until the pod changes. What a pod without a sidecar would
//! get depends on the bounds of its namespace too, and is found out again when they change.
//!
//! - [`pod`]: what is kept of a pod.
//! - `reads`: who reads pods at the same time.

pub mod pod;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::{Arc, RwLock};

use foldhash::fast::RandomState;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PartialObjectMeta};
use kube::runtime::watcher;

use crate::cluster::namespaces::LimitRanges;
use crate::cluster::pods::pod::{Pod, PodFacts, read_addresses};
use crate::cluster::pods::reads::{EarlyReads, Reading};
use crate::cluster::watch::{Change, follow};
use crate::injection::config::InjectConfig;
use crate::injection::resources::Bounds;
use crate::locks::{Latch, read, write};

mod reads;
#[cfg(test)]
mod tests;

/// Number of pods of a namespace that are read one by one at a time.
const MAX_READS: usize = 16;
/// Part of a namespace's pods above which they are listed instead, as a divisor.
const LISTED_PART: usize = 8;
/// Number of pods on a page of a list. A pod has some ten KB.
const PAGE: u32 = 100;
/// Number of pods that are remembered from before the watch reports them, or after it has reported that they are gone.
const MAX_REMEMBERED: usize = 4_096;

/// All running pods.
#[derive(Clone)]
pub struct Pods {
    client: kube::Client,
    config: Arc<InjectConfig>,
    limit_ranges: LimitRanges,
    table: Arc<RwLock<PodTable>>,
    reading: Reading,
    early_reads: EarlyReads,
    /// Whether the first list is complete.
    pub listed: Latch,
}

#[derive(Default)]
struct PodTable {
    /// Pods by UID.
    by_uid: HashMap<String, Arc<Pod>, RandomState>,
    /// Pods by namespace, and in it by name and UID: a pod may replace one of the same name that the watch reports later as deleted.
    by_namespace: BTreeMap<String, BTreeMap<(String, String), Arc<Pod>>>,
    /// Facts by the UID of the pod.
    facts: HashMap<String, Known, RandomState>,
    /// Numbers of the last changes by namespace, and the next number.
    changes: HashMap<String, u64, RandomState>,
    next_change: u64,
    /// Addresses by the UID of the pod.
    addresses: HashMap<String, Arc<[IpAddr]>, RandomState>,
    /// Facts about pods with a sidecar that were read before the watch has reported them, by UID.
    early: VecDeque<(String, Arc<PodFacts>)>,
    /// UIDs of pods that are gone.
    gone: VecDeque<String>,
}

impl PodTable {
    fn get(&self, namespace: &str, uid: &str) -> Option<&Arc<Pod>> {
        self.by_uid.get(uid).filter(|pod| pod.namespace == namespace)
    }

    /// Returns the pods before and after a pod in the order of names: often those of the same workload.
    fn neighbours(&self, pod: &Pod) -> impl Iterator<Item = &Arc<Pod>> {
        let of_namespace = self.by_namespace.get(&pod.namespace);
        let place = (pod.name.clone(), pod.uid.clone());
        let around = of_namespace.map(|pods| {
            let before = pods.range((Unbounded, Excluded(&place))).next_back();
            [before, pods.range((Excluded(&place), Unbounded)).next()]
        });
        around.into_iter().flatten().flatten().map(|(_, pod)| pod)
    }

    /// Notes that a pod of a namespace, or what is known about it, changes.
    fn changed(&mut self, namespace: &str) {
        self.next_change += 1;
        match self.changes.get_mut(namespace) {
            Some(last) => *last = self.next_change,
            None => drop(self.changes.insert(namespace.to_owned(), self.next_change)),
        }
    }

    fn insert(&mut self, pod: Arc<Pod>) -> Option<Arc<Pod>> {
        let before = self.remove(&pod.namespace, &pod.uid);
        self.changed(&pod.namespace);
        let of_namespace = self.by_namespace.entry(pod.namespace.clone()).or_default();
        of_namespace.insert((pod.name.clone(), pod.uid.clone()), pod.clone());
        self.by_uid.insert(pod.uid.clone(), pod);
        before
    }

    fn remove(&mut self, namespace: &str, uid: &str) -> Option<Arc<Pod>> {
        self.get(namespace, uid)?;
        let pod = self.by_uid.remove(uid)?;
        self.changed(namespace);
        if let Some(of_namespace) = self.by_namespace.get_mut(namespace) {
            of_namespace.remove(&(pod.name.clone(), pod.uid.clone()));
            if of_namespace.is_empty() {
                self.by_namespace.remove(namespace);
                self.changes.remove(namespace);
            }
        }
        Some(pod)
    }
}

/// Adds an item to the remembered ones, of which the oldest are forgotten.
fn remember<T>(remembered: &mut VecDeque<T>, item: T) {
    if remembered.len() >= MAX_REMEMBERED {
        remembered.pop_front();
    }
    remembered.push_back(item);
}

/// The facts about a pod.
struct Known {
    facts: Arc<PodFacts>,
    /// A pod without a sidecar, and the bounds with which it was looked at.
    bare: Option<(Arc<core::Pod>, Arc<Bounds>)>,
}

/// The state of the pods of a namespace and of what is known about them. A change makes it differ from all before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    /// Number of the last change, or `None` without pods.
    change: Option<u64>,
    bounds: Arc<Bounds>,
}

impl Pods {
    /// Returns an empty table.
    pub fn new(client: kube::Client, config: Arc<InjectConfig>, limit_ranges: LimitRanges) -> Self {
        Self {
            client,
            config,
            limit_ranges,
            table: Arc::default(),
            reading: Reading::default(),
            early_reads: EarlyReads::default(),
            listed: Latch::default(),
        }
    }

    /// Keeps the table up to date and passes on every change: the UID of the pod, and the pod before and after it, while it runs.
    pub async fn watch(&self, mut on_change: impl FnMut(&str, Option<&Pod>, Option<&Pod>) + Send) {
        let api: Api<PartialObjectMeta<core::Pod>> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields("status.phase=Running");
        follow(watcher::watcher(api, config), |change| match change {
            Change::Applied(object) => {
                let (before, pod) = self.insert(Pod::read(&object.metadata));
                on_change(&pod.uid, before.as_deref(), Some(&pod));
            }
            Change::Deleted { key, uid } => {
                on_change(&uid, self.remove(&key.namespace, &uid).as_deref(), None);
            }
            Change::Listed => self.listed.set(),
        })
        .await;
    }

    /// Inserts a pod, and returns what it was before and what it is.
    pub(crate) fn insert(&self, mut pod: Pod) -> (Option<Arc<Pod>>, Arc<Pod>) {
        let mut table = write(&self.table);
        table.addresses.remove(&pod.uid);
        let known = table.get(&pod.namespace, &pod.uid).into_iter().chain(table.neighbours(&pod));
        let shared = known.map(|other| &other.labels).find(|labels| **labels == pod.labels).cloned();
        if let Some(labels) = shared {
            pod.labels = labels;
        }
        // What a pod without a sidecar would get depends on its labels too.
        if table.get(&pod.namespace, &pod.uid).is_some_and(|before| before.labels != pod.labels)
            && table.facts.get(&pod.uid).is_some_and(|known| known.bare.is_some())
        {
            table.facts.remove(&pod.uid);
        }
        if let Some(at) = table.early.iter().position(|(uid, _)| *uid == pod.uid)
            && let Some((uid, facts)) = table.early.remove(at)
        {
            table.facts.insert(uid, Known { facts, bare: None });
        }
        let pod = Arc::new(pod);
        (table.insert(pod.clone()), pod)
    }

    /// Inserts a pod whose sidecar is known.
    #[cfg(test)]
    pub(crate) fn insert_with_sidecar(&self, metadata: &kube::api::ObjectMeta) {
        let pod = Pod::read(metadata);
        let facts = PodFacts {
            injected: true,
            ..PodFacts::read(&core::Pod::default(), &self.config, &Arc::default())
        };
        write(&self.table).facts.insert(pod.uid.clone(), Known { facts: Arc::new(facts), bare: None });
        self.insert(pod);
    }

    /// Removes a pod and returns it.
    pub(crate) fn remove(&self, namespace: &str, uid: &str) -> Option<Arc<Pod>> {
        let mut table = write(&self.table);
        let removed = table.remove(namespace, uid);
        table.facts.remove(uid);
        table.addresses.remove(uid);
        remember(&mut table.gone, uid.to_owned());
        removed
    }

    /// Returns the facts about a pod if they are known.
    pub fn facts_if_known(&self, pod: &Pod) -> Option<Arc<PodFacts>> {
        read(&self.table).facts.get(&pod.uid).map(|known| known.facts.clone())
    }

    /// Returns a running pod.
    pub fn get(&self, namespace: &str, uid: &str) -> Option<Arc<Pod>> {
        read(&self.table).get(namespace, uid).cloned()
    }

    /// Reports whether a pod was running and is gone. The last few thousand are remembered.
    pub fn is_gone(&self, namespace: &str, uid: &str) -> bool {
        let table = read(&self.table);
        table.get(namespace, uid).is_none() && table.gone.iter().any(|gone| gone == uid)
    }

    /// Returns the running pods of a namespace that satisfy `wanted`, ordered by name.
    pub fn select(&self, namespace: &str, mut wanted: impl FnMut(&Pod) -> bool) -> Vec<Arc<Pod>> {
        let table = read(&self.table);
        let pods = table.by_namespace.get(namespace).into_iter().flat_map(BTreeMap::values);
        pods.filter(|pod| wanted(pod)).cloned().collect()
    }

    /// Reports whether a running pod of a namespace satisfies `wanted`.
    pub fn any(&self, namespace: &str, mut wanted: impl FnMut(&Pod) -> bool) -> bool {
        let table = read(&self.table);
        table.by_namespace.get(namespace).is_some_and(|pods| pods.values().any(|pod| wanted(pod)))
    }

    /// Returns the state of the pods of a namespace.
    pub fn version(&self, namespace: &str) -> Version {
        let bounds = self.limit_ranges.bounds(namespace);
        Version { change: read(&self.table).changes.get(namespace).copied(), bounds }
    }

    /// Returns the facts about the containers of pods of a namespace, or `None` for those that no longer run. The first call
    /// for a pod sends a request to the API server.
    pub async fn facts(
        &self,
        namespace: &str,
        pods: &[Arc<Pod>],
    ) -> kube::Result<Vec<Option<Arc<PodFacts>>>> {
        self.known_or_read(namespace, pods, |pods| self.known_facts(namespace, pods)).await
    }

    /// Returns the addresses of pods of a namespace, or `None` for those that no longer run. The first call after a change
    /// of a pod sends a request to the API server.
    pub async fn addresses(
        &self,
        namespace: &str,
        pods: &[Arc<Pod>],
    ) -> kube::Result<Vec<Option<Arc<[IpAddr]>>>> {
        let known = |pods: &[Arc<Pod>]| {
            let table = read(&self.table);
            pods.iter().map(|pod| table.addresses.get(&pod.uid).cloned()).collect()
        };
        self.known_or_read(namespace, pods, known).await
    }

    /// Returns what is known about pods, after it has been read if necessary.
    async fn known_or_read<T>(
        &self,
        namespace: &str,
        pods: &[Arc<Pod>],
        known: impl Fn(&[Arc<Pod>]) -> Vec<Option<T>>,
    ) -> kube::Result<Vec<Option<T>>> {
        let before = known(pods);
        if before.iter().all(Option::is_some) {
            return Ok(before);
        }
        let unknown = pods.iter().zip(&before).filter(|(_, known)| known.is_none()).map(|(pod, _)| pod);
        self.early_reads.ended(unknown.clone()).await;
        let caller = self.reading.join(namespace, unknown);
        let _turn = caller.turn().await;
        // Another caller may have read them.
        let now = known(pods);
        if now.iter().all(Option::is_some) {
            return Ok(now);
        }
        // Some of them were read by the caller before.
        let of_all = caller.take();
        let read = known(&of_all);
        let of_all = of_all.into_iter().zip(read).filter(|(_, read)| read.is_none());
        let mut wanted: BTreeMap<_, _> = of_all.map(|(pod, _)| (pod.uid.clone(), pod)).collect();
        let unknown = pods.iter().zip(&now).filter(|(_, known)| known.is_none()).map(|(pod, _)| pod);
        wanted.extend(unknown.map(|pod| (pod.uid.clone(), pod.clone())));
        self.read_pods(namespace, wanted).await?;
        Ok(known(pods))
    }

    /// Reads pods of a namespace, and keeps what does not change without an event of the watch.
    async fn read_pods(&self, namespace: &str, pods: BTreeMap<String, Arc<Pod>>) -> kube::Result<()> {
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), namespace);
        let all = read(&self.table).by_namespace.get(namespace).map_or(0, BTreeMap::len);
        if pods.len() > MAX_READS && pods.len() > all / LISTED_PART {
            let mut list = ListParams::default().limit(PAGE);
            loop {
                let page = api.list(&list).await?;
                for object in page.items {
                    if let Some(pod) = object.uid().and_then(|uid| pods.get(&uid)) {
                        self.keep(pod, object);
                    }
                }
                match page.metadata.continue_.filter(|token| !token.is_empty()) {
                    Some(token) => list = list.continue_token(&token),
                    None => return Ok(()),
                }
            }
        }
        let pods: Vec<_> = pods.into_values().collect();
        for some in pods.chunks(MAX_READS) {
            try_join_all(some.iter().map(|pod| self.read_one(&api, pod))).await?;
        }
        Ok(())
    }

    async fn read_one(&self, api: &Api<core::Pod>, pod: &Arc<Pod>) -> kube::Result<()> {
        let object = api.get_opt(&pod.name).await?;
        if let Some(object) = object.filter(|object| object.uid().as_deref() == Some(&pod.uid)) {
            self.keep(pod, object);
        }
        Ok(())
    }

    /// Keeps the facts about a pod and its addresses, if it is still in the table.
    fn keep(&self, pod: &Arc<Pod>, mut object: core::Pod) {
        let addresses: Arc<[IpAddr]> = read_addresses(&object).into();
        let bounds = self.limit_ranges.bounds(&pod.namespace);
        let facts = Arc::new(PodFacts::read(&object, &self.config, &bounds));
        (object.status, object.metadata.managed_fields) = (None, None);
        let bare = (!facts.injected).then(|| (Arc::new(object), bounds));
        let mut table = write(&self.table);
        let Some(current) = table.get(&pod.namespace, &pod.uid).cloned() else { return };
        let known = table.neighbours(pod).filter_map(|other| table.facts.get(&other.uid));
        let facts = known.map(|known| &known.facts).find(|known| **known == facts).cloned().unwrap_or(facts);
        table.facts.insert(pod.uid.clone(), Known { facts, bare });
        table.changed(&pod.namespace);
        // A change that the watch has reported meanwhile may be newer than the response.
        if Arc::ptr_eq(&current, pod) {
            table.addresses.insert(pod.uid.clone(), addresses);
        }
    }

    /// Reads a pod that the watch has not reported, because it is starting or because the watch lags behind.
    pub async fn read_unreported(
        &self,
        namespace: &str,
        name: &str,
    ) -> kube::Result<Option<(Arc<Pod>, Arc<PodFacts>)>> {
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), namespace);
        let _read = self.early_reads.begin(namespace, name);
        let Some(object) = api.get_opt(name).await? else { return Ok(None) };
        let pod = Arc::new(Pod::read(&object.metadata));
        let facts = Arc::new(PodFacts::read(&object, &self.config, &self.limit_ranges.bounds(namespace)));
        let mut table = write(&self.table);
        if facts.injected && table.get(namespace, &pod.uid).is_none() {
            remember(&mut table.early, (pod.uid.clone(), facts.clone()));
        } else if facts.injected && !table.facts.contains_key(&pod.uid) {
            // The watch has reported it meanwhile.
            table.facts.insert(pod.uid.clone(), Known { facts: facts.clone(), bare: None });
            table.changed(namespace);
        }
        drop(table);
        Ok(Some((pod, facts)))
    }

    /// Returns the facts about pods that were read before.
    fn known_facts(&self, namespace: &str, pods: &[Arc<Pod>]) -> Vec<Option<Arc<PodFacts>>> {
        let bounds = self.limit_ranges.bounds(namespace);
        let table = read(&self.table);
        let is_current = |known: &&Known| known.bare.as_ref().is_none_or(|(_, with)| *with == bounds);
        let facts = pods.iter().map(|pod| Some(table.facts.get(&pod.uid).filter(is_current)?.facts.clone()));
        let mut all: Vec<_> = facts.collect();
        drop(table);
        for (pod, facts) in pods.iter().zip(&mut all).filter(|(_, facts)| facts.is_none()) {
            *facts = self.look_again(pod, &bounds);
        }
        all
    }

    /// Finds out again what a pod without a sidecar would get within these bounds.
    fn look_again(&self, pod: &Pod, bounds: &Arc<Bounds>) -> Option<Arc<PodFacts>> {
        let (object, _) = read(&self.table).facts.get(&pod.uid)?.bare.clone()?;
        let facts = Arc::new(PodFacts::read(&object, &self.config, bounds));
        let mut table = write(&self.table);
        table.changed(&pod.namespace);
        if let Some(known) = table.facts.get_mut(&pod.uid) {
            *known = Known { facts: facts.clone(), bare: Some((object, bounds.clone())) };
        }
        Some(facts)
    }
}
