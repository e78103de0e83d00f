//! Services whose ports lead past the sidecars of the pods that they select.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;
use sluice_crds::PORTS_ANNOTATION;

use super::bypass::{self, Bypass};
use crate::cluster::pods::pod::PodFacts;
use crate::cluster::services::{Kind, Service, ServicePort};
use crate::injection::capture::{CapturedPort, TakenName};
use crate::reconcile::facts::CountedPod;
use crate::reconcile::status::mend;

/// Name of the sidecar's admin port.
const ADMIN_PORT_NAME: &str = "sluice-admin";

/// InferencePools, as kubectl names them: another group has a kind of the same name.
const POOL: &str = "inferencepools.inference.networking.k8s.io";

/// Returns how Services bypass the sidecar of a pod.
pub(super) fn bypasses(namespace: &str, pod: &CountedPod, services: &[Arc<Service>]) -> Vec<Bypass> {
    let mut found = Vec::new();
    for service in services.iter().filter(|s| !s.is_ignored && s.selects(&pod.pod.labels)) {
        if pod.facts.injected {
            found.extend(ports(namespace, pod, service));
        } else {
            let text =
                format!("{service} sends requests to pods without a sidecar: see the condition Programmed.");
            found.push(Bypass { kind: bypass::Kind::Pod, text });
        }
    }
    found
}

/// Returns how the ports of a Service bypass the sidecar of a pod to which it leads.
pub(super) fn ports(namespace: &str, pod: &CountedPod, service: &Service) -> Vec<Bypass> {
    let route =
        Route { namespace, pod, service, captured: pod.facts.captured.as_deref().unwrap_or_default() };
    let text = |port| {
        let by_name = route.by_taken_name(port);
        by_name.or_else(|| if service.headless { route.by_address(port) } else { route.by_target(port) })
    };
    let mut texts: Vec<String> = service.ports.iter().filter_map(text).collect();
    if service.headless && service.is_portless {
        texts.extend(route.without_ports());
    }
    texts.into_iter().map(|text| Bypass { kind: bypass::Kind::Service, text }).collect()
}

/// Returns why a port of the pods that is not captured bypasses the sidecars, and what to do, or `None` if the
/// pod's annotation leaves it out on purpose. `route` is the beginning of the text.
pub(super) fn not_captured(namespace: &str, pod: &CountedPod, route: &str) -> Option<String> {
    // The annotation lists all ports that serve requests.
    if pod.facts.has_ports_annotation {
        return None;
    }
    let names: Vec<_> = pod.facts.captured.iter().flatten().map(|captured| captured.name.as_str()).collect();
    let template = json!({"metadata": {"annotations": {PORTS_ANNOTATION: names.join(",")}}});
    let mend = match mend::patch_template(namespace, pod.pod.owner.as_deref(), &template) {
        Some(command) => format!(
            "If the port serves no requests that are to be limited, run {command}. Otherwise add its name to \
             this annotation."
        ),
        None => {
            format!("List the ports that serve requests in the annotation {PORTS_ANNOTATION} of the pods.")
        }
    };
    Some(format!("{route}, which no sidecar captures. {mend}"))
}

/// Reports whether the sidecar of a pod listens on this port.
pub(super) fn is_of_sidecar(port: i32, pod: &PodFacts) -> bool {
    port == i32::from(pod.admin) || pod.captured.iter().flatten().any(|c| i32::from(c.sidecar) == port)
}

/// The route from a Service to a pod that it selects.
struct Route<'a> {
    namespace: &'a str,
    pod: &'a CountedPod,
    service: &'a Service,
    captured: &'a [CapturedPort],
}

impl Route<'_> {
    /// Returns how a port of a Service leads to another container that has the captured name too.
    fn by_taken_name(&self, port: &ServicePort) -> Option<String> {
        let taken = &self.pod.facts.taken_names;
        let TakenName { name, container } =
            taken.iter().find(|taken| port.target == IntOrString::String(taken.name.clone()))?;
        Some(format!(
            "Port {} of Service {} targets port {name} of the pods, which Kubernetes finds at container {container} of pod {} \
             instead of its sidecar. The container got this name after the webhook of Sluice: `kubectl get \
             mutatingwebhookconfigurations,mutatingadmissionpolicies` lists what may change pods. Remove the name from the \
             container there, then recreate the pods.",
            port.port, self.service.name, self.pod.pod.name
        ))
    }

    /// Returns how a port of a Service with a cluster address bypasses the sidecar. Clients reach the port that
    /// the Service targets.
    fn by_target(&self, port: &ServicePort) -> Option<String> {
        let (namespace, service) = (self.namespace, self.service);
        let target = match &port.target {
            IntOrString::Int(number) if is_of_sidecar(*number, &self.pod.facts) => return None,
            IntOrString::Int(number) => {
                if let Some(bypassed) = self.captured.iter().find(|c| i32::from(c.application) == *number) {
                    let (kind, path, value) = match service.kind {
                        Kind::Service => {
                            ("service", format!("ports/{}/targetPort", port.index), json!(bypassed.name))
                        }
                        Kind::InferencePool => {
                            (POOL, format!("targetPorts/{}/number", port.index), json!(bypassed.sidecar))
                        }
                    };
                    let path = format!("/spec/{path}");
                    let operations = json!([{"op": "replace", "path": path, "value": value}]);
                    return Some(format!(
                        "Port {} of {service} targets port {number} of the pods, which bypasses the \
                         sidecars. Run {}.",
                        port.port,
                        mend::patch(namespace, &format!("{kind} {}", service.name), &operations)
                    ));
                }
                number.to_string()
            }
            IntOrString::String(name) if self.captures(name) => return None,
            IntOrString::String(name) => name.clone(),
        };
        let route = format!("Port {} of {service} targets port {target} of the pods", port.port);
        not_captured(namespace, self.pod, &route)
    }

    /// Returns how a port of a headless Service bypasses the sidecar. Clients connect to the address of a pod
    /// and to the Service's port, or to the targeted port if they look up SRV records. If nothing listens on
    /// the Service's port, they can only use the application's own.
    fn by_address(&self, port: &ServicePort) -> Option<String> {
        let target_is_of_sidecar = match &port.target {
            IntOrString::Int(number) => is_of_sidecar(*number, &self.pod.facts),
            IntOrString::String(name) => self.captures(name),
        };
        if is_of_sidecar(port.port, &self.pod.facts) && target_is_of_sidecar {
            return None;
        }
        let leads_to = |c: &&CapturedPort| {
            [i32::from(c.application), i32::from(c.sidecar)].contains(&port.port)
                || match &port.target {
                    IntOrString::Int(number) => {
                        [i32::from(c.application), i32::from(c.sidecar)].contains(number)
                    }
                    IntOrString::String(name) => *name == c.name,
                }
        };
        let Some(bypassed) = self.captured.iter().find(leads_to) else {
            let route =
                format!("Headless Service {} leads to port {} of the pods", self.service.name, port.port);
            return not_captured(self.namespace, self.pod, &route);
        };
        let path = format!("/spec/ports/{}", port.index);
        let is_taken = self
            .service
            .ports
            .iter()
            .any(|other| other.index != port.index && other.port == i32::from(bypassed.sidecar));
        let operations = if is_taken {
            json!([{"op": "remove", "path": path}])
        } else {
            json!([
                {"op": "replace", "path": format!("{path}/port"), "value": bypassed.sidecar},
                {"op": "replace", "path": format!("{path}/targetPort"), "value": bypassed.name},
            ])
        };
        Some(self.headless(bypassed, &operations))
    }

    /// Returns how a headless Service without ports bypasses the sidecar.
    fn without_ports(&self) -> Option<String> {
        let bypassed = self.captured.first()?;
        let port = json!({"name": bypassed.name, "port": bypassed.sidecar, "targetPort": bypassed.name});
        let operations = json!([{"op": "add", "path": "/spec/ports", "value": [port]}]);
        Some(self.headless(bypassed, &operations))
    }

    fn headless(&self, bypassed: &CapturedPort, operations: &serde_json::Value) -> String {
        let service = &self.service.name;
        format!(
            "Service {service} is headless: its clients connect to the pods' addresses, where port {} is the \
             application's own and bypasses the sidecars. Let the clients connect to port {}, the sidecars', \
             and run {}. Or, if none of its clients is to be limited, run {}.",
            bypassed.application,
            bypassed.sidecar,
            mend::patch(self.namespace, &format!("service {service}"), operations),
            mend::ignore_service(self.namespace, service),
        )
    }

    fn captures(&self, name: &str) -> bool {
        name == ADMIN_PORT_NAME || self.captured.iter().any(|c| c.name == name)
    }
}
