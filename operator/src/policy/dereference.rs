//! The pods, Services and confirmations that a policy is about. Reads memory, and asks the API server only for what a
//! pod seen for the first time is made of, and for workloads when there are no pods at all.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::api::{Api, ListParams};
use kube::core::{Selector, SelectorExt as _};
use sluice_config::PolicyHash;
use sluice_crds::INJECT_LABEL;

use crate::cluster::{Pod, PodFacts, Service};
use crate::context::Context;
use crate::distribution::{Confirmation, StoreVoice};
use crate::policy::queue::PolicyKey;

/// How many pods are asked for at once.
const AT_ONCE: usize = 8;

/// A counted pod: it runs, is not being deleted, not opted out, and not on the host's network.
#[derive(Debug, Clone)]
pub struct PodView {
    /// The pod.
    pub pod: Arc<Pod>,
    /// What it is made of.
    pub facts: Arc<PodFacts>,
    /// What its sidecar says about the policy.
    pub confirmation: Confirmation,
    /// What its sidecar says about the store.
    pub store: StoreVoice,
}

/// What a policy is about.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// The counted pods.
    pub pods: Vec<PodView>,
    /// The Services of the namespace.
    pub services: Vec<Arc<Service>>,
    /// Without pods: a workload that would make some and is scaled to zero.
    pub scaled_to_zero: Option<String>,
    /// Whether new pods of the namespace get sidecars.
    pub namespace_labelled: bool,
}

/// Collects the facts.
pub async fn dereference(
    context: &Context,
    key: &PolicyKey,
    uid: &str,
    hash: &PolicyHash,
    selector: &Selector,
) -> kube::Result<Facts> {
    let view = |(pod, facts): (Arc<Pod>, Arc<PodFacts>)| PodView {
        confirmation: context.hub.confirmation(&pod.uid, uid, hash),
        store: context.hub.store_voice(&pod.uid),
        pod,
        facts,
    };
    let pods: Vec<_> = counted(context, &key.namespace, selector).await?.into_iter().map(view).collect();
    let scaled_to_zero =
        if pods.is_empty() { find_scaled_to_zero(context, &key.namespace, selector).await? } else { None };
    Ok(Facts {
        pods,
        scaled_to_zero,
        services: context.services.of(&key.namespace),
        namespace_labelled: context.namespaces.is_labelled(&key.namespace),
    })
}

/// The counted pods of a namespace that a selector selects, by name.
async fn counted(
    context: &Context,
    namespace: &str,
    selector: &Selector,
) -> kube::Result<Vec<(Arc<Pod>, Arc<PodFacts>)>> {
    let running = context.pods.select(namespace, |pod| {
        !pod.deleting
            && pod.labels.get(INJECT_LABEL).is_none_or(|value| value != "false")
            && selector.matches(&pod.labels)
    });
    futures::stream::iter(running)
        .map(|pod| async move {
            let facts = context.pods.facts(&pod).await?.filter(|facts| !facts.host_network);
            Ok::<_, kube::Error>(facts.map(|facts| (pod, facts)))
        })
        .buffered(AT_ONCE)
        .try_filter_map(|pod| async move { Ok(pod) })
        .try_collect()
        .await
}

/// The UIDs of the pods that share a policy of this selector: those that are counted and carry a sidecar. Whether they have
/// a stream makes no difference: a pod that is cut off from the operator admits all the same.
pub async fn sharers(context: &Context, namespace: &str, selector: &Selector) -> kube::Result<Vec<String>> {
    let pods = counted(context, namespace, selector).await?;
    Ok(pods.iter().filter(|(_, facts)| facts.injected).map(|(pod, _)| pod.uid.clone()).collect())
}

async fn find_scaled_to_zero(
    context: &Context,
    namespace: &str,
    selector: &Selector,
) -> kube::Result<Option<String>> {
    let list = ListParams::default();
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), namespace);
    for object in deployments.list(&list).await? {
        let Some(spec) = object.spec else { continue };
        let labels = spec.template.metadata.and_then(|metadata| metadata.labels).unwrap_or_default();
        if spec.replicas == Some(0) && selector.matches(&labels) {
            return Ok(Some(format!("deployment/{}", object.metadata.name.unwrap_or_default())));
        }
    }
    let sets: Api<StatefulSet> = Api::namespaced(context.client.clone(), namespace);
    for object in sets.list(&list).await? {
        let Some(spec) = object.spec else { continue };
        let labels = spec.template.metadata.and_then(|metadata| metadata.labels).unwrap_or_default();
        if spec.replicas == Some(0) && selector.matches(&labels) {
            return Ok(Some(format!("statefulset/{}", object.metadata.name.unwrap_or_default())));
        }
    }
    Ok(None)
}
