//! Finds the pods, confirmations and Services of a policy. Reads the tables in memory, and sends requests to
//! the API server for the containers of pods that are new and, if there are no pods, for workloads.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::api::{Api, ListParams};
use kube::core::{Selector, SelectorExt as _};
use sluice_config::PolicyHash;
use sluice_crds::INJECT_LABEL;

use crate::cluster::pod::{Pod, PodFacts};
use crate::policy_key::PolicyKey;
use crate::reconcile::context::Context;
use crate::reconcile::facts::{CountedPod, Facts};

/// Maximum number of concurrent requests for pods.
const MAX_CONCURRENT: usize = 8;

/// A counted pod with the facts about its containers.
pub type Counted = (Arc<Pod>, Arc<PodFacts>);

/// Returns the counted pods of a policy, ordered by name, and publishes which of them are its replicas: those
/// with a sidecar. A pod without a session is a replica too, because it admits requests while it cannot reach
/// the operator.
pub async fn count_replicas(
    context: &Context,
    key: &PolicyKey,
    uid: &str,
    selector: &Selector,
) -> kube::Result<Vec<Counted>> {
    let pods = count_pods(context, &key.namespace, selector).await?;
    let replicas = pods.iter().filter(|(_, facts)| facts.injected).map(|(pod, _)| pod.uid.clone());
    context.hub.set_replicas(uid, selector, replicas.collect());
    Ok(pods)
}

async fn count_pods(context: &Context, namespace: &str, selector: &Selector) -> kube::Result<Vec<Counted>> {
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
        .buffered(MAX_CONCURRENT)
        .try_filter_map(|pod| async move { Ok(pod) })
        .try_collect()
        .await
}

/// Collects the facts about a published policy, given its counted pods.
pub async fn dereference(
    context: &Context,
    key: &PolicyKey,
    uid: &str,
    hash: &PolicyHash,
    selector: &Selector,
    pods: Vec<Counted>,
) -> kube::Result<Facts> {
    let scaled_to_zero =
        if pods.is_empty() { find_scaled_to_zero(context, &key.namespace, selector).await? } else { None };
    let with_reports = |(pod, facts): Counted| CountedPod {
        confirmation: context.hub.confirmation(&pod.uid, uid, hash),
        untrusted_proxy: context.hub.untrusted_proxy(&pod.uid, uid, hash),
        store: context.hub.store_report(&pod.uid),
        pod,
        facts,
    };
    Ok(Facts {
        pods: pods.into_iter().map(with_reports).collect(),
        scaled_to_zero,
        services: context.services.in_namespace(&key.namespace),
        namespace_is_labelled: context.namespaces.is_labelled(&key.namespace),
    })
}

/// Finds a workload that is scaled to zero and whose pods the selector would select.
async fn find_scaled_to_zero(
    context: &Context,
    namespace: &str,
    selector: &Selector,
) -> kube::Result<Option<String>> {
    let selects = |template: PodTemplateSpec| {
        selector.matches(&template.metadata.and_then(|metadata| metadata.labels).unwrap_or_default())
    };
    let list = ListParams::default();
    let deployments: Api<Deployment> = Api::namespaced(context.client.clone(), namespace);
    for object in deployments.list(&list).await? {
        let spec = object.spec.filter(|spec| spec.replicas == Some(0));
        if spec.is_some_and(|spec| selects(spec.template)) {
            return Ok(Some(format!("deployment/{}", object.metadata.name.unwrap_or_default())));
        }
    }
    let stateful_sets: Api<StatefulSet> = Api::namespaced(context.client.clone(), namespace);
    for object in stateful_sets.list(&list).await? {
        let spec = object.spec.filter(|spec| spec.replicas == Some(0));
        if spec.is_some_and(|spec| selects(spec.template)) {
            return Ok(Some(format!("statefulset/{}", object.metadata.name.unwrap_or_default())));
        }
    }
    Ok(None)
}
