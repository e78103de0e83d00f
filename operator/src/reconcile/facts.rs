//! The values that pass between the steps of a reconcile, up to everything that a status is computed from.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, Hash};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::fast::RandomState;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::DynamicObject;
use sluice_config::message::{PolicyFindings, StoreReport};
use sluice_config::policy::Mode;
use sluice_config::{CompiledPolicy, PolicyHash};
use sluice_crds::policy::{EnforcedBy, TargetRef};
use sluice_crds::{Compiled, RateLimitPolicyStatus, Violation};
use tokio::time::Instant;

use crate::cluster::pods::pod::{Pod, PodFacts};
use crate::cluster::routes::{EndpointSlice, NetworkPolicy, Service};
use crate::conditions::{Finding, find};
use crate::distribution::session::Confirmation;
use crate::events::pods::UnlimitedPod;
use crate::leadership::LEADER_GRACE;
use crate::locks::lock;
use crate::names::{PodSelector, PolicyKey, ServiceAccount};
use crate::reconcile::contents::Problem;
use crate::store::resolve::Resolved;

/// Time for which a published policy is `Pending`. Afterwards its pods are unconfirmed.
pub(super) const PENDING: Duration = Duration::from_secs(10);

/// The result of publishing an edit of a policy.
pub enum Outcome {
    /// The edit is valid and was published.
    Published {
        /// The compiled policy, as it is written.
        policy: Box<CompiledPolicy>,
        /// Its enforcers.
        enforced_by: EnforcedBy,
        /// Hash of the form that sidecars receive.
        hash: PolicyHash,
        /// The pods that receive the policy.
        selected: SelectedPods,
        /// Time at which the edit was first published.
        published_at: Instant,
        /// Whether this leader has published no edit of the policy before it.
        is_first: bool,
        /// Mode of the installation. With `Shadow`, sidecars receive every policy in Shadow.
        installation: Mode,
        /// The reasons why content that the policy refers to cannot be used. The pods receive the policy with the content
        /// that could be used last.
        unusable: Vec<Problem>,
    },
    /// The edit is valid, but something that it refers to has not been read yet. Sidecars keep the last edit that was
    /// published.
    Unread(String),
    /// The edit is valid, but content that it refers to cannot be used, and never could since it was made. Sidecars keep
    /// the last edit that was published.
    Unresolved(Vec<Problem>),
    /// The edit is invalid. Sidecars keep the last valid one.
    Invalid(Vec<Violation>),
}

impl Outcome {
    /// Reports whether the edit is so new that its pods may not have confirmed it yet, or has not been published.
    pub fn is_new(&self) -> bool {
        match self {
            Self::Published { published_at, .. } => published_at.elapsed() < PENDING,
            Self::Unread(_) | Self::Unresolved(_) | Self::Invalid(_) => true,
        }
    }

    /// Returns the hash of the edit, if it was published.
    pub fn hash(&self) -> Option<&PolicyHash> {
        match self {
            Self::Published { hash, .. } => Some(hash),
            Self::Unread(_) | Self::Unresolved(_) | Self::Invalid(_) => None,
        }
    }

    /// Reports whether the installation turns the policy to Shadow. A policy that is so itself is not turned.
    pub fn is_shadowed_by_installation(&self) -> bool {
        match self {
            Self::Published { policy, installation: Mode::Shadow, .. } => **policy != policy.in_shadow(),
            Self::Published { installation: Mode::Enforce, .. }
            | Self::Unread(_)
            | Self::Unresolved(_)
            | Self::Invalid(_) => false,
        }
    }
}

/// The pods that a policy selects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectedPods {
    /// Selects the pods by their labels.
    pub selector: PodSelector,
    /// The workloads and Services that the policy refers to.
    pub targets: Vec<TargetRef>,
    /// Those of them that do not exist.
    pub missing: Vec<TargetRef>,
    /// The reasons why none of them has pods now, as a sentence without its full stop, if none is meant to have any.
    pub idle: Option<String>,
}

impl From<PodSelector> for SelectedPods {
    fn from(selector: PodSelector) -> Self {
        Self { selector, targets: Vec::new(), missing: Vec::new(), idle: None }
    }
}

/// The newest edit of each policy, and its outcome. A report of a sidecar, or a change of a pod, changes nothing of that.
#[derive(Default)]
pub struct Outcomes {
    known: Mutex<HashMap<PolicyKey, (EditId, Arc<Outcome>)>>,
    /// Edits as they were compiled, because those objects that they refer to change far more often.
    compiled: Mutex<HashMap<PolicyKey, (EditId, Compilation)>>,
    hasher: RandomState,
}

/// The UID of a policy, and the hash of its `spec`.
type EditId = (Option<String>, u64);

/// A compiled policy, or all its violations.
pub type Compilation = Result<Compiled, Vec<Violation>>;

impl Outcomes {
    fn id(&self, object: &DynamicObject) -> EditId {
        (object.metadata.uid.clone(), self.hasher.hash_one(object.data.get("spec")))
    }

    /// Returns an edit, compiled once.
    pub fn compiled(
        &self,
        key: &PolicyKey,
        object: &DynamicObject,
        compile: impl FnOnce() -> Compilation,
    ) -> Compilation {
        let edit = self.id(object);
        if let Some((_, known)) = lock(&self.compiled).get(key).filter(|(known, _)| *known == edit) {
            return known.clone();
        }
        let compiled = compile();
        lock(&self.compiled).insert(key.clone(), (edit, compiled.clone()));
        compiled
    }

    /// Returns what became of an edit, if that is settled.
    pub fn get(&self, key: &PolicyKey, object: &DynamicObject) -> Option<Arc<Outcome>> {
        let edit = self.id(object);
        lock(&self.known).get(key).filter(|(known, _)| *known == edit).map(|(_, outcome)| outcome.clone())
    }

    /// Keeps what became of an edit, unless something that it refers to is missing.
    pub fn set(&self, key: &PolicyKey, object: &DynamicObject, outcome: &Arc<Outcome>) {
        let is_settled = match &**outcome {
            Outcome::Published { unusable, .. } => unusable.is_empty(),
            Outcome::Invalid(_) => true,
            Outcome::Unread(_) | Outcome::Unresolved(_) => false,
        };
        if is_settled {
            lock(&self.known).insert(key.clone(), (self.id(object), outcome.clone()));
        }
    }

    /// Notes that an edit is about to be published again.
    pub fn unsettle(&self, key: &PolicyKey) {
        lock(&self.known).remove(key);
    }

    /// Forgets a deleted policy.
    pub fn forget(&self, key: &PolicyKey) {
        self.unsettle(key);
        lock(&self.compiled).remove(key);
    }
}

/// A counted pod: it runs, is not being deleted, has not opted out and does not use the host's network.
#[derive(Debug, Clone)]
pub struct CountedPod {
    /// Metadata of the pod.
    pub pod: Arc<Pod>,
    /// Facts about its containers.
    pub facts: Arc<PodFacts>,
    /// Its addresses. Only looked up if the namespace has EndpointSlices that could list them.
    pub addresses: Arc<[IpAddr]>,
    /// The last report of its sidecar about the policy.
    pub confirmation: Confirmation,
    /// Findings of its sidecar about the policy.
    pub findings: PolicyFindings,
    /// The last report of its sidecar about the store, or `None` if the sidecar is not connected.
    pub store: Option<StoreReport>,
    /// Ports of its applications that its sidecar has not reached for a minute although requests came.
    pub unreachable: Vec<u16>,
    /// Whether it is one of the service's, and not of the policy's namespace.
    pub is_service: bool,
}

/// The objects in the cluster that a policy refers to.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The counted pods that the policy selects, ordered by name.
    pub pods: Vec<CountedPod>,
    /// The pods of the service, if it enforces the policy, ordered by name.
    pub service: Vec<CountedPod>,
    /// Pods without limits behind the same Services.
    pub unlimited: Vec<UnlimitedPod>,
    /// The Services of the namespace.
    pub services: Vec<Arc<Service>>,
    /// The EndpointSlices of the namespace that do not follow from the selector of a Service.
    pub endpoint_slices: Vec<Arc<EndpointSlice>>,
    /// The NetworkPolicies of the namespace that restrict the clients of pods.
    pub network_policies: Vec<Arc<NetworkPolicy>>,
    /// A selected workload that is not meant to have pods now, and why, as a sentence without its full stop. Only looked
    /// up if there are no pods.
    pub idle: Option<String>,
    /// The obstacles to new pods, in whole sentences. Only looked up if no pod has confirmed the policy.
    pub absent: Option<String>,
    /// Whether new pods of the namespace get sidecars.
    pub injection: NamespaceInjection,
    /// The store that the policy counts in.
    pub store: StoreFact,
}

impl Facts {
    /// Iterates over the pods that enforce the policy: those that it selects, and those of the service.
    pub fn enforcers(&self) -> impl Iterator<Item = &CountedPod> + Clone {
        self.pods.iter().chain(&self.service)
    }
}

/// Whether new pods of a namespace get sidecars, and what keeps them from having one.
#[derive(Debug, Clone, Default)]
pub struct NamespaceInjection {
    /// Whether every new pod gets one.
    pub is_labelled: bool,
    /// Since when, if that is known.
    pub labelled_since: Option<Timestamp>,
    /// Whether the installation excludes the namespace.
    pub is_excluded: bool,
    /// Why the API server does not call the webhook.
    pub webhook: Option<String>,
    /// Since when this operator has been running.
    pub operator_since: Option<Timestamp>,
    /// Why the namespace cannot have the authority by which sidecars trust the operator.
    pub authority: Option<String>,
}

/// The store that a policy counts in.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum StoreFact {
    /// The store of the installation.
    #[default]
    Default,
    /// A store of the policy's namespace, which does not exist.
    Missing,
    /// A store of the policy's namespace.
    Known(Resolved),
}

/// Everything that the status of a policy is computed from.
pub struct Observed<'a> {
    /// Key of the policy.
    pub key: &'a PolicyKey,
    /// Generation of the policy.
    pub generation: i64,
    /// Time since the policy was created.
    pub age: Duration,
    /// The finalizers that keep a policy that was deleted. Empty while it is not being deleted.
    pub kept_by: &'a [String],
    /// Result of publishing this generation.
    pub outcome: &'a Outcome,
    /// Objects that the policy refers to.
    pub facts: &'a Facts,
    /// The service of the installation, if it has one.
    pub service: Option<&'a ServiceAccount>,
    /// Time for which this replica has been the leader.
    pub leader_for: Duration,
    /// Status that the policy has.
    pub previous: Option<&'a RateLimitPolicyStatus>,
}

impl Observed<'_> {
    /// Returns a condition of the previous status.
    pub(super) fn previous_condition(&self, kind: &str) -> Option<&Condition> {
        find(&self.previous?.conditions, kind)
    }

    /// Returns the time left in which sidecars may still be connecting to a new leader, if some are.
    pub(super) fn awaits_sidecars(&self) -> Option<Duration> {
        let left = LEADER_GRACE.checked_sub(self.leader_for).filter(|left| !left.is_zero());
        let is_connecting = |pod: &CountedPod| {
            pod.facts.injected
                && matches!(pod.confirmation, Confirmation::NotConnected | Confirmation::AwaitsReport)
        };
        left.filter(|_| self.facts.enforcers().any(is_connecting))
    }

    /// Returns the finding of the leader before in place of another, if it has one of these results, while sidecars that it may rest on
    /// are still connecting to a new leader. What others have reported to this one counts at once if it is worse.
    pub(super) fn or_before(
        &self,
        finding: Finding,
        kind: &str,
        results: &[(&'static str, &'static str)],
    ) -> Finding {
        let before = self.present_condition(kind).filter(|_| self.awaits_sidecars().is_some());
        let Some(before) = before else { return finding };
        let is_result = |result: &&(_, _)| **result == (before.status.as_str(), before.reason.as_str());
        match results.iter().find(is_result) {
            Some(&(status, reason)) if finding.status != "False" || status == "False" => {
                Finding::new(status, reason, before.message.clone())
            }
            Some(_) | None => finding,
        }
    }

    /// Returns a condition of the previous status that holds for the present generation.
    pub(super) fn present_condition(&self, kind: &str) -> Option<&Condition> {
        self.previous_condition(kind)
            .filter(|condition| condition.observed_generation == Some(self.generation))
    }
}

/// Returns the values of the labels with these keys, in the order of the keys.
pub fn label_set<'a>(
    labels: &'a BTreeMap<String, String>,
    keys: &BTreeSet<&String>,
) -> Vec<Option<&'a String>> {
    keys.iter().map(|key| labels.get(*key)).collect()
}

/// Returns the first of all items with the same key.
pub fn unique_by<'a, T, K: Eq + Hash>(items: &'a [T], key: impl Fn(&'a T) -> K) -> Vec<&'a T> {
    let mut seen = HashSet::with_hasher(RandomState::default());
    items.iter().filter(|item| seen.insert(key(item))).collect()
}
