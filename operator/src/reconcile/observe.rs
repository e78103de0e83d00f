//! Finds the pods and confirmations of a policy, and the routes to these pods. Reads the tables in memory, and
//! sends requests to the API server for the containers of pods that are new, for addresses of pods if an
//! EndpointSlice could list them, and for workloads if there are no pods.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use sluice_config::PolicyHash;
use sluice_config::policy::DEFAULT_STORE;
use tokio::time::Instant;

use crate::cluster::pods::pod::{Pod, PodFacts, for_shared};
use crate::cluster::routes::Service;
use crate::distribution::session::{Confirmation, Reported};
use crate::events::pods::{Unlimited, UnlimitedPod};
use crate::injection::decide::is_opted_out;
use crate::names::{PodSelector, PolicyKey, StoreKey};
use crate::reconcile::context::Context;
use crate::reconcile::counted::Counted;
use crate::reconcile::facts::{
    CountedPod, Facts, NamespaceInjection, SelectedPods, StoreFact, label_set, unique_by,
};

/// The pods that count for a policy.
pub struct CountedPods {
    /// Those that it selects.
    pub selected: Arc<Counted>,
    /// Those of the service, if it enforces the policy, ordered by name.
    pub service: Vec<Arc<Pod>>,
}

/// Returns the pods that count for a policy of a namespace.
pub async fn count(
    context: &Context,
    namespace: &str,
    selector: &PodSelector,
    by_service: bool,
) -> kube::Result<CountedPods> {
    let Context { inputs, memory, home, .. } = context;
    let selected = memory.last_counted.count(&inputs.pods, namespace, selector).await?;
    let service = home.service.as_ref().filter(|_| by_service).map(|account| {
        let runs = |pod: &Pod| pod.ends.is_none() && account.has_pod(&pod.namespace, &pod.labels);
        inputs.pods.select(&account.namespace, runs)
    });
    Ok(CountedPods { selected, service: service.unwrap_or_default() })
}

/// Collects the facts about a published policy, given its counted pods, as they are `since` a moment or later.
pub async fn observe(
    context: &Context,
    key: &PolicyKey,
    (uid, hash): (&str, &PolicyHash),
    since: Instant,
    selected: &SelectedPods,
    store: &str,
    CountedPods { selected: pods, service }: CountedPods,
) -> kube::Result<Facts> {
    let namespace = &key.namespace;
    let services = context.inputs.services_in(namespace);
    let endpoint_slices = context.inputs.endpoint_slices.in_namespace(namespace);
    let unlimited = find_unlimited(context, key, &services, &pods.pods).await?;
    let (pods, facts): (Vec<_>, Vec<_>) = pods.pods.iter().cloned().unzip();
    let addresses = match endpoint_slices.as_slice() {
        [] => vec![None; pods.len()],
        _ => context.inputs.pods.addresses(namespace, &pods).await?,
    };
    let reported = |pods: &[Arc<Pod>]| {
        context.outputs.hub.reported(pods.iter().map(|pod| pod.uid.as_str()), uid, hash, (namespace, store))
    };
    let counted =
        |(((pod, facts), addresses), reported): (((Arc<Pod>, _), Option<_>), Reported)| CountedPod {
            confirmation: reported.confirmation,
            findings: reported.findings,
            store: reported.store,
            unreachable: reported.unreachable,
            is_service: false,
            pod,
            facts,
            addresses: addresses.unwrap_or_default(),
        };
    let reports = reported(&pods);
    let pods: Vec<_> = pods.into_iter().zip(facts).zip(addresses).zip(reports).map(counted).collect();
    let reports = reported(&service);
    let facts = std::iter::repeat_with(|| Arc::new(PodFacts::of_service()));
    let service = service.into_iter().zip(facts).zip(std::iter::repeat(None)).zip(reports).map(counted);
    let service: Vec<_> = service.map(|pod| CountedPod { is_service: true, ..pod }).collect();
    let (mut idle, mut absent) = (None, None);
    let is_selective = !selected.selector.alternatives.is_empty() || !selected.targets.is_empty();
    if !is_selective || pods.iter().any(|pod| pod.confirmation == Confirmation::Applied) {
        context.memory.absent.forget(key);
    } else {
        let is_running = |name: &str| pods.iter().any(|pod| pod.pod.name == name);
        let found = context
            .memory
            .absent
            .find(&context.outputs.client, key, since, &selected.selector, is_running)
            .await?;
        absent.clone_from(&found.reason);
        if pods.is_empty() {
            absent = absent.or_else(|| found.empty.clone());
            idle = selected.idle.clone().or_else(|| found.idle.clone());
        }
    }
    Ok(Facts {
        pods,
        service,
        unlimited,
        services,
        endpoint_slices,
        network_policies: context.inputs.network_policies.in_namespace(namespace),
        idle,
        absent,
        injection: NamespaceInjection {
            is_labelled: context.inputs.namespaces.is_labelled(namespace),
            labelled_since: context.inputs.namespaces.labelled_since(namespace),
            is_excluded: context.inputs.webhook_path.excludes(namespace),
            webhook: context.inputs.webhook_path.problem(),
            operator_since: Some(context.started),
            authority: context.inputs.authority_maps.problem(namespace),
        },
        store: store_fact(context, namespace, store),
    })
}

/// Finds the store that a policy counts in.
fn store_fact(context: &Context, namespace: &str, store: &str) -> StoreFact {
    if store == DEFAULT_STORE {
        return StoreFact::Default;
    }
    let stores = context.inputs.stores.borrow();
    let found = stores.as_ref().and_then(|stores| stores.get(&StoreKey::new(namespace, store)));
    found.cloned().map_or(StoreFact::Missing, StoreFact::Known)
}

/// Finds the pods without limits behind the Services that select a counted pod.
async fn find_unlimited(
    context: &Context,
    key: &PolicyKey,
    services: &[Arc<Service>],
    counted: &[(Arc<Pod>, Arc<PodFacts>)],
) -> kube::Result<Vec<UnlimitedPod>> {
    let keys: BTreeSet<&String> = services.iter().flat_map(|service| service.selector.keys()).collect();
    let mut kinds: Vec<_> = counted.iter().map(|(pod, _)| &pod.labels).collect();
    kinds.dedup_by(|one, other| Arc::ptr_eq(one, other));
    let kinds = unique_by(&kinds, |labels| label_set(labels, &keys));
    let of_counted: Vec<_> = services
        .iter()
        .filter(|service| !service.is_ignored && kinds.iter().any(|labels| service.selects(labels)))
        .collect();
    let names = of_counted.iter().map(ToString::to_string);
    context.memory.services_of_policies.set(key, names.collect());
    if of_counted.is_empty() {
        return Ok(Vec::new());
    }
    let counted: HashSet<_, RandomState> = counted.iter().map(|(pod, _)| &pod.uid).collect();
    let mut is_behind = for_shared(|labels| of_counted.iter().any(|service| service.selects(labels)));
    let others = context.inputs.pods.select(&key.namespace, |pod| {
        pod.ends.is_none() && is_behind(&pod.labels) && !counted.contains(&pod.uid)
    });
    let facts = context.inputs.pods.facts(&key.namespace, &others).await?;
    let unlimited = others.into_iter().zip(facts).filter_map(|(pod, facts)| {
        let reason = unlimited(&pod, &*facts?)?;
        let services = of_counted.iter().filter(|service| service.selects(&pod.labels));
        let services = services.map(ToString::to_string).collect();
        Some(UnlimitedPod { services, pod, reason })
    });
    Ok(unlimited.collect())
}

/// Returns why a pod applies no limits, or `None` if it may apply some.
fn unlimited(pod: &Pod, facts: &PodFacts) -> Option<Unlimited> {
    match &facts.captured {
        _ if facts.injected => None,
        _ if is_opted_out(&pod.labels) => Some(Unlimited::OptedOut),
        _ if facts.host_network => Some(Unlimited::HostNetwork),
        Ok(_) => Some(Unlimited::NoSidecar),
        Err(error) => Some(Unlimited::Uncapturable(error.clone())),
    }
}
