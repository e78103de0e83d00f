//! The condition Captured: no known route to the pods bypasses the sidecars, and no NetworkPolicy blocks them. Of the service: whether
//! gateways or applications ask it about the policy.
//!
//! - `routes`: Services, EndpointSlices and NetworkPolicies.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use sluice_config::CompiledPolicy;
use sluice_config::matches::Match;
use sluice_crds::INJECT_LABEL;
use sluice_crds::conditions::{reasons, types};

use crate::cluster::pods::pod::Pod;
use crate::conditions::Finding;
use crate::events::pods::{Unlimited, UnlimitedPod};
use crate::injection::decide::Skip;
use crate::reconcile::facts::{CountedPod, Facts, Observed, Outcome, label_set, unique_by};
use crate::reconcile::status::captured::routes::{Bypass, BypassKind};
use crate::reconcile::status::text::{self, list, sentences};

mod routes;
#[cfg(test)]
mod tests;

/// Results that only the reports of the service can have.
const REPORTED: [(&str, &str); 1] = [("True", reasons::CHECKS_ARRIVE)];

pub(super) fn captured(observed: &Observed<'_>) -> Finding {
    let Outcome::Published { enforced_by, policy, .. } = observed.outcome else {
        return by_sidecars(observed);
    };
    let sidecars = enforced_by.sidecar.then(|| by_sidecars(observed));
    let service = enforced_by.service.then(|| asked(observed, policy));
    match (sidecars, service) {
        (Some(sidecars), Some(service)) if sidecars.status == "True" => {
            let message = format!("{} {}", sidecars.message, service.message);
            observed.or_before(Finding { message, ..service }, types::CAPTURED, &REPORTED)
        }
        (None, Some(service)) => observed.or_before(service, types::CAPTURED, &REPORTED),
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
        bypasses.extend(crate::reconcile::status::captured::routes::service_bypasses(
            namespace,
            pod,
            &facts.services,
        ));
        bypasses.extend(host_ports(namespace, pod));
        bypasses.extend(crate::reconcile::status::captured::routes::blocked(
            namespace,
            pod,
            &facts.network_policies,
        ));
    }
    bypasses.extend(crate::reconcile::status::captured::routes::slice_bypasses(namespace, facts));
    bypasses.extend(unlimited(observed));
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

/// Returns how ports of the node bypass the sidecar of a pod.
fn host_ports(namespace: &str, pod: &CountedPod) -> Vec<Bypass> {
    let captured = pod.facts.captured.as_deref().unwrap_or_default();
    let exposed = pod.facts.host_ports.iter();
    let bypassed = exposed.filter(|host| captured.iter().any(|port| port.application == host.port));
    let texts = bypassed.map(|host| {
        let port = json!({"containerPort": host.port, "hostPort": null});
        let template = json!({"spec": {"containers": [{"name": host.container, "ports": [port]}]}});
        let mend = match text::patch_template(namespace, pod.pod.owner.as_deref(), &template) {
            Some(command) => format!("Run {command}"),
            None => "Recreate it without the hostPort".into(),
        };
        let workload = workload_of(&pod.pod);
        format!("Port {} of {workload} is also a hostPort, which bypasses the sidecars. {mend}.", host.port)
    });
    texts.map(|text| Bypass { kind: BypassKind::Pod, text }).collect()
}

/// Returns which pods apply no limits although they are behind the same Services as the selected pods.
fn unlimited(observed: &Observed<'_>) -> Vec<Bypass> {
    let mut found = Vec::new();
    let kinds = unique_by(&observed.facts.unlimited, |pod| {
        (workload_of(&pod.pod), std::mem::discriminant(&pod.reason), &pod.services)
    });
    for pod in kinds {
        let (reason, mend) = reason_and_mend(observed, pod);
        found.extend(pod.services.iter().map(|service| Bypass {
            kind: BypassKind::Pod,
            text: format!(
                "{service} also sends requests to {}, which {reason}. {mend}.",
                workload_of(&pod.pod)
            ),
        }));
    }
    found
}

fn reason_and_mend(observed: &Observed<'_>, pod: &UnlimitedPod) -> (String, String) {
    let namespace = &observed.key.namespace;
    let patch = |template: &Value| {
        let command = text::patch_template(namespace, pod.pod.owner.as_deref(), template);
        command.map(|command| format!("Run {command}"))
    };
    match &pod.reason {
        Unlimited::OptedOut => {
            let label = if observed.facts.injection.is_labelled { Value::Null } else { json!("true") };
            let mend = patch(&json!({"metadata": {"labels": {INJECT_LABEL: label}}}));
            let by_hand = || format!("Recreate it without the label {INJECT_LABEL}");
            let reason = format!("applies no limits because of its label {INJECT_LABEL}=false");
            (reason, mend.unwrap_or_else(by_hand))
        }
        Unlimited::HostNetwork => {
            let mend = patch(&json!({"spec": {"hostNetwork": false}}));
            let by_hand = || "Recreate it without hostNetwork".to_owned();
            let reason = "applies no limits because it uses the network of its host".to_owned();
            (reason, mend.unwrap_or_else(by_hand))
        }
        Unlimited::NoSidecar => {
            let mend = text::add_sidecars(observed, &[&pod.pod]);
            ("has no sidecar".into(), format!("To add it, {mend}"))
        }
        Unlimited::Uncapturable(error) => {
            ("cannot get a sidecar".into(), format!("The reason: {error}. Then recreate the pod"))
        }
    }
}

/// Returns the workload that created a pod, or the pod itself.
fn workload_of(pod: &Pod) -> String {
    pod.owner.clone().unwrap_or_else(|| format!("pod/{}", pod.name))
}

/// Returns whether somebody has asked. Which requests a gateway asks about is in its own configuration, which Sluice does not know.
pub(super) fn asked(observed: &Observed<'_>, policy: &CompiledPolicy) -> Finding {
    let finding = asked_by_anybody(observed, policy);
    let left_out = policy
        .limits
        .iter()
        .filter(|limit| limit.needs_exchange() && limit.matches.iter().all(Match::is_for_requests));
    let left_out: BTreeSet<_> = left_out.map(|limit| limit.name.as_str()).collect();
    if left_out.is_empty() {
        return finding;
    }
    // Without sidecars, a request that meets them is denied.
    let by = if policy.is_shared { "only sidecars enforce" } else { "nothing but sidecars could enforce" };
    let message = format!(
        "{} Of requests that gateways show at authz and auth, {by} {}: they need the response (docs/gateways.md).",
        finding.message,
        list(left_out)
    );
    Finding { message, ..finding }
}

fn asked_by_anybody(observed: &Observed<'_>, policy: &CompiledPolicy) -> Finding {
    let matches = policy.limits.iter().flat_map(|limit| &limit.matches);
    let domains: BTreeSet<_> =
        matches.filter_map(|entry| entry.rls.as_ref()).map(|rls| rls.domain.as_str()).collect();
    if domains.is_empty() {
        return asked_by_applications(observed, policy);
    }
    let domains = list(domains);
    if observed.facts.service.iter().any(|pod| pod.findings.asked) {
        let message = format!(
            "The service is asked about this policy; which requests gateways ask about, by {domains}, is in their own configuration."
        );
        return Finding::new("True", reasons::CHECKS_ARRIVE, message);
    }
    let address = observed.service.map(|service| format!("{}.{}.svc:8081", service.name, service.namespace));
    let message = format!(
        "No gateway has asked the service about {domains} yet. Let one ask {} about this domain, by Envoy's filter \
         envoy.filters.http.ratelimit or what your gateway has for it (docs/service.md).",
        address.as_deref().unwrap_or("the service")
    );
    Finding::new("Unknown", reasons::NO_CHECKS_YET, message)
}

/// Returns whether an application has asked: no limit of the policy is for gateways.
fn asked_by_applications(observed: &Observed<'_>, policy: &CompiledPolicy) -> Finding {
    if observed.facts.service.iter().any(|pod| pod.findings.asked) {
        let message = "Applications or gateways ask the service about this policy; which requests they ask about is up to them.";
        return Finding::new("True", reasons::CHECKS_ARRIVE, message.to_owned());
    }
    let host = observed.service.map(|service| format!("{}.{}.svc", service.name, service.namespace));
    let message = format!(
        "Nobody has asked the service about this policy yet. Let an application send POST /v1/check to {} with the policy {}/{} \
         (docs/checks.md), or a gateway show its requests (docs/gateways.md).",
        host.map_or_else(|| "the service".to_owned(), |host| format!("port 8080 of {host}")),
        policy.namespace,
        policy.name,
    );
    Finding::new("Unknown", reasons::NO_CHECKS_YET, message)
}
