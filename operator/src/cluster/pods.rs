//! Pods: which there are, from a watch of their metadata; and what a single one is made of, fetched once and kept for
//! as long as the pod lives, because containers of a pod do not change.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::watcher;
use kube::{Resource as _, ResourceExt as _};
use sluice_crds::PORTS_ANNOTATION;

use crate::admission::capture::{self, CaptureError, CapturedPort};
use crate::cluster::follow::{Change, follow};

/// A running pod, as its metadata says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// What made it, as kubectl names it: `deployment/checkout`.
    pub owner: Option<String>,
}

/// What a pod is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodFacts {
    /// Whether it has a sidecar.
    pub injected: bool,
    /// Whether it is on the host's network: then it is none of ours.
    pub host_network: bool,
    /// The ports that its sidecar captures, or would.
    pub captured: Result<Vec<CapturedPort>, CaptureError>,
    /// Whether its annotation says which ports serve requests: then the others do not by somebody's choice.
    pub chosen: bool,
    /// Ports of containers that are ports of the node too.
    pub host_ports: Vec<u16>,
}

impl PodFacts {
    /// Reads a pod's containers.
    #[must_use]
    pub fn of(pod: &core::Pod) -> Self {
        let spec = pod.spec.clone().unwrap_or_default();
        let of_sidecar = capture::of_sidecar(&spec);
        Self {
            injected: of_sidecar.is_some(),
            host_network: spec.host_network.unwrap_or(false),
            captured: of_sidecar.map_or_else(|| capture::plan(pod), Ok),
            chosen: pod.annotations().contains_key(PORTS_ANNOTATION),
            host_ports: spec
                .containers
                .iter()
                .flat_map(|container| container.ports.iter().flatten())
                .filter(|port| port.host_port.is_some())
                .filter_map(|port| u16::try_from(port.container_port).ok())
                .collect(),
        }
    }
}

/// All running pods.
#[derive(Clone)]
pub struct Pods {
    client: kube::Client,
    table: Arc<RwLock<Table>>,
}

#[derive(Default)]
struct Table {
    by_namespace: BTreeMap<String, BTreeMap<String, Arc<Pod>>>,
    facts: HashMap<String, Arc<PodFacts>>,
}

impl Pods {
    /// Knows of none yet.
    #[must_use]
    pub fn new(client: kube::Client) -> Self {
        Self { client, table: Arc::default() }
    }

    /// Follows the watch; says every change.
    pub async fn watch(&self, mut changed: impl FnMut(Change<Arc<Pod>>) + Send) {
        let api: Api<PartialObjectMeta<core::Pod>> = Api::all(self.client.clone());
        let config = watcher::Config::default().fields("status.phase=Running");
        follow(watcher::watcher(api, config), |change| match change {
            Change::Applied(object) => {
                let pod = Arc::new(read(&object));
                let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
                table
                    .by_namespace
                    .entry(pod.namespace.clone())
                    .or_default()
                    .insert(pod.uid.clone(), pod.clone());
                drop(table);
                changed(Change::Applied(pod));
            }
            Change::Gone { namespace, name, uid } => {
                let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
                if let Some(pods) = table.by_namespace.get_mut(&namespace) {
                    pods.remove(&uid);
                    if pods.is_empty() {
                        table.by_namespace.remove(&namespace);
                    }
                }
                table.facts.remove(&uid);
                drop(table);
                changed(Change::Gone { namespace, name, uid });
            }
            Change::Synced => changed(Change::Synced),
        })
        .await;
    }

    /// The running pods of a namespace that `wanted` wants, by name.
    #[must_use]
    pub fn select(&self, namespace: &str, wanted: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
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

    /// What a pod is made of; nothing if it is gone.
    pub async fn facts(&self, pod: &Pod) -> kube::Result<Option<Arc<PodFacts>>> {
        if let Some(facts) = self.table.read().unwrap_or_else(PoisonError::into_inner).facts.get(&pod.uid) {
            return Ok(Some(facts.clone()));
        }
        let api: Api<core::Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let Some(object) = api.get_opt(&pod.name).await? else { return Ok(None) };
        if object.uid().as_deref() != Some(&pod.uid) {
            return Ok(None);
        }
        let facts = Arc::new(PodFacts::of(&object));
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.by_namespace.get(&pod.namespace).is_some_and(|pods| pods.contains_key(&pod.uid)) {
            table.facts.insert(pod.uid.clone(), facts.clone());
        }
        Ok(Some(facts))
    }
}

fn read(object: &PartialObjectMeta<core::Pod>) -> Pod {
    let labels = object.labels().clone();
    let owner = object.owner_references().iter().find(|owner| owner.controller == Some(true)).map(|owner| {
        // A Deployment's pods are owned by a ReplicaSet whose name is the Deployment's and the template's hash.
        let deployment =
            labels.get("pod-template-hash").and_then(|hash| owner.name.strip_suffix(&format!("-{hash}")));
        match (owner.kind.as_str(), deployment) {
            ("ReplicaSet", Some(deployment)) => format!("deployment/{deployment}"),
            (kind, _) => format!("{}/{}", kind.to_lowercase(), owner.name),
        }
    });
    Pod {
        uid: object.uid().unwrap_or_default(),
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        labels,
        deleting: object.meta().deletion_timestamp.is_some(),
        owner,
    }
}
