//! Reads the policies of a namespace and the pods that a policy selects.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PartialObjectMeta};
use sluice_crds::policy::{PodSelection, TargetRef};
use sluice_crds::{Installation, RateLimitPolicy, compile};

use super::usage::Usage;
use crate::args::Quotas;
use crate::cluster::targets;
use crate::cluster::targets::target::Target;
use crate::injection::decide::is_opted_out;
use crate::pod_selector::PodSelector;

/// Number of pods that are examined. The pods of a workload have the same labels.
const MAX_PODS: u32 = 500;
/// Number of workloads that are read at the same time.
const MAX_CONCURRENT: usize = 8;

/// The policies and pods of a namespace.
#[derive(Debug)]
pub(super) struct Namespace {
    /// Names of the policies, also of invalid ones.
    pub(super) policies: BTreeSet<String>,
    /// The valid policies, and the pods that they select.
    pub(super) usages: Vec<(Usage, PodSelector)>,
    /// Selects the pods of the new policy.
    pub(super) selector: PodSelector,
    /// The labels of these pods.
    pub(super) pods: BTreeSet<BTreeMap<String, String>>,
}

impl Namespace {
    /// Reads the policies of a namespace, and the pods that `new` selects.
    pub(super) async fn read(
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
            let selector = self::selector(&usage.pods, &targets);
            (usage, selector)
        });
        Ok(Self { policies: names, usages: usages.collect(), selector, pods })
    }
}

/// The workloads and Services that policies refer to, as far as they exist.
pub(super) type Targets = BTreeMap<TargetRef, Target>;

/// Reads what policies refer to, each once.
async fn read_targets(
    client: &kube::Client,
    namespace: &str,
    usages: impl Iterator<Item = &Usage>,
) -> kube::Result<Targets> {
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
pub(super) fn selector(pods: &PodSelection, targets: &Targets) -> PodSelector {
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
    let alternatives = selector.alternatives();
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
