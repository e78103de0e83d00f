//! Routes that lead past the sidecars: Services whose ports do, EndpointSlices that a user or another controller writes and that list
//! a port of the application, and NetworkPolicies that allow clients of the application's port and block the port of its sidecar.
//! Whether the cluster enforces NetworkPolicies cannot be seen from the API.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::SelectorExt as _;
use serde_json::json;
use sluice_crds::PORTS_ANNOTATION;
use sluice_crds::conditions::reasons;

use crate::cluster::pods::pod::PodFacts;
use crate::cluster::routes::{
    AllowedPort, EndpointSlice, IngressRule, NetworkPolicy, Service, ServiceKind, ServicePort, SlicePort,
};
use crate::injection::capture::{CapturedPort, TakenName};
use crate::reconcile::facts::{CountedPod, Facts, unique_by};
use crate::reconcile::status::text;

/// The kind of a [`Bypass`], which becomes the reason of the condition. The first kind is reported first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum BypassKind {
    Service,
    Pod,
    NetworkPolicy,
}

impl BypassKind {
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Service => reasons::BYPASSED_BY_SERVICE,
            Self::Pod => reasons::BYPASSED_BY_POD,
            Self::NetworkPolicy => reasons::BLOCKED_BY_NETWORK_POLICY,
        }
    }
}

/// A route that bypasses the sidecars or that is blocked before them. Ordered as they are reported.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Bypass {
    pub(super) kind: BypassKind,
    /// Sentences that name the objects and what to do.
    pub(super) text: String,
}

/// Name of the sidecar's admin port.
const ADMIN_PORT_NAME: &str = "sluice-admin";

/// InferencePools, as kubectl names them: another group has a kind of the same name.
const POOL: &str = "inferencepools.inference.networking.k8s.io";

/// Returns how Services bypass the sidecar of a pod.
pub(super) fn service_bypasses(namespace: &str, pod: &CountedPod, services: &[Arc<Service>]) -> Vec<Bypass> {
    let mut found = Vec::new();
    for service in services.iter().filter(|s| !s.is_ignored && s.selects(&pod.pod.labels)) {
        if pod.facts.injected {
            found.extend(ports(namespace, pod, service));
        } else {
            let text =
                format!("{service} sends requests to pods without a sidecar: see the condition Programmed.");
            found.push(Bypass { kind: BypassKind::Pod, text });
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
    texts.into_iter().map(|text| Bypass { kind: BypassKind::Service, text }).collect()
}

/// Returns why a port of the pods that is not captured bypasses the sidecars, and what to do, or `None` if the
/// pod's annotation leaves it out on purpose. `route` is the beginning of the text.
fn not_captured(namespace: &str, pod: &CountedPod, route: &str) -> Option<String> {
    // The annotation lists all ports that serve requests.
    if pod.facts.has_ports_annotation {
        return None;
    }
    let names: Vec<_> = pod.facts.captured.iter().flatten().map(|captured| captured.name.as_str()).collect();
    let template = json!({"metadata": {"annotations": {PORTS_ANNOTATION: names.join(",")}}});
    let mend = match text::patch_template(namespace, pod.pod.owner.as_deref(), &template) {
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
fn is_of_sidecar(port: i32, pod: &PodFacts) -> bool {
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
                        ServiceKind::Service => {
                            ("service", format!("ports/{}/targetPort", port.index), json!(bypassed.name))
                        }
                        ServiceKind::InferencePool => {
                            (POOL, format!("targetPorts/{}/number", port.index), json!(bypassed.sidecar))
                        }
                    };
                    let path = format!("/spec/{path}");
                    let operations = json!([{"op": "replace", "path": path, "value": value}]);
                    return Some(format!(
                        "Port {} of {service} targets port {number} of the pods, which bypasses the \
                         sidecars. Run {}.",
                        port.port,
                        text::patch(namespace, &format!("{kind} {}", service.name), &operations)
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
            text::patch(self.namespace, &format!("service {service}"), operations),
            text::ignore_service(self.namespace, service),
        )
    }

    fn captures(&self, name: &str) -> bool {
        name == ADMIN_PORT_NAME || self.captured.iter().any(|c| c.name == name)
    }
}

/// Returns how EndpointSlices bypass the sidecars. An EndpointSlice without its Service leads nowhere.
pub(super) fn slice_bypasses(namespace: &str, facts: &Facts) -> Vec<Bypass> {
    if facts.endpoint_slices.is_empty() {
        return Vec::new();
    }
    let services = facts.services.iter().filter(|service| service.kind == ServiceKind::Service);
    let services: HashMap<_, _> = services.map(|service| (service.name.as_str(), &**service)).collect();
    let pods: HashMap<_, _> = facts
        .pods
        .iter()
        .filter(|pod| pod.facts.injected)
        .flat_map(|pod| pod.addresses.iter().map(move |address| (*address, pod)))
        .collect();
    let mut found = Vec::new();
    for slice in &facts.endpoint_slices {
        let service = services.get(slice.service.as_str()).filter(|service| !service.is_ignored);
        let Some(service) = service else { continue };
        let listed: Vec<_> =
            slice.addresses.iter().filter_map(|address| Some((*address, *pods.get(address)?))).collect();
        // One pod is named for all that have the same containers.
        for (address, pod) in unique_by(&listed, |(_, pod)| &*pod.facts) {
            found.extend(bypasses_of_pod(namespace, pod, *address, slice, service));
        }
    }
    found
}

fn bypasses_of_pod(
    namespace: &str,
    pod: &CountedPod,
    address: IpAddr,
    slice: &EndpointSlice,
    service: &Service,
) -> Vec<Bypass> {
    if service.headless {
        return ports(namespace, pod, service);
    }
    let texts = slice.ports.iter().filter_map(|port| bypass(namespace, pod, address, slice, port));
    texts.map(|text| Bypass { kind: BypassKind::Service, text }).collect()
}

/// Returns how a port of an EndpointSlice bypasses the sidecar of a pod that it lists.
fn bypass(
    namespace: &str,
    pod: &CountedPod,
    address: IpAddr,
    slice: &EndpointSlice,
    port: &SlicePort,
) -> Option<String> {
    let captured = pod.facts.captured.as_deref().unwrap_or_default();
    if port.port.is_some_and(|number| is_of_sidecar(number, &pod.facts)) {
        return None;
    }
    let listed = port.port.map_or("all ports".to_owned(), |number| format!("port {number}"));
    let object = if slice.is_mirrored {
        format!("Object Endpoints {}", slice.service)
    } else {
        format!("EndpointSlice {} of Service {}", slice.name, slice.service)
    };
    let route = format!("{object} lists pod {} ({address}) with {listed}", pod.pod.name);
    let bypassed =
        captured.iter().find(|c| port.port.is_none_or(|number| number == i32::from(c.application)));
    let Some(bypassed) = bypassed else { return not_captured(namespace, pod, &route) };
    let mend = if slice.is_mirrored {
        let command = format!("`kubectl -n {namespace} edit endpoints {}`", slice.service);
        format!("Change this port to {} with {command}", bypassed.sidecar)
    } else {
        // `add` also replaces a port, and works if there is none.
        let path = format!("/ports/{}/port", port.index);
        let operations = json!([{"op": "add", "path": path, "value": bypassed.sidecar}]);
        format!("Run {}", text::patch(namespace, &format!("endpointslice {}", slice.name), &operations))
    };
    Some(format!("{route}, which bypasses the sidecar. {mend}."))
}

/// Returns which NetworkPolicies let clients connect to the application of a pod but not to its sidecar.
pub(super) fn blocked(namespace: &str, pod: &CountedPod, policies: &[Arc<NetworkPolicy>]) -> Vec<Bypass> {
    if !pod.facts.injected {
        return Vec::new();
    }
    // Whatever one rule of one NetworkPolicy allows is allowed.
    let rules: Vec<_> = policies
        .iter()
        .filter(|policy| policy.selector.matches(&pod.pod.labels))
        .flat_map(|policy| policy.rules.iter().enumerate().map(move |(index, rule)| (policy, index, rule)))
        .collect();
    let mut found = Vec::new();
    for port in pod.facts.captured.iter().flatten() {
        let reaches_sidecar = |clients: &IngressRule| {
            rules.iter().any(|(_, _, rule)| allows_sidecar(rule, port) && covers(&rule.from, &clients.from))
        };
        for (policy, index, rule) in &rules {
            if allows_application(rule, port) && !reaches_sidecar(rule) {
                let text = blocked_text(namespace, policy, *index, port);
                found.push(Bypass { kind: BypassKind::NetworkPolicy, text });
            }
        }
    }
    found
}

fn blocked_text(namespace: &str, policy: &NetworkPolicy, index: usize, port: &CapturedPort) -> String {
    let path = format!("/spec/ingress/{index}/ports/-");
    let operations = json!([{"op": "add", "path": path, "value": {"protocol": "TCP", "port": port.sidecar}}]);
    let name = &policy.name;
    format!(
        "NetworkPolicy {name} allows clients of port {}, but blocks port {}, on which the sidecars receive their \
         requests. Run {}.",
        port.application,
        port.sidecar,
        text::patch(namespace, &format!("networkpolicy {name}"), &operations)
    )
}

fn allows_application(rule: &IngressRule, port: &CapturedPort) -> bool {
    allows(rule, |allowed| match allowed {
        AllowedPort::All => true,
        AllowedPort::Numbers(numbers) => numbers.contains(&i32::from(port.application)),
        // The name has moved to the sidecar.
        AllowedPort::Name(_) => false,
    })
}

fn allows_sidecar(rule: &IngressRule, port: &CapturedPort) -> bool {
    allows(rule, |allowed| match allowed {
        AllowedPort::All => true,
        AllowedPort::Numbers(numbers) => numbers.contains(&i32::from(port.sidecar)),
        AllowedPort::Name(name) => *name == port.name,
    })
}

fn allows(rule: &IngressRule, is_allowed: impl Fn(&AllowedPort) -> bool) -> bool {
    rule.ports.as_ref().is_none_or(|ports| ports.iter().any(is_allowed))
}

/// Reports whether the first clients certainly include the second. No client stands for everybody.
fn covers(first: &[NetworkPolicyPeer], second: &[NetworkPolicyPeer]) -> bool {
    let covers_one = |peer| first.iter().any(|other| other == peer || includes_all_pods(other, peer));
    first.is_empty() || (!second.is_empty() && second.iter().all(covers_one))
}

/// Reports whether `all` selects all pods of the namespaces in which `peer` selects some.
fn includes_all_pods(all: &NetworkPolicyPeer, peer: &NetworkPolicyPeer) -> bool {
    let selects_all = |selector: &Option<LabelSelector>| {
        selector.as_ref().is_none_or(|selector| *selector == LabelSelector::default())
    };
    let is_of_pods = |peer: &NetworkPolicyPeer| peer.ip_block.is_none();
    let every_namespace = all.namespace_selector == Some(LabelSelector::default());
    is_of_pods(all)
        && is_of_pods(peer)
        && selects_all(&all.pod_selector)
        && (every_namespace || all.namespace_selector == peer.namespace_selector)
}
