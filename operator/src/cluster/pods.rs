//! The table of running pods. A watch of their metadata fills it; the containers of a single pod are fetched
//! when they are needed and kept while the pod lives.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt as _;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher;

use crate::cluster::pod::{Pod, PodFacts};
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
    pub async fn facts(&self, pod: &Pod) -> kube::Result<Option<Arc<PodFacts>>> {
        if let Some(facts) = self.read().facts.get(&pod.uid) {
            return Ok(Some(facts.clone()));
        }
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let Some(object) = api.get_opt(&pod.name).await? else { return Ok(None) };
        if object.uid().as_deref() != Some(&pod.uid) {
            return Ok(None);
        }
        let facts = Arc::new(PodFacts::read(&object));
        let mut table = self.write();
        if table.by_namespace.get(&pod.namespace).is_some_and(|pods| pods.contains_key(&pod.uid)) {
            table.facts.insert(pod.uid.clone(), facts.clone());
        }
        Ok(Some(facts))
    }

    // The table is consistent even if a holder of the lock panicked: each change is a single statement.
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}
