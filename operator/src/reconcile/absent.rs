//! Why a policy has no pod that enforces it: a pod that is pending, or a workload that has no pods. Looked for only while
//! that is so, and not often: a pod that hangs changes nothing by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodTemplateSpec};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use sluice_crds::SIDECAR_CONTAINER;
use tokio::time::Instant;

use crate::object_key::PolicyKey;
use crate::pod_selector::PodSelector;

/// Time for which a finding is kept.
const KEEP: Duration = Duration::from_secs(30);
/// Maximum number of label selectors of one policy that are asked for.
const MAX_SELECTORS: usize = 4;
/// Maximum length of a text of the API server, in characters.
const MAX_TEXT: usize = 400;

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
pub struct AbsentPods(Mutex<HashMap<PolicyKey, Found>>);

struct Found {
    at: Instant,
    selector: PodSelector,
    absent: Arc<Absent>,
}

impl AbsentPods {
    /// Looks for pods and workloads that a selector selects. A finding is kept for a while, unless its pod is `running` now.
    pub async fn find(
        &self,
        client: &kube::Client,
        key: &PolicyKey,
        selector: &PodSelector,
        running: impl Fn(&str) -> bool,
    ) -> kube::Result<Arc<Absent>> {
        let is_recent = |found: &&Found| {
            found.at.elapsed() < KEEP
                && found.selector == *selector
                && !found.absent.pending.as_deref().is_some_and(&running)
        };
        if let Some(found) = self.lock().get(key).filter(is_recent) {
            return Ok(found.absent.clone());
        }
        let absent = Arc::new(find(client, &key.namespace, selector).await?);
        let found = Found { at: Instant::now(), selector: selector.clone(), absent: absent.clone() };
        self.lock().insert(key.clone(), found);
        Ok(absent)
    }

    /// Forgets a policy: it has pods now, or is gone.
    pub fn forget(&self, key: &PolicyKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PolicyKey, Found>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn find(client: &kube::Client, namespace: &str, selector: &PodSelector) -> kube::Result<Absent> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for alternative in selector.alternatives().iter().take(MAX_SELECTORS) {
        let list = ListParams::default().fields("status.phase=Pending").labels_from(alternative).limit(1);
        if let Some(pod) = pods.list(&list).await?.items.first() {
            let reason = Some(pending(namespace, pod));
            return Ok(Absent { reason, pending: Some(pod.name_any()), ..Absent::default() });
        }
    }
    let mut absent = Absent::default();
    for workload in workloads(client, namespace).await? {
        if !workload.template.is_some_and(|template| selects(selector, template)) {
            continue;
        }
        match (workload.wanted, workload.failure) {
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

fn selects(selector: &PodSelector, template: PodTemplateSpec) -> bool {
    selector.matches(&template.metadata.and_then(|metadata| metadata.labels).unwrap_or_default())
}

/// A workload that may create pods.
struct Workload {
    /// Kind and name, as kubectl takes them.
    name: String,
    template: Option<PodTemplateSpec>,
    /// Number of pods that it is to have; `None` if that depends on the nodes.
    wanted: Option<i32>,
    /// The reason why it cannot create pods, in the API server's words.
    failure: Option<String>,
}

async fn workloads(client: &kube::Client, namespace: &str) -> kube::Result<Vec<Workload>> {
    let list = ListParams::default();
    let mut workloads = Vec::new();
    for object in Api::<Deployment>::namespaced(client.clone(), namespace).list(&list).await? {
        let conditions = object.status.as_ref().and_then(|status| status.conditions.as_ref());
        let failure = conditions
            .into_iter()
            .flatten()
            .find_map(|condition| failure(&condition.type_, &condition.status, condition.message.as_deref()));
        let name = format!("deployment/{}", object.name_any());
        let (template, wanted) = object.spec.map(|spec| (spec.template, spec.replicas)).unzip();
        workloads.push(Workload { name, template, wanted: wanted.flatten(), failure });
    }
    for object in Api::<StatefulSet>::namespaced(client.clone(), namespace).list(&list).await? {
        let name = format!("statefulset/{}", object.name_any());
        let (template, wanted) = object.spec.map(|spec| (spec.template, spec.replicas)).unzip();
        workloads.push(Workload { name, template, wanted: wanted.flatten(), failure: None });
    }
    for object in Api::<DaemonSet>::namespaced(client.clone(), namespace).list(&list).await? {
        let name = format!("daemonset/{}", object.name_any());
        let wanted = object.status.map(|status| status.desired_number_scheduled);
        workloads.push(Workload {
            name,
            template: object.spec.map(|spec| spec.template),
            wanted,
            failure: None,
        });
    }
    for object in Api::<ReplicaSet>::namespaced(client.clone(), namespace).list(&list).await? {
        // A Deployment has the condition of its ReplicaSets.
        if object.owner_references().iter().any(|owner| owner.controller == Some(true)) {
            continue;
        }
        let conditions = object.status.as_ref().and_then(|status| status.conditions.as_ref());
        let failure = conditions
            .into_iter()
            .flatten()
            .find_map(|condition| failure(&condition.type_, &condition.status, condition.message.as_deref()));
        let name = format!("replicaset/{}", object.name_any());
        let (template, wanted) = object.spec.map(|spec| (spec.template, spec.replicas)).unzip();
        workloads.push(Workload { name, template: template.flatten(), wanted: wanted.flatten(), failure });
    }
    Ok(workloads)
}

fn failure(kind: &str, status: &str, message: Option<&str>) -> Option<String> {
    (kind == "ReplicaFailure" && status == "True").then(|| shown(message.unwrap_or_default()))
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
    fn message(status: Value) -> String {
        let pod = json!({"metadata": {"name": "web-1"}, "status": status});
        pending("shop", &serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_pending_pod_says_what_it_waits_for() {
        let scheduled = json!({"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."});
        assert_eq!(
            message(json!({"conditions": [scheduled]})),
            "Pod web-1 is pending: it is not scheduled: 0/3 nodes are available: 3 Insufficient cpu."
        );
        let waiting = |name: &str, reason: &str| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "Back-off\npulling"}}});
        assert_eq!(
            message(json!({
                "initContainerStatuses": [waiting("sluice-sidecar", "ImagePullBackOff")],
                "containerStatuses": [waiting("app", "PodInitializing")],
            })),
            "Pod web-1 is pending: container sluice-sidecar waits, ImagePullBackOff: Back-off pulling."
        );
        let starting = json!({"name": "sluice-sidecar", "image": "", "imageID": "", "ready": false, "restartCount": 0, "started": false, "state": {"running": {}}});
        let text = message(json!({"initContainerStatuses": [starting]}));
        assert_eq!(text, "Pod web-1 is pending: its sidecar waits for its first policies.");
        let unknown = "Pod web-1 is pending: `kubectl -n shop describe pod web-1` shows its events.";
        assert_eq!(message(json!({"containerStatuses": [waiting("app", "ContainerCreating")]})), unknown);
        assert_eq!(message(json!({})), unknown);
    }

    #[test]
    fn only_a_replica_failure_says_why_a_workload_has_no_pods() {
        let words = "pods \"web-7\" is forbidden: exceeded quota: q.";
        let shown = "pods \"web-7\" is forbidden: exceeded quota: q".to_owned();
        assert_eq!(failure("ReplicaFailure", "True", Some(words)), Some(shown));
        assert_eq!(failure("ReplicaFailure", "False", Some(words)), None);
        assert_eq!(failure("Available", "False", Some(words)), None);
    }
}
