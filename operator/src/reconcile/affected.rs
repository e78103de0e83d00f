//! Finds what a change of the cluster affects. The tables are kept up to date, the policies that a change affects are queued, and their
//! replicas are counted. What sidecars enforce does not wait for the status of any policy.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use sluice_host::logging::told;
use tokio::sync::Semaphore;

use crate::cluster::pods::pod::Pod;
use crate::cluster::watch::Change;
use crate::distribution::publication::Places;
use crate::names::PolicyKey;
use crate::queue::Claim;
use crate::reconcile::context::Context;
use crate::reconcile::dereference;
use crate::reconcile::observe::{CountedPods, count};
use crate::reconcile::pace::{OF_A_POD, SETTLE};

/// Maximum number of namespaces whose pods are counted at the same time: a new pod is read for that.
const MAX_COUNTS: usize = 8;
/// Longest time for which changes of replicas wait for others.
pub(super) const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Delay before pods that could not be read are counted again.
const RETRY: Duration = Duration::from_secs(5);

/// Keeps the tables up to date, and queues the policies that a change affects.
pub async fn watch(context: &Context) {
    let Context { inputs, outputs, memory, .. } = context;
    let client = || outputs.client.clone();
    let changed = |namespace: &str| outputs.queue.add_all(inputs.policies.in_namespace(namespace));
    let observed = |namespace: &str| outputs.queue.add_observed(inputs.policies.in_namespace(namespace));
    let policies = inputs.policies.watch(client(), |change| match change {
        Change::Applied(key) => outputs.queue.add(key),
        // Immediately, without a reconcile: sidecars must not enforce a policy that does not exist.
        Change::Deleted { uid, key } => {
            outputs.hub.remove(&uid);
            dereference::watch_targets(context, &key, None);
            dereference::watch_contents(context, &key, None);
            memory.forget(&key);
            outputs.metrics.set_conditions(&key, &[]);
        }
        // The controller opens the hub when all listed policies have been published.
        Change::Listed => {}
    });
    let pods = inputs.pods.watch(|uid, before, after| {
        match (before, after) {
            (_, Some(pod)) => outputs.hub.set_pod_labels(uid, &pod.labels),
            (before, None) => {
                outputs.hub.remove_pod(uid);
                before.iter().for_each(|pod| memory.last_counted.forget(&pod.namespace));
            }
        }
        pod_changed(context, before, after);
    });
    let routes = async {
        tokio::join!(
            inputs.services.watch(client(), changed),
            inputs.inference_pools.watch(client(), observed),
            inputs.endpoint_slices.watch(client(), observed),
            inputs.network_policies.watch(client(), observed),
        )
    };
    let stores = async {
        let mut resolutions = inputs.stores.subscribe();
        let mut before = BTreeMap::new();
        resolutions.mark_changed();
        // The sender lives as long as the context.
        while resolutions.changed().await.is_ok() {
            let now = resolutions.borrow_and_update().clone().unwrap_or_default();
            let keys = now.keys().chain(before.keys()).filter(|key| now.get(*key) != before.get(*key));
            let namespaces: BTreeSet<_> = keys.map(|key| key.namespace.as_str()).collect();
            namespaces.into_iter().for_each(observed);
            before = now;
        }
    };
    // The API server ceases to call the webhook, or calls it again.
    let webhook = async {
        loop {
            inputs.webhook_path.changed().await;
            outputs.queue.add_observed(inputs.policies.keys());
        }
    };
    // A pod without a sidecar may be able to get one now.
    let bounds = async {
        loop {
            inputs.limit_ranges.changed().await.iter().for_each(|namespace| observed(namespace));
        }
    };
    let namespaces = inputs.namespaces.watch(client(), observed);
    let labelled_pods = inputs.namespaces.watch_pods(client());
    tokio::join!(policies, pods, routes, namespaces, labelled_pods, stores, webhook, bounds);
}

/// Queues the policies that a change of a pod affects, and the namespaces whose replicas it may change. The table of pods must have
/// the change already.
fn pod_changed(context: &Context, before: Option<&Pod>, after: Option<&Pod>) {
    let Context { inputs, outputs, home, .. } = context;
    let Some(pod) = after.or(before) else { return };
    let labels: Vec<_> = before.into_iter().chain(after).map(|pod| &*pod.labels).collect();
    if home.service.as_ref().is_some_and(|service| service.has_pod(&pod.namespace, &pod.labels)) {
        let policies = outputs.hub.enforced_by_service();
        outputs.uncounted.add_observed(policies.iter().map(|key| key.namespace.clone()));
        outputs.queue.add_observed(policies);
    } else if before != after {
        outputs.uncounted.add_observed([pod.namespace.clone()]);
        outputs.queue.add_observed(affected(context, pod, &labels));
    } else if !inputs.endpoint_slices.in_namespace(&pod.namespace).is_empty() {
        // Only its status has changed. Of that, only its address matters, if an EndpointSlice could list it.
        outputs.queue.add_observed(affected(context, pod, &labels));
    }
}

/// Returns the policies that select a pod, before or after its change, and those whose pods are behind the same Service, if it may
/// have no sidecar.
fn affected(context: &Context, pod: &Pod, labels: &[&BTreeMap<String, String>]) -> BTreeSet<PolicyKey> {
    let Context { inputs, outputs, memory, .. } = context;
    let mut policies: BTreeSet<_> = outputs.hub.selecting(&pod.namespace, labels).into_iter().collect();
    if inputs.pods.facts_if_known(pod).is_some_and(|facts| facts.injected) {
        return policies;
    }
    let services = inputs.services_in(&pod.namespace);
    let behind = services.iter().filter(|service| labels.iter().any(|labels| service.selects(labels)));
    let behind: Vec<_> = behind.map(ToString::to_string).collect();
    policies.extend(memory.services_of_policies.sharing(&pod.namespace, &behind));
    policies
}

/// Counts the replicas of the policies of the namespaces that are queued for it.
pub async fn count_replicas(context: &Context) {
    let permits = Semaphore::new(MAX_COUNTS);
    let mut running = FuturesUnordered::new();
    // A part of a list would be wrong.
    context.inputs.pods.listed.wait().await;
    loop {
        tokio::select! {
            claim = context.outputs.uncounted.next() => running.push(count_claimed(context, claim, &permits)),
            Some(()) = running.next() => {}
        }
    }
}

/// Counts the replicas of a namespace. It stays claimed for a while, so that the changes of a rollout are counted together.
async fn count_claimed(context: &Context, claim: Claim<String>, permits: &Semaphore) {
    tokio::time::sleep(SETTLE).await;
    let namespace = claim.key();
    let permit = permits.acquire().await;
    claim.observe();
    let counted = count_namespace(context, namespace).await;
    drop(permit);
    match counted {
        Ok(pods) => {
            let pods = u32::try_from(pods).unwrap_or(u32::MAX);
            tokio::time::sleep(OF_A_POD.saturating_mul(pods).min(COUNT_INTERVAL)).await;
        }
        Err(error) => {
            tracing::warn!(
                namespace,
                "its pods could not be counted, which is tried again: {}",
                told(&error)
            );
            context.outputs.uncounted.add_after(namespace.clone(), RETRY);
        }
    }
}

/// Counts the replicas of the policies of a namespace: the pods with a sidecar, and those of the service. A pod without a session is a
/// replica too, because it admits requests while it cannot reach the operator. Returns the largest number of pods of a policy. A policy
/// whose pods cannot be read fails alone.
async fn count_namespace(context: &Context, namespace: &str) -> kube::Result<usize> {
    let (mut most, mut failed) = (0, None);
    for (uid, selector, by_service) in context.outputs.hub.counted_policies(namespace) {
        let CountedPods { selected, service } = match count(context, namespace, &selector, by_service).await {
            Ok(counted) => counted,
            Err(error) => {
                failed.get_or_insert(error);
                continue;
            }
        };
        if context.outputs.hub.is_enforced_by_service(&uid) != by_service {
            // An edit has changed it meanwhile, and queued the namespace again.
            continue;
        }
        let replicas = match service.is_empty() {
            true => selected.injected.clone(),
            // A pod of the service that has a sidecar counts once.
            false => Places::of(selected.injected.pods().chain(service.iter().map(|pod| pod.uid.as_str()))),
        };
        context.outputs.hub.set_replicas(&uid, &selector, &replicas);
        most = most.max(selected.pods.len());
    }
    failed.map_or(Ok(most), Err)
}
