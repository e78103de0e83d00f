//! Quotas: how many policies a namespace may have, and how much the policies of one pod may contain. They keep one
//! tenant from using up the memory of the operator and of sidecars, and refuse early what a sidecar would refuse later.
//!
//! Only changes that add something are refused, so a quota that was lowered never stands in the way of a repair. Two
//! requests at the same time may pass together: a sidecar refuses what it cannot bear.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PartialObjectMeta};
use kube::core::{Expression, Selector};
use serde_json::Value;
use sluice_config::policy::Mode;
use sluice_config::prepared::index::applies_to_all;
use sluice_crds::compile::Compiled;
use sluice_crds::policy::{PodSelection, TargetRef};
use sluice_crds::{Installation, RateLimitPolicy, compile};
use sluice_host::logging::told;
use sluice_store::MAX_COUNTERS;
use tokio::sync::Semaphore;

use crate::args::Quotas;
use crate::cluster::targets::{self, Target};
use crate::injection::decide::is_opted_out;
use crate::names::PodSelector;

#[cfg(test)]
mod tests;

/// Time that reading the cluster may take. The API server waits for 5 s.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Namespaces that are read at the same time.
static READS: Semaphore = Semaphore::const_new(2);

/// Returns labels that a pod has, as far as its selector names their values.
fn likely_labels(selector: &Selector) -> BTreeMap<String, String> {
    let value = |requirement| match requirement {
        Expression::Equal(key, value) => Some((key, value)),
        Expression::In(key, values) => Some((key, values.into_iter().next()?)),
        _ => None,
    };
    selector.clone().into_iter().filter_map(value).collect()
}

/// The parts of a policy that a quota bounds.
const PARTS: [fn(&Usage) -> usize; 4] =
    [|usage| usage.limits, |usage| usage.enforced_for_all, Usage::for_all, |usage| usage.bytes];

/// Reports which of these parts grow by an edit, and so are checked. A new policy grows in all.
fn growth(old: Option<&Usage>, new: &Usage) -> [bool; 4] {
    // With other pods, the policy is new for some pods.
    let same = old.filter(|old| old.pods == new.pods && old.by_service == new.by_service);
    PARTS.map(|part| same.is_none_or(|old| part(new) > part(old)))
}

impl Quotas {
    /// Returns why an edit of a policy exceeds a quota, if it does. `old` is the edit before it; `None` for a new policy.
    pub(super) async fn refusal(
        &self,
        client: &kube::Client,
        installation: &Installation,
        new: &Compiled,
        old: Option<Value>,
    ) -> Option<String> {
        let new_usage = Usage::new(new);
        let is_update = old.is_some();
        let old_usage = old.and_then(|old| compile(&old, installation).ok()).map(|old| Usage::new(&old));
        let growth = growth(old_usage.as_ref(), &new_usage);
        if growth == [false; 4] {
            return None;
        }
        // Anyone who reaches the webhook can ask for this. Who must wait is not admitted unchecked.
        let Ok(Ok(_permit)) = tokio::time::timeout(TIMEOUT, READS.acquire()).await else {
            return Some("the quotas of too many policies are being checked: try again".to_owned());
        };
        let reading = Namespace::read(client, installation, &new.policy.namespace, &new_usage, self);
        let namespace = match tokio::time::timeout(TIMEOUT, reading).await {
            Ok(Ok(namespace)) => namespace,
            Ok(Err(error)) => return unchecked(&told(&error)),
            Err(_) => return unchecked("the API server did not respond in time"),
        };
        let problem = self.exceeded(&new_usage, is_update, growth, &namespace)?;
        Some(format!("{problem}. Remove limits or policies, or ask {} for more", self.quota_contact))
    }

    fn exceeded(
        &self,
        new: &Usage,
        is_update: bool,
        growth: [bool; 4],
        namespace: &Namespace,
    ) -> Option<String> {
        let max = self.max_policies_per_namespace as usize;
        let others = namespace.policies.iter().filter(|name| **name != new.name).count();
        if !is_update && others >= max {
            return Some(format!("the namespace has {others} policies, and the quota is {max}"));
        }
        let likely: Vec<_> = namespace.selector.alternatives.iter().map(likely_labels).collect();
        let mut pods = namespace.pods.iter().chain(&likely);
        let by_labels = pods.find_map(|labels| {
            self.exceeded_by_pod(
                new,
                growth,
                |_, selector| selector.matches(labels),
                namespace,
                Usage::pods_text,
            )
        });
        // The pods of a workload that does not exist yet have no known labels.
        let by_target = || {
            new.targets().iter().find_map(|target| {
                let selects = |usage: &Usage, _: &PodSelector| usage.targets().contains(target);
                self.exceeded_by_pod(new, growth, selects, namespace, Usage::pods_text)
            })
        };
        // The service has the policies of all namespaces, and each namespace as much room as in a pod.
        let by_service = || {
            let text = |_: &Usage| "the service".to_owned();
            new.by_service
                .then(|| self.exceeded_by_pod(new, growth, |usage, _| usage.by_service, namespace, text))
                .flatten()
        };
        by_labels.or_else(by_target).or_else(by_service)
    }

    /// Returns how a pod exceeds a quota that has the new policy and the others that select it.
    fn exceeded_by_pod(
        &self,
        new: &Usage,
        growth: [bool; 4],
        selects: impl Fn(&Usage, &PodSelector) -> bool,
        namespace: &Namespace,
        of: impl Fn(&Usage) -> String,
    ) -> Option<String> {
        let others = namespace.usages.iter().filter(|(usage, _)| usage.name != new.name);
        let others = others.filter(|(usage, selector)| selects(usage, selector)).map(|(usage, _)| usage);
        let all: Vec<_> = others.chain([new]).collect();
        let [limits, enforced_for_all, for_all, bytes] =
            PARTS.map(|part| all.iter().map(|usage| part(usage)).sum::<usize>());
        let [more_limits, more_enforced, more_for_all, more_bytes] = growth;
        let (max, max_bytes) = (self.max_limits_per_pod as usize, self.max_bytes_per_pod as usize);
        // The labels of pods are not for everyone to see, but the caller knows the policy.
        let of_pods = || {
            let policies =
                if all.len() == 1 { "1 policy".to_owned() } else { format!("{} policies", all.len()) };
            format!("{} would have {policies}", of(new))
        };
        if more_enforced && enforced_for_all > MAX_COUNTERS {
            return Some(format!(
                "{} with {enforced_for_all} limits for every request, and a request can meet {MAX_COUNTERS}",
                of_pods()
            ));
        }
        if more_for_all && for_all > 2 * MAX_COUNTERS {
            let max = 2 * MAX_COUNTERS;
            return Some(format!(
                "{} with {for_all} limits for every request, those in Shadow included, and a request can meet {max}",
                of_pods()
            ));
        }
        if more_limits && limits > max {
            return Some(format!("{} with {limits} limits, and the quota is {max}", of_pods()));
        }
        (more_bytes && bytes > max_bytes)
            .then(|| format!("{} of {bytes} bytes, and the quota is {max_bytes}", of_pods()))
    }
}

/// A quota is no reason to stop changes while the API server has problems.
fn unchecked(error: &str) -> Option<String> {
    tracing::warn!(error, "quotas were not checked, because the namespace could not be read");
    None
}

/// The share of the quotas that a policy takes.
#[derive(Debug, Clone)]
struct Usage {
    name: String,
    pods: PodSelection,
    /// Whether the service enforces it.
    by_service: bool,
    /// All limits.
    limits: usize,
    /// Limits for every request that are enforced, and those in Shadow.
    enforced_for_all: usize,
    shadow_for_all: usize,
    bytes: usize,
}

impl Usage {
    fn new(compiled: &Compiled) -> Self {
        let limits = &compiled.policy.limits;
        let for_all =
            |mode| limits.iter().filter(|limit| limit.mode == mode && applies_to_all(limit)).count();
        Self {
            name: compiled.policy.name.clone(),
            pods: compiled.pods.clone(),
            by_service: compiled.enforced_by.service,
            limits: limits.len(),
            enforced_for_all: for_all(Mode::Enforce),
            shadow_for_all: for_all(Mode::Shadow),
            bytes: compiled.policy.to_json().len(),
        }
    }

    /// Returns the number of limits for every request.
    fn for_all(&self) -> usize {
        self.enforced_for_all + self.shadow_for_all
    }

    /// Returns the workloads and Services that the policy refers to for its pods.
    fn targets(&self) -> &[TargetRef] {
        match &self.pods {
            PodSelection::Targets(targets) => targets,
            PodSelection::Labels(_) => &[],
        }
    }

    /// Describes the pods of the policy by what the policy says of them.
    fn pods_text(&self) -> String {
        match &self.pods {
            PodSelection::Labels(selector) if selector.selects_all() => "pods".to_owned(),
            PodSelection::Labels(selector) => format!("pods with {selector}"),
            PodSelection::Targets(targets) => {
                let targets: Vec<_> = targets.iter().map(ToString::to_string).collect();
                format!("pods of {}", targets.join(", "))
            }
        }
    }
}

/// Number of pods that are examined. The pods of a workload have the same labels.
const MAX_PODS: u32 = 500;
/// Number of workloads that are read at the same time.
const MAX_CONCURRENT: usize = 8;

/// The policies and pods of a namespace.
struct Namespace {
    /// Names of the policies, also of invalid ones.
    policies: BTreeSet<String>,
    /// The valid policies, and the pods that they select.
    usages: Vec<(Usage, PodSelector)>,
    /// Selects the pods of the new policy.
    selector: PodSelector,
    /// The labels of these pods.
    pods: BTreeSet<BTreeMap<String, String>>,
}

impl Namespace {
    /// Reads the policies of a namespace, and the pods that `new` selects.
    async fn read(
        client: &kube::Client,
        installation: &Installation,
        namespace: &str,
        new: &Usage,
        quotas: &Quotas,
    ) -> kube::Result<Self> {
        let policies: Api<RateLimitPolicy> = Api::namespaced(client.clone(), namespace);
        // One more than the quota tells that it is used up.
        let some = ListParams::default().limit(quotas.max_policies_per_namespace + 1);
        let policies = policies.list(&some).await?;
        let names = policies.iter().map(kube::ResourceExt::name_any).collect();
        let installation = installation.clone();
        let compiling = tokio::task::spawn_blocking(move || {
            let usages = policies.iter().filter_map(|policy| {
                let object = serde_json::to_value(policy).ok()?;
                Some(Usage::new(&compile(&object, &installation).ok()?))
            });
            usages.collect::<Vec<_>>()
        });
        let usages = compiling.await.unwrap_or_default();
        let targets = read_targets(client, namespace, usages.iter().chain([new])).await?;
        let selector = selector(&new.pods, &targets);
        let pods = read_pods(client, namespace, &selector).await?;
        let usages = usages.into_iter().map(|usage| {
            let pods = self::selector(&usage.pods, &targets);
            (usage, pods)
        });
        Ok(Self { policies: names, usages: usages.collect(), selector, pods })
    }
}

/// The workloads and Services that policies refer to, as far as they exist.
type ReadTargets = BTreeMap<TargetRef, Target>;

/// Reads what policies refer to, each once.
async fn read_targets(
    client: &kube::Client,
    namespace: &str,
    usages: impl Iterator<Item = &Usage>,
) -> kube::Result<ReadTargets> {
    let refs: BTreeSet<TargetRef> = usages.flat_map(Usage::targets).cloned().collect();
    let reads = refs.into_iter().map(|target| async move {
        let found = targets::read(client.clone(), namespace, target.kind, &target.name).await?;
        Ok::<_, kube::Error>(found.map(|found| (target, found)))
    });
    futures::stream::iter(reads)
        .buffer_unordered(MAX_CONCURRENT)
        .try_filter_map(|found| async { Ok(found) })
        .try_collect()
        .await
}

/// Returns what selects the pods of a policy.
fn selector(pods: &PodSelection, targets: &ReadTargets) -> PodSelector {
    match pods {
        PodSelection::Labels(selector) => selector.clone().into(),
        PodSelection::Targets(refs) => {
            refs.iter().filter_map(|target| targets.get(target)).map(|target| target.pods.clone()).collect()
        }
    }
}

/// Reads the labels of the running pods that are selected.
async fn read_pods(
    client: &kube::Client,
    namespace: &str,
    selector: &PodSelector,
) -> kube::Result<BTreeSet<BTreeMap<String, String>>> {
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(client.clone(), namespace);
    let alternatives = &selector.alternatives;
    let most = MAX_PODS / u32::try_from(alternatives.len().max(1)).unwrap_or(MAX_PODS);
    let lists = alternatives.iter().map(|selector| {
        let running = ListParams::default().labels(&selector.to_string()).fields("status.phase=Running");
        let running = running.limit(most.max(1));
        let pods = &pods;
        async move { pods.list_metadata(&running).await }
    });
    let lists = futures::future::try_join_all(lists).await?;
    let labels = lists.iter().flatten().map(|pod| pod.labels().clone());
    Ok(labels.filter(|labels| !is_opted_out(labels)).collect())
}
