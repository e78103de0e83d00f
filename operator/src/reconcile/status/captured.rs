//! The condition Captured: no known route to the pods bypasses the sidecars, and no NetworkPolicy blocks them.
//!
//! - `services`: Services whose ports lead past the sidecars, headless ones among them.
//! - `endpoint_slices`: Services whose endpoints a user or another controller writes.
//! - `pods`: hostPorts, and pods without limits behind a Service.
//! - `network_policies`: NetworkPolicies that allow the application's port and block the sidecar's.
//! - `bypass`: the result of each of them.
//! - `service`: whether gateways ask the service about the policy.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluice_crds::conditions::{reasons, types};

use super::finding::Finding;
use super::observed::Observed;
use super::text::{list, sentences};
use crate::injection::skip::Skip;
use crate::reconcile::facts::{CountedPod, Facts, Outcome};
use crate::reconcile::label_sets::{label_set, unique_by};

mod bypass;
mod endpoint_slices;
mod network_policies;
mod pods;
mod service;
mod services;
#[cfg(test)]
mod tests;

/// Results that only the reports of the service can have.
const REPORTED: [(&str, &str); 1] = [("True", reasons::CHECKS_ARRIVE)];

pub(super) fn captured(observed: &Observed<'_>) -> Finding {
    let Outcome::Published { enforced_by, policy, .. } = observed.outcome else {
        return by_sidecars(observed);
    };
    let sidecars = enforced_by.sidecar.then(|| by_sidecars(observed));
    let service = enforced_by.service.then(|| service::asked(observed, policy));
    match (sidecars, service) {
        (Some(sidecars), Some(service)) if sidecars.status == "True" => {
            let message = format!("{} {}", sidecars.message, service.message);
            Finding { message, ..service }.or_before(observed, types::CAPTURED, &REPORTED)
        }
        (None, Some(service)) => service.or_before(observed, types::CAPTURED, &REPORTED),
        (Some(found), _) => found,
        // Something enforces each policy.
        (None, None) => by_sidecars(observed),
    }
}

fn by_sidecars(observed: &Observed<'_>) -> Finding {
    let facts = observed.facts;
    for pod in &facts.pods {
        if let Err(error) = &pod.facts.captured {
            let message = format!("Pod {} cannot get a sidecar: {error}.", pod.pod.name);
            let reason = match error {
                Skip::Capture(_) => reasons::NO_NAMED_PORT,
                Skip::Removed => reasons::SIDECAR_REMOVED,
                _ => reasons::NOT_INJECTED,
            };
            return Finding::new("False", reason, message);
        }
    }
    let namespace = observed.key.namespace.as_str();
    let kinds = kinds_of_pods(facts);
    let mut bypasses = BTreeSet::new();
    for pod in &kinds {
        bypasses.extend(services::bypasses(namespace, pod, &facts.services));
        bypasses.extend(pods::host_ports(namespace, pod));
        bypasses.extend(network_policies::blocked(namespace, pod, &facts.network_policies));
    }
    bypasses.extend(endpoint_slices::bypasses(namespace, facts));
    bypasses.extend(pods::unlimited(observed));
    match bypasses.first() {
        Some(first) => Finding::new(
            "False",
            first.kind.reason(),
            sentences(bypasses.iter().map(|bypass| bypass.text.as_str())),
        ),
        None => Finding::new("True", reasons::ALL_TRAFFIC, without_bypasses(facts, &kinds)),
    }
}

/// Returns one pod of each kind. Pods of one kind have the same workload and the same containers, and every
/// Service and NetworkPolicy selects all of them or none.
fn kinds_of_pods(facts: &Facts) -> Vec<&CountedPod> {
    let services = facts.services.iter().flat_map(|service| service.selector.keys());
    let policies = facts.network_policies.iter().flat_map(|policy| &policy.selector_keys);
    let keys: BTreeSet<&String> = services.chain(policies).collect();
    let mut pods: Vec<_> = facts.pods.iter().collect();
    pods.dedup_by(|one, other| {
        Arc::ptr_eq(&one.pod.labels, &other.pod.labels)
            && Arc::ptr_eq(&one.facts, &other.facts)
            && workload(one) == workload(other)
    });
    let kinds = unique_by(&pods, |pod| (label_set(&pod.pod.labels, &keys), workload(pod), &*pod.facts));
    kinds.into_iter().copied().collect()
}

/// Returns the workload of a pod, or its name if it has none.
fn workload(pod: &CountedPod) -> &str {
    pod.pod.owner.as_ref().unwrap_or(&pod.pod.name)
}

/// Returns the message of a True condition. It names the Services that are left out.
fn without_bypasses(facts: &Facts, kinds: &[&CountedPod]) -> String {
    let text = "No known route bypasses the sidecars.";
    let ignored: Vec<_> = facts
        .services
        .iter()
        .filter(|service| service.is_ignored && kinds.iter().any(|pod| service.selects(&pod.pod.labels)))
        .map(ToString::to_string)
        .collect();
    if ignored.is_empty() {
        return text.into();
    }
    let annotation = sluice_crds::BYPASS_ANNOTATION;
    format!("{text} Not examined, because of the annotation {annotation}: {}.", list(ignored))
}
