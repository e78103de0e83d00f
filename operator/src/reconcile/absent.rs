//! Why a policy has no pod that enforces it: a pod that is pending, or a workload that has no pods. Looked for only while
//! that is so, and not often: a pod that hangs changes nothing by itself.

use std::collections::{BTreeMap, HashMap};
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
/// Age up to which what was read of a namespace will do for a policy to which nothing has happened.
const SHARED: Duration = Duration::from_secs(2);
/// Time for which it is kept for others that have waited as long.
const RETAINED: Duration = Duration::from_secs(10);
/// Number of pending pods of a namespace that are read for all policies. A pod has some ten KB.
const MAX_PENDING: u32 = 200;
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
pub struct AbsentPods {
    found: Mutex<HashMap<PolicyKey, Found>>,
    /// Findings about namespaces that were read a moment ago. Whoever reads holds the lock of the namespace, so that the others wait.
    read: Mutex<HashMap<String, Reading>>,
}

type Reading = Arc<tokio::sync::Mutex<Option<(Instant, Arc<Unready>)>>>;

struct Found {
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
        let is_same = |found: &&Found| {
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
        let found = Found { at: Instant::now(), selector: selector.clone(), absent: absent.clone() };
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pods of a namespace that do not run yet, and the workloads that may create pods.
struct Unready {
    pending: Vec<Pending>,
    /// Whether these are all pending pods.
    has_all: bool,
    workloads: Vec<Workload>,
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
    async fn read(client: &kube::Client, namespace: &str) -> kube::Result<Self> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let page = pods.list(&is_pending().limit(MAX_PENDING)).await?;
        let has_all = page.metadata.continue_.is_none_or(|token| token.is_empty());
        let pending = page.items.into_iter().map(|pod| Pending::new(namespace, pod)).collect();
        Ok(Self { pending, has_all, workloads: workloads(client, namespace).await? })
    }
}

fn is_pending() -> ListParams {
    ListParams::default().fields("status.phase=Pending")
}

/// Finds a pending pod that a selector selects. In a namespace with many of them it is asked for.
async fn find_pending(
    client: &kube::Client,
    namespace: &str,
    unready: &Unready,
    selector: &PodSelector,
) -> kube::Result<Option<(String, String)>> {
    let known = unready.pending.iter().find(|pod| selector.matches(&pod.labels));
    if known.is_some() || unready.has_all {
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

async fn find(
    client: &kube::Client,
    namespace: &str,
    unready: &Unready,
    selector: &PodSelector,
) -> kube::Result<Absent> {
    if let Some((pod, reason)) = find_pending(client, namespace, unready, selector).await? {
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

/// Returns the labels of the pods of a template.
fn labels(template: PodTemplateSpec) -> BTreeMap<String, String> {
    template.metadata.and_then(|metadata| metadata.labels).unwrap_or_default()
}

/// A workload that may create pods.
struct Workload {
    /// Kind and name, as kubectl takes them.
    name: String,
    /// Labels of its pods, if it has a template of them.
    template: Option<BTreeMap<String, String>>,
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::future::join_all;
    use kube::client::Body;
    use kube::core::Selector;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a client of an API server with one pending pod, `web-1` with the label `app: web`, on its last page of pods or on an
    /// earlier one, and the number of its requests.
    fn api_server(is_last_page: bool) -> (kube::Client, Arc<AtomicUsize>) {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let service = tower::service_fn(move |request: axum::http::Request<Body>| {
            count.fetch_add(1, Ordering::Relaxed);
            let uri = request.uri();
            let is_selected = !uri.query().is_some_and(|query| query.contains("labelSelector"));
            let pod = json!({"metadata": {"name": "web-1", "labels": {"app": "web"}}, "status": {}});
            let items = if uri.path().ends_with("/pods") && is_selected { vec![pod] } else { Vec::new() };
            let metadata = json!({"continue": if is_last_page { "" } else { "more" }});
            let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
            let response = axum::http::Response::new(Body::from(list.to_string().into_bytes()));
            std::future::ready(Ok::<_, std::io::Error>(response))
        });
        (kube::Client::new(service, "default"), requests)
    }

    fn selector(app: &str) -> PodSelector {
        [("app".to_owned(), app.to_owned())].into_iter().collect::<Selector>().into()
    }

    #[tokio::test(start_paused = true)]
    async fn the_policies_of_a_namespace_share_what_is_read_of_it() {
        for (is_last_page, for_each) in [(true, 0), (false, 1)] {
            let (client, requests) = api_server(is_last_page);
            let absent = AbsentPods::default();
            let find = async |policy: usize, app: &str, since: Instant| {
                let key = PolicyKey::new("shop", policy.to_string());
                absent.find(&client, &key, since, &selector(app), |_| false).await.unwrap()
            };
            let sent = || requests.swap(0, Ordering::Relaxed);
            let start = Instant::now();
            let others = join_all((0..100).map(|policy| find(policy, "other", start))).await;
            assert!(others.iter().all(|absent| **absent == Absent::default()));
            assert_eq!(sent(), 5 + 100 * for_each, "pods and four kinds of workloads");
            assert_eq!(find(100, "web", start).await.pending.as_deref(), Some("web-1"));
            assert_eq!(sent(), 0);

            // Something has happened since, perhaps to one of these objects.
            tokio::time::advance(Duration::from_millis(1)).await;
            find(101, "other", Instant::now()).await;
            find(100, "other", Instant::now()).await;
            assert_eq!(sent(), 5 + 2 * for_each);

            // Time has led to this.
            tokio::time::advance(KEEP).await;
            for policy in 0..100 {
                find(policy, "other", Instant::now()).await;
                tokio::time::advance(Duration::from_millis(10)).await;
            }
            assert_eq!(sent(), 5 + 100 * for_each);
            tokio::time::advance(RETAINED).await;
            let other = PolicyKey::new("bank", "p");
            absent.find(&client, &other, Instant::now(), &selector("web"), |_| false).await.unwrap();
            assert_eq!(lock(&absent.read).len(), 1, "what is old is forgotten");
        }
    }

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
