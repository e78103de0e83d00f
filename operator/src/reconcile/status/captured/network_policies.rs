//! NetworkPolicies that allow clients of the application's port and block the port of its sidecar. Whether the
//! cluster enforces NetworkPolicies cannot be seen from the API.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::SelectorExt as _;
use serde_json::json;

use super::bypass::{Bypass, Kind};
use crate::cluster::network_policies::{AllowedPort, IngressRule, NetworkPolicy};
use crate::injection::capture::CapturedPort;
use crate::reconcile::facts::CountedPod;
use crate::reconcile::status::mend;

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
                let text = text(namespace, policy, *index, port);
                found.push(Bypass { kind: Kind::NetworkPolicy, text });
            }
        }
    }
    found
}

fn text(namespace: &str, policy: &NetworkPolicy, index: usize, port: &CapturedPort) -> String {
    let path = format!("/spec/ingress/{index}/ports/-");
    let operations = json!([{"op": "add", "path": path, "value": {"protocol": "TCP", "port": port.sidecar}}]);
    let name = &policy.name;
    format!(
        "NetworkPolicy {name} allows clients of port {}, but blocks port {}, on which the sidecars receive their \
         requests. Run {}.",
        port.application,
        port.sidecar,
        mend::patch(namespace, &format!("networkpolicy {name}"), &operations)
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
