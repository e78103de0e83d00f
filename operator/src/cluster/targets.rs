//! Workloads that policies refer to. A workload says by its selector which pods are its own. Its kind is watched in a
//! namespace while a policy of the namespace refers to the kind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams};
use kube::core::{Expression, Selector};
use kube::runtime::watcher;
use serde::de::DeserializeOwned;
use sluice_crds::policy::TargetKind;

use crate::cluster::wanted::{Wanted, Watched};
use crate::cluster::watch::{Change, follow};
use crate::names::{PodSelector, PolicyKey};

/// Label of the pods of a Job with the UID of the Job.
const JOB_UID_LABEL: &str = "batch.kubernetes.io/controller-uid";

/// A workload or Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Selects the pods that are its own.
    pub pods: PodSelector,
    /// The reason why it has no pods now, as the end of a sentence, if it is not meant to have any.
    pub idle: Option<&'static str>,
}

impl Target {
    /// Reads the fields of an object.
    pub fn read(kind: TargetKind, object: &DynamicObject) -> Self {
        match kind {
            TargetKind::Deployment | TargetKind::StatefulSet | TargetKind::ReplicaSet => Self {
                pods: own_selector(object),
                idle: (number(object, "/spec/replicas") == Some(0)).then_some("is scaled to zero"),
            },
            TargetKind::DaemonSet => Self {
                pods: own_selector(object),
                idle: (number(object, "/status/desiredNumberScheduled") == Some(0) && is_observed(object))
                    .then_some("fits no node"),
            },
            TargetKind::Job => Self {
                pods: own_selector(object),
                // Its controller sets the time when it starts the Job.
                idle: (object.data.pointer("/status/startTime").is_some()
                    && number(object, "/status/active").unwrap_or(0) == 0)
                    .then_some("runs no pod"),
            },
            TargetKind::CronJob => {
                let jobs = object.data.pointer("/status/active").and_then(|active| active.as_array());
                let uids = jobs.into_iter().flatten().filter_map(|job| Some(job["uid"].as_str()?.to_owned()));
                let uids: std::collections::BTreeSet<_> = uids.collect();
                if uids.is_empty() {
                    return Self { pods: PodSelector::NONE, idle: Some("runs no Job") };
                }
                let pods = Selector::from(Expression::In(JOB_UID_LABEL.to_owned(), uids)).into();
                Self { pods, idle: None }
            }
            TargetKind::Service => Self::service(field(object, "/spec/selector").unwrap_or_default()),
        }
    }

    /// A Service with this selector. Without one it selects no pods.
    pub fn service(labels: std::collections::BTreeMap<String, String>) -> Self {
        let pods = match labels.is_empty() {
            true => PodSelector::NONE,
            false => labels.into_iter().collect::<Selector>().into(),
        };
        Self { pods, idle: None }
    }
}

/// Returns the selector of a workload.
fn own_selector(object: &DynamicObject) -> PodSelector {
    let selector = field::<LabelSelector>(object, "/spec/selector").map(Selector::try_from);
    selector.and_then(Result::ok).map_or(PodSelector::NONE, PodSelector::from)
}

/// Reports whether the status is that of the present spec.
fn is_observed(object: &DynamicObject) -> bool {
    number(object, "/status/observedGeneration") == object.metadata.generation
}

/// Returns a number in an object.
pub fn number(object: &DynamicObject, path: &str) -> Option<i64> {
    object.data.pointer(path)?.as_i64()
}

/// Returns a part of an object.
pub fn field<T: DeserializeOwned>(object: &DynamicObject, path: &str) -> Option<T> {
    T::deserialize(object.data.pointer(path)?).ok()
}

/// Number of workloads in a page of the first list. A workload may be large, and only its selector is kept.
const PAGE: u32 = 50;

/// A workload that a policy refers to.
#[derive(Debug, Clone, PartialEq)]
pub enum FoundTarget {
    /// The workloads of its kind have not been listed yet.
    Pending,
    /// It does not exist.
    Missing,
    /// It exists.
    Target(Arc<Target>),
}

/// The workloads that policies refer to.
pub struct Targets {
    client: kube::Client,
    wanted: Wanted<PolicyKey, WatchedKind, Workloads>,
}

/// A kind in a namespace.
type WatchedKind = (String, TargetKind);

/// The workloads of one kind in one namespace.
#[derive(Default)]
struct Workloads {
    listed: bool,
    targets: BTreeMap<String, Arc<Target>>,
}

impl Targets {
    /// Watches nothing yet. Passes the policies that a change may affect to `on_change`.
    pub fn new(client: kube::Client, on_change: impl Fn(Vec<PolicyKey>) + Send + Sync + 'static) -> Self {
        Self { client, wanted: Wanted::new(on_change) }
    }

    /// Watches these kinds for a policy, and no others. Must be called within a tokio runtime.
    pub fn want(&self, policy: &PolicyKey, kinds: BTreeSet<TargetKind>) {
        let kinds = kinds.into_iter().map(|kind| (policy.namespace.clone(), kind));
        self.wanted.want(
            policy,
            kinds.collect(),
            |_| true,
            |_, finder| {
                let objects = api(self.client.clone(), &finder.thing.0, finder.thing.1);
                let task = tokio::spawn(async move {
                    let stream = watcher::watcher(objects, watcher::Config::default().page_size(PAGE));
                    follow(stream, |change| finder.change(|kind, watched| apply(kind, watched, change)))
                        .await;
                });
                Some((Workloads::default(), task.abort_handle()))
            },
        );
    }

    /// Waits until all workloads of the kinds that a policy refers to have been listed.
    pub async fn listed(&self, policy: &PolicyKey) {
        self.wanted.found(policy, |workloads| workloads.listed).await;
    }

    /// Returns what is known of a workload.
    pub fn find(&self, namespace: &str, kind: TargetKind, name: &str) -> FoundTarget {
        let found = self.wanted.get(&(namespace.to_owned(), kind), |workloads| {
            let target = workloads.targets.get(name).cloned();
            workloads.listed.then(|| target.map_or(FoundTarget::Missing, FoundTarget::Target))
        });
        found.flatten().unwrap_or(FoundTarget::Pending)
    }
}

/// Applies a change of a kind. Reports whether it may affect policies.
fn apply(
    kind: &WatchedKind,
    watched: &mut BTreeMap<WatchedKind, Watched<Workloads>>,
    change: Change<DynamicObject>,
) -> bool {
    let Some(Watched { found: workloads, .. }) = watched.get_mut(kind) else { return false };
    let is_change = match change {
        Change::Applied(object) => {
            let target = Arc::new(Target::read(kind.1, &object));
            workloads.targets.insert(object.name_any(), target.clone()) != Some(target)
        }
        Change::Deleted { key, .. } => workloads.targets.remove(&key.name).is_some(),
        Change::Listed => !std::mem::replace(&mut workloads.listed, true),
    };
    is_change && workloads.listed
}

/// Reads one workload once. It is listed by its name, so the right to list is enough.
pub async fn read(
    client: kube::Client,
    namespace: &str,
    kind: TargetKind,
    name: &str,
) -> kube::Result<Option<Target>> {
    let by_name = ListParams::default().fields(&format!("metadata.name={name}")).limit(1);
    let objects = api(client, namespace, kind).list(&by_name).await?;
    Ok(objects.iter().next().map(|object| Target::read(kind, object)))
}

/// Returns the API of the workloads of a kind in a namespace.
pub fn api(client: kube::Client, namespace: &str, kind: TargetKind) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(kind.group(), "v1", &format!("{kind:?}"));
    Api::namespaced_with(client, namespace, &ApiResource::from_gvk(&kind))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::{Value, json};

    use super::*;

    fn target(kind: TargetKind, data: Value) -> Target {
        let object = DynamicObject {
            types: None,
            metadata: ObjectMeta { generation: Some(1), ..ObjectMeta::default() },
            data,
        };
        Target::read(kind, &object)
    }

    fn selects(target: &Target, key: &str, value: &str) -> bool {
        target.pods.matches(&[(key.to_owned(), value.to_owned())].into())
    }

    #[test]
    fn a_workload_selects_its_own_pods() {
        let selector = json!({"matchLabels": {"app": "a"}});
        for kind in [TargetKind::Deployment, TargetKind::StatefulSet, TargetKind::ReplicaSet] {
            let at =
                |replicas: i64| target(kind, json!({"spec": {"replicas": replicas, "selector": selector}}));
            assert!(selects(&at(1), "app", "a") && !selects(&at(1), "app", "b"));
            assert_eq!((at(1).idle, at(0).idle), (None, Some("is scaled to zero")));
        }
        let set = |nodes: i64| {
            target(
                TargetKind::DaemonSet,
                json!({"spec": {"selector": selector}, "status": {"desiredNumberScheduled": nodes, "observedGeneration": 1}}),
            )
        };
        assert!(selects(&set(1), "app", "a"));
        assert_eq!((set(1).idle, set(0).idle), (None, Some("fits no node")));
        let job = |status: Value| {
            target(TargetKind::Job, json!({"spec": {"selector": selector}, "status": status}))
        };
        assert!(selects(&job(json!({"active": 1})), "app", "a"));
        assert_eq!((job(json!({"active": 1})).idle, job(json!({})).idle), (None, None), "not started yet");
    }

    #[test]
    fn a_job_that_has_ended_runs_no_pod() {
        let ended = json!({"status": {"startTime": "2026-01-01T00:00:00Z", "succeeded": 1}});
        assert_eq!(target(TargetKind::Job, ended).idle, Some("runs no pod"));
    }

    #[test]
    fn a_cron_job_selects_the_pods_of_its_active_jobs() {
        let cron = |active: Value| target(TargetKind::CronJob, json!({"status": {"active": active}}));
        let two = cron(json!([{"uid": "1"}, {"uid": "2"}]));
        assert!(selects(&two, JOB_UID_LABEL, "2") && !selects(&two, JOB_UID_LABEL, "3"));
        let none = cron(json!([]));
        assert_eq!(none, Target { pods: PodSelector::NONE, idle: Some("runs no Job") });
    }

    #[test]
    fn what_has_no_selector_selects_nothing() {
        for kind in [TargetKind::Deployment, TargetKind::Job, TargetKind::Service] {
            assert!(!selects(&target(kind, json!({"spec": {}})), "app", "a"), "{kind:?}");
        }
        let service = target(TargetKind::Service, json!({"spec": {"selector": {"app": "a"}}}));
        assert!(selects(&service, "app", "a") && !selects(&service, "app", "b"));
    }
}
