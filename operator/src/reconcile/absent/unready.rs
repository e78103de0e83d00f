//! The pods of a namespace that do not run yet, with what they wait for, and the workloads that may create pods.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodTemplateSpec};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use sluice_crds::SIDECAR_CONTAINER;

use crate::pod_selector::PodSelector;

/// Number of pending pods of a namespace that are read for all policies. A pod has some ten KB.
const MAX_PENDING: u32 = 200;
/// Maximum number of label selectors of one policy that are asked for.
const MAX_SELECTORS: usize = 4;
/// Maximum length of a text of the API server, in characters.
const MAX_TEXT: usize = 400;

/// The pods of a namespace that do not run yet, and the workloads that may create pods.
pub(super) struct Unready {
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
        for alternative in selector.alternatives().iter().take(MAX_SELECTORS) {
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

/// Returns the labels of the pods of a template.
fn labels(template: PodTemplateSpec) -> BTreeMap<String, String> {
    template.metadata.and_then(|metadata| metadata.labels).unwrap_or_default()
}

/// A workload that may create pods.
pub(super) struct Workload {
    /// Kind and name, as kubectl takes them.
    pub(super) name: String,
    /// Labels of its pods, if it has a template of them.
    pub(super) template: Option<BTreeMap<String, String>>,
    /// Number of pods that it is to have; `None` if that depends on the nodes.
    pub(super) wanted: Option<i32>,
    /// The reason why it cannot create pods, in the API server's words.
    pub(super) failure: Option<String>,
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
        workloads.push(Workload { name, template: template.map(labels), wanted: wanted.flatten(), failure });
    }
    for object in Api::<StatefulSet>::namespaced(client.clone(), namespace).list(&list).await? {
        let name = format!("statefulset/{}", object.name_any());
        let (template, wanted) = object.spec.map(|spec| (spec.template, spec.replicas)).unzip();
        workloads.push(Workload {
            name,
            template: template.map(labels),
            wanted: wanted.flatten(),
            failure: None,
        });
    }
    for object in Api::<DaemonSet>::namespaced(client.clone(), namespace).list(&list).await? {
        let name = format!("daemonset/{}", object.name_any());
        let wanted = object.status.map(|status| status.desired_number_scheduled);
        workloads.push(Workload {
            name,
            template: object.spec.map(|spec| labels(spec.template)),
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
        workloads.push(Workload {
            name,
            template: template.flatten().map(labels),
            wanted: wanted.flatten(),
            failure,
        });
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
