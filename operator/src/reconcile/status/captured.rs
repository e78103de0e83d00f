//! The condition Captured: no Service and no hostPort leads traffic past the sidecars.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_crds::PORTS_ANNOTATION;
use sluice_crds::conditions::reasons;

use super::finding::Finding;
use super::text::list;
use crate::capture::CapturedPort;
use crate::cluster::services::{Service, ServicePort};
use crate::reconcile::facts::{CountedPod, Facts};

#[cfg(test)]
mod tests;

pub(super) fn captured(facts: &Facts) -> Finding {
    for pod in &facts.pods {
        if let Err(error) = &pod.facts.captured {
            let message = format!("Pod {}: {error}.", pod.pod.name);
            return Finding::new("False", reasons::NO_NAMED_PORT, message);
        }
    }
    let bypasses: BTreeSet<String> =
        facts.pods.iter().flat_map(|pod| bypasses_of_pod(pod, &facts.services)).collect();
    if bypasses.is_empty() {
        Finding::new("True", reasons::ALL_TRAFFIC, "No Service bypasses the sidecars.")
    } else {
        Finding::new("False", reasons::BYPASSED_BY_SERVICE, format!("{}.", list(bypasses)))
    }
}

/// Returns how traffic bypasses the sidecar of a pod.
fn bypasses_of_pod(pod: &CountedPod, services: &[Arc<Service>]) -> Vec<String> {
    let captured = pod.facts.captured.as_deref().unwrap_or_default();
    let mut bypasses = Vec::new();
    for port in captured.iter().filter(|port| pod.facts.host_ports.contains(&port.application)) {
        bypasses.push(format!(
            "Pod {} exposes port {} as a hostPort, which bypasses the sidecar: remove the hostPort",
            pod.pod.name, port.application
        ));
    }
    let selects = |service: &&Arc<Service>| {
        !service.selector.is_empty() && service.selector.iter().all(|(k, v)| pod.pod.labels.get(k) == Some(v))
    };
    for service in services.iter().filter(selects) {
        if !pod.facts.injected {
            bypasses.push(format!(
                "Service {} sends traffic to pods without a sidecar: see the condition Programmed",
                service.name
            ));
            continue;
        }
        let ports = service.ports.iter();
        bypasses
            .extend(ports.filter_map(|port| bypass(service, port, captured, pod.facts.has_ports_annotation)));
    }
    bypasses
}

/// Returns how a port of a Service bypasses the sidecars of the pods that it selects, or `None` if it does
/// not.
fn bypass(
    service: &Service,
    port: &ServicePort,
    captured: &[CapturedPort],
    has_ports_annotation: bool,
) -> Option<String> {
    let targets = |target: &str| {
        format!("Port {} of Service {} targets port {target} of the pods", port.port, service.name)
    };
    let target = match &port.target {
        IntOrString::Int(number) => {
            if captured.iter().any(|c| i32::from(c.sidecar) == *number) {
                return None;
            }
            if let Some(bypassed) = captured.iter().find(|c| i32::from(c.application) == *number) {
                let targets = targets(&number.to_string());
                let name = &bypassed.name;
                return Some(format!(
                    "{targets}, which bypasses the sidecars: set its targetPort to {name:?}"
                ));
            }
            number.to_string()
        }
        IntOrString::String(name) if captured.iter().any(|c| c.name == *name) => return None,
        IntOrString::String(name) => name.clone(),
    };
    // The annotation lists all ports that serve requests, so another port, such as one for metrics, is left
    // out on purpose.
    (!has_ports_annotation).then(|| {
        let targets = targets(&target);
        format!(
            "{targets}, which no sidecar captures: list the ports that serve requests in the annotation \
             {PORTS_ANNOTATION} of the pods"
        )
    })
}
