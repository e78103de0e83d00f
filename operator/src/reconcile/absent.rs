//! Why a policy has no pod that enforces it: a pod that is pending, or a workload that has no pods. Looked for only while
//! that is so, and not often: a pod that hangs changes nothing by itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::apps::v1::DeploymentCondition;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use sluice_crds::SIDECAR_CONTAINER;
use sluice_crds::policy::TargetKind;
use tokio::time::Instant;

use crate::cluster::targets::{self, field, number};
use crate::locks::lock;
use crate::names::{PodSelector, PolicyKey};

#[cfg(test)]
mod absent_tests;

#[cfg(test)]
mod unready_tests;

/// Time for which a finding is kept.
const KEEP: Duration = Duration::from_secs(30);
/// Age up to which what was read of a namespace will do for a policy to which nothing has happened.
const SHARED: Duration = Duration::from_secs(2);
/// Time for which it is kept for others that have waited as long.
const RETAINED: Duration = Duration::from_secs(10);

/// Why a policy has no pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Absent {
    /// A workload that is meant to have none now, and why, as a sentence without its full stop.
    pub idle: Option<String>,
    /// The obstacles to new pods, in whole sentences: a pod that is pending, or a workload that cannot create pods.
    pub reason: Option<String>,
    /// The pod that `reason` calls pending.
    pub pending: Option<String>,
    /// A workload that has no pods, if it is not known why, as a whole sentence. It is true only while there are none.
    pub empty: Option<String>,
}

/// Findings about policies without pods, kept for a while.
#[derive(Default)]
pub struct AbsentPods {
    found: Mutex<HashMap<PolicyKey, FoundAbsent>>,
    /// Findings about namespaces that were read a moment ago. Whoever reads holds the lock of the namespace, so that the others wait.
    read: Mutex<HashMap<String, NamespaceReading>>,
}

type NamespaceReading = Arc<tokio::sync::Mutex<Option<(Instant, Arc<Unready>)>>>;

struct FoundAbsent {
    at: Instant,
    selector: PodSelector,
    absent: Arc<Absent>,
}

impl AbsentPods {
    /// Looks for pods and workloads that a selector selects, as they are `since` a moment or later. A finding is kept for a while,
    /// unless its pod is `running` now.
    pub async fn find(
        &self,
        client: &kube::Client,
        key: &PolicyKey,
        since: Instant,
        selector: &PodSelector,
        running: impl Fn(&str) -> bool,
    ) -> kube::Result<Arc<Absent>> {
        let is_same = |found: &&FoundAbsent| {
            found.selector == *selector && !found.absent.pending.as_deref().is_some_and(&running)
        };
        let since = match lock(&self.found).get(key).filter(is_same) {
            Some(found) if found.at.elapsed() < KEEP => return Ok(found.absent.clone()),
            // Nothing has led to this but time.
            Some(_) => since.min(Instant::now() - SHARED),
            None => since,
        };
        let unready = self.unready(client, &key.namespace, since).await?;
        let absent = Arc::new(find(client, &key.namespace, &unready, selector).await?);
        let found = FoundAbsent { at: Instant::now(), selector: selector.clone(), absent: absent.clone() };
        lock(&self.found).insert(key.clone(), found);
        Ok(absent)
    }

    /// Returns what was read of a namespace `since` a moment, or reads it. A thousand policies without pods cost the API server no
    /// more than one.
    async fn unready(
        &self,
        client: &kube::Client,
        namespace: &str,
        since: Instant,
    ) -> kube::Result<Arc<Unready>> {
        let reading = lock(&self.read).entry(namespace.to_owned()).or_default().clone();
        let mut read = reading.lock().await;
        if let Some((began, unready)) = &*read
            && since <= *began
        {
            return Ok(unready.clone());
        }
        let began = Instant::now();
        let unready = Arc::new(Unready::read(client, namespace).await?);
        *read = Some((began, unready.clone()));
        drop(read);
        // Hardly anybody needs what is older. What is being read now cannot be locked.
        lock(&self.read).retain(|_, reading| {
            let read = reading.try_lock();
            read.map_or(true, |read| read.as_ref().is_some_and(|(began, _)| began.elapsed() < RETAINED))
        });
        Ok(unready)
    }

    /// Forgets a policy: it has pods now, or is gone.
    pub fn forget(&self, key: &PolicyKey) {
        lock(&self.found).remove(key);
    }
}

async fn find(
    client: &kube::Client,
    namespace: &str,
    unready: &Unready,
    selector: &PodSelector,
) -> kube::Result<Absent> {
    if let Some((pod, reason)) = unready.pending(client, namespace, selector).await? {
        return Ok(Absent { reason: Some(reason), pending: Some(pod), ..Absent::default() });
    }
    let mut absent = Absent::default();
    for workload in &unready.workloads {
        if !workload.template.as_ref().is_some_and(|labels| selector.matches(labels)) {
            continue;
        }
        match (workload.wanted, &workload.failure) {
            (Some(0), _) => {
                absent.idle.get_or_insert_with(|| format!("{} is scaled to zero", workload.name));
            }
            (_, Some(failure)) => {
                let reason = format!("The pods of {} cannot be created: {failure}.", workload.name);
                return Ok(Absent { reason: Some(reason), ..Absent::default() });
            }
            (_, None) => {
                absent.empty.get_or_insert_with(|| {
                    let name = &workload.name;
                    format!("{name} has no running pod: `kubectl -n {namespace} describe {name}` shows its events.")
                });
            }
        }
    }
    if absent.empty.is_some() {
        absent.idle = None;
    }
    Ok(absent)
}

/// Number of pending pods of a namespace that are read for all policies. A pod has some ten KB.
const MAX_PENDING: u32 = 200;
/// Maximum number of label selectors of one policy that are asked for.
const MAX_SELECTORS: usize = 4;
/// Maximum length of a text of the API server, in characters.
const MAX_TEXT: usize = 400;

/// The pods of a namespace that do not run yet, and the workloads that may create pods.
struct Unready {
    pending: Vec<Pending>,
    /// Whether these are all pending pods.
    has_all: bool,
    pub(super) workloads: Vec<Workload>,
}

/// A pod that does not run yet.
struct Pending {
    name: String,
    labels: BTreeMap<String, String>,
    /// The reason why it does not run, as a sentence.
    reason: String,
}

impl Pending {
    fn new(namespace: &str, pod: Pod) -> Self {
        Self {
            name: pod.name_any(),
            reason: pending(namespace, &pod),
            labels: pod.metadata.labels.unwrap_or_default(),
        }
    }
}

impl Unready {
    pub(super) async fn read(client: &kube::Client, namespace: &str) -> kube::Result<Self> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let page = pods.list(&is_pending().limit(MAX_PENDING)).await?;
        let has_all = page.metadata.continue_.is_none_or(|token| token.is_empty());
        let pending = page.items.into_iter().map(|pod| Pending::new(namespace, pod)).collect();
        Ok(Self { pending, has_all, workloads: workloads(client, namespace).await? })
    }

    /// Finds a pending pod that a selector selects: its name and why it does not run. In a namespace with many of them it is asked for.
    pub(super) async fn pending(
        &self,
        client: &kube::Client,
        namespace: &str,
        selector: &PodSelector,
    ) -> kube::Result<Option<(String, String)>> {
        let known = self.pending.iter().find(|pod| selector.matches(&pod.labels));
        if known.is_some() || self.has_all {
            return Ok(known.map(|pod| (pod.name.clone(), pod.reason.clone())));
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        for alternative in selector.alternatives.iter().take(MAX_SELECTORS) {
            let page = pods.list(&is_pending().labels_from(alternative).limit(1)).await?;
            if let Some(pod) = page.items.first() {
                return Ok(Some((pod.name_any(), pending(namespace, pod))));
            }
        }
        Ok(None)
    }
}

fn is_pending() -> ListParams {
    ListParams::default().fields("status.phase=Pending")
}

/// A workload that may create pods.
struct Workload {
    /// Kind and name, as kubectl takes them.
    pub(super) name: String,
    /// Labels of its pods, if it has a template of them.
    pub(super) template: Option<BTreeMap<String, String>>,
    /// Number of pods that it is to have; `None` if that depends on the nodes.
    pub(super) wanted: Option<i64>,
    /// The reason why it cannot create pods, in the API server's words.
    pub(super) failure: Option<String>,
}

async fn workloads(client: &kube::Client, namespace: &str) -> kube::Result<Vec<Workload>> {
    use TargetKind::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
    let mut workloads = Vec::new();
    for kind in [Deployment, StatefulSet, DaemonSet, ReplicaSet] {
        let wanted = if kind == DaemonSet { "/status/desiredNumberScheduled" } else { "/spec/replicas" };
        for object in targets::api(client.clone(), namespace, kind).list(&ListParams::default()).await? {
            // A Deployment has the condition of its ReplicaSets.
            if kind == ReplicaSet
                && object.owner_references().iter().any(|owner| owner.controller == Some(true))
            {
                continue;
            }
            let template = object.data.pointer("/spec/template");
            workloads.push(Workload {
                name: format!("{}/{}", format!("{kind:?}").to_lowercase(), object.name_any()),
                template: template
                    .map(|_| field(&object, "/spec/template/metadata/labels").unwrap_or_default()),
                wanted: number(&object, wanted),
                failure: failure(&field::<Vec<_>>(&object, "/status/conditions").unwrap_or_default()),
            });
        }
    }
    Ok(workloads)
}

fn failure(conditions: &[DeploymentCondition]) -> Option<String> {
    let is_failure = |one: &&DeploymentCondition| one.type_ == "ReplicaFailure" && one.status == "True";
    let failure = conditions.iter().find(is_failure)?;
    Some(shown(failure.message.as_deref().unwrap_or_default()))
}

/// Says what a pending pod waits for.
fn pending(namespace: &str, pod: &Pod) -> String {
    let name = pod.name_any();
    let waits = match waits_for(pod) {
        Some(waits) => waits,
        None => format!("`kubectl -n {namespace} describe pod {name}` shows its events"),
    };
    format!("Pod {name} is pending: {waits}.")
}

fn waits_for(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(unscheduled) = unscheduled {
        let message = unscheduled.message.as_deref().or(unscheduled.reason.as_deref()).unwrap_or_default();
        return Some(format!("it is not scheduled: {}", shown(message)));
    }
    let containers =
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    containers.filter_map(hangs).next()
}

/// Says why a container does not run, or why those after it do not start yet.
fn hangs(container: &ContainerStatus) -> Option<String> {
    let name = &container.name;
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        if matches!(reason, "PodInitializing" | "ContainerCreating" | "") {
            return None;
        }
        let message =
            waiting.message.as_deref().map(|message| format!(": {}", shown(message))).unwrap_or_default();
        return Some(format!("container {name} waits, {reason}{message}"));
    }
    if let Some(ended) = state.terminated.as_ref().filter(|ended| ended.exit_code != 0) {
        return Some(format!("container {name} ended with code {}", ended.exit_code));
    }
    let is_starting = state.running.is_some() && container.started == Some(false);
    (is_starting && name == SIDECAR_CONTAINER).then(|| "its sidecar waits for its first policies".to_owned())
}

/// Returns a text of the API server as a part of a message.
fn shown(text: &str) -> String {
    let text = text.trim().trim_end_matches('.');
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_TEXT).collect()
}
