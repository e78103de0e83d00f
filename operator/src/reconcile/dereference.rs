//! Finds the pods and confirmations of a policy, and the routes to these pods. Reads the tables in memory, and
//! sends requests to the API server for the containers of pods that are new, for addresses of pods if an
//! EndpointSlice could list them, and for workloads if there are no pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _};
use sluice_config::PolicyHash;
use sluice_config::policy::DEFAULT_STORE;

use crate::cluster::pods::pod::{Pod, PodFacts};
use crate::cluster::services::Service;
use crate::distribution::session::Confirmation;
use crate::events::pods::{Unlimited, UnlimitedPod};
use crate::injection::decide::is_opted_out;
use crate::object_key::{PolicyKey, StoreKey};
use crate::pod_selector::PodSelector;
use crate::reconcile::context::Context;
use crate::reconcile::facts::{CountedPod, Facts, Injection, StoreFact};
use crate::reconcile::label_sets::{label_set, unique_by};
use crate::reconcile::select_pods::SelectedPods;

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
    selector: &PodSelector,
) -> kube::Result<Vec<Counted>> {
    let pods = count_pods(context, &key.namespace, selector).await?;
    let replicas = pods.iter().filter(|(_, facts)| facts.injected).map(|(pod, _)| pod.uid.clone());
    context.hub.set_replicas(uid, selector, replicas.collect());
    Ok(pods)
}

async fn count_pods(
    context: &Context,
    namespace: &str,
    selector: &PodSelector,
) -> kube::Result<Vec<Counted>> {
    let running = context.pods.select(namespace, |pod| !pod.deleting && selector.matches(&pod.labels));
    futures::stream::iter(running)
        .map(|pod| async move {
            let facts = context.pods.facts(&pod).await?;
            // A label opts the next pod out. A sidecar that runs enforces the policy whatever the label says now.
            let is_counted =
                |facts: &Arc<PodFacts>| !facts.host_network && (facts.injected || !is_opted_out(&pod.labels));
            Ok::<_, kube::Error>(facts.filter(is_counted).map(|facts| (pod, facts)))
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
    selected: &SelectedPods,
    store: &str,
    pods: Vec<Counted>,
) -> kube::Result<Facts> {
    let namespace = &key.namespace;
    let services = context.services.in_namespace(namespace);
    let endpoint_slices = context.endpoint_slices.in_namespace(namespace);
    let unlimited = find_unlimited(context, namespace, &services, &pods).await?;
    let with_reports = |(pod, facts): Counted| async {
        let addresses = match endpoint_slices.as_slice() {
            [] => Arc::default(),
            _ => context.pods.addresses(&pod).await?,
        };
        Ok::<_, kube::Error>(CountedPod {
            confirmation: context.hub.confirmation(&pod.uid, uid, hash),
            untrusted_proxy: context.hub.untrusted_proxy(&pod.uid, uid, hash),
            nearly_full: context.hub.nearly_full(&pod.uid, uid, hash),
            store: context.hub.store_report(&pod.uid, store),
            unreachable: context.hub.unreachable(&pod.uid),
            pod,
            facts,
            addresses,
        })
    };
    let pods: Vec<CountedPod> =
        futures::stream::iter(pods).map(with_reports).buffered(MAX_CONCURRENT).try_collect().await?;
    let (mut idle, mut absent) = (None, None);
    if pods.iter().any(|pod| pod.confirmation == Confirmation::Applied) {
        context.absent.forget(key);
    } else {
        let is_running = |name: &str| pods.iter().any(|pod| pod.pod.name == name);
        let found = context.absent.find(&context.client, key, &selected.selector, is_running).await?;
        absent.clone_from(&found.reason);
        if pods.is_empty() {
            absent = absent.or_else(|| found.empty.clone());
            idle = selected.idle.clone().or_else(|| found.idle.clone());
        }
    }
    Ok(Facts {
        pods,
        unlimited,
        services,
        endpoint_slices,
        network_policies: context.network_policies.in_namespace(namespace),
        idle,
        absent,
        injection: Injection {
            is_labelled: context.namespaces.is_labelled(namespace),
            labelled_since: context.namespaces.labelled_since(namespace),
            is_excluded: context.webhook_path.excludes(namespace),
            webhook: context.webhook_path.problem(),
            operator_since: Some(context.started),
            authority: context.authority_maps.problem(namespace),
        },
        store: store_fact(context, namespace, store),
    })
}

/// Finds the store that a policy counts in.
fn store_fact(context: &Context, namespace: &str, store: &str) -> StoreFact {
    if store == DEFAULT_STORE {
        return StoreFact::Default;
    }
    let stores = context.stores.borrow();
    let found = stores.as_ref().and_then(|stores| stores.get(&StoreKey::new(namespace, store)));
    found.cloned().map_or(StoreFact::Missing, StoreFact::Known)
}

/// Finds the pods without limits behind the Services that select a counted pod.
async fn find_unlimited(
    context: &Context,
    namespace: &str,
    services: &[Arc<Service>],
    counted: &[Counted],
) -> kube::Result<Vec<UnlimitedPod>> {
    let keys: BTreeSet<&String> = services.iter().flat_map(|service| service.selector.keys()).collect();
    let kinds = unique_by(counted, |(pod, _)| label_set(&pod.labels, &keys));
    let of_counted: Vec<_> = services
        .iter()
        .filter(|service| !service.is_ignored && kinds.iter().any(|(pod, _)| service.selects(&pod.labels)))
        .collect();
    let counted: BTreeSet<_> = counted.iter().map(|(pod, _)| &pod.uid).collect();
    let others = context.pods.select(namespace, |pod| {
        !pod.deleting
            && !counted.contains(&pod.uid)
            && of_counted.iter().any(|service| service.selects(&pod.labels))
    });
    futures::stream::iter(others)
        .map(|pod| async {
            Ok::<_, kube::Error>(unlimited(context, &pod).await?.map(|reason| (pod, reason)))
        })
        .buffered(MAX_CONCURRENT)
        .try_filter_map(|found| async { Ok(found) })
        .map_ok(|(pod, reason)| {
            let services = of_counted.iter().filter(|service| service.selects(&pod.labels));
            UnlimitedPod { services: services.map(|service| service.name.clone()).collect(), pod, reason }
        })
        .try_collect()
        .await
}

/// Returns why a pod applies no limits, or `None` if it may apply some or no longer exists.
async fn unlimited(context: &Context, pod: &Arc<Pod>) -> kube::Result<Option<Unlimited>> {
    let Some(facts) = context.pods.facts(pod).await? else { return Ok(None) };
    Ok(match &facts.captured {
        _ if facts.injected => None,
        _ if is_opted_out(&pod.labels) => Some(Unlimited::OptedOut),
        _ if facts.host_network => Some(Unlimited::HostNetwork),
        Ok(_) => Some(Unlimited::NoSidecar),
        Err(error) => Some(Unlimited::Uncapturable(error.clone())),
    })
}
