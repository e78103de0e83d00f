//! NetworkPolicies that restrict the clients of pods.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use kube::core::Selector;

use crate::cluster::objects::{Objects, Trimmed};

/// All NetworkPolicies that restrict the clients of pods.
pub type NetworkPolicies = Objects<NetworkPolicy>;

/// A NetworkPolicy that restricts the clients of pods.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkPolicy {
    /// Name of the NetworkPolicy.
    pub name: String,
    /// Selector of the pods.
    pub selector: Selector,
    /// Keys of the labels that the selector reads.
    pub selector_keys: BTreeSet<String>,
    /// Rules for clients. A rule's index is its index in the NetworkPolicy.
    pub rules: Vec<IngressRule>,
}

/// Permission for some clients to connect to some ports.
#[derive(Debug, Clone, PartialEq)]
pub struct IngressRule {
    /// The clients, or everybody if it is empty.
    pub from: Vec<NetworkPolicyPeer>,
    /// The TCP ports, or `None` for all ports.
    pub ports: Option<Vec<AllowedPort>>,
}

/// TCP ports that a rule allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AllowedPort {
    /// All ports.
    All,
    /// Ports by number.
    Numbers(RangeInclusive<i32>),
    /// The port of this name.
    Name(String),
}

impl Trimmed for NetworkPolicy {
    type Object = networking::NetworkPolicy;

    fn read(object: networking::NetworkPolicy) -> Option<Self> {
        let name = object.name_any();
        let spec = object.spec?;
        if spec.policy_types.is_some_and(|types| types.iter().all(|kind| kind != "Ingress")) {
            return None;
        }
        let selector = spec.pod_selector.unwrap_or_default();
        let labels = selector.match_labels.iter().flat_map(|labels| labels.keys());
        let expressions = selector.match_expressions.iter().flatten().map(|expression| &expression.key);
        Some(Self {
            name,
            selector_keys: labels.chain(expressions).cloned().collect(),
            // The API server has validated the selector.
            selector: Selector::try_from(selector).ok()?,
            rules: spec.ingress.unwrap_or_default().into_iter().map(read_rule).collect(),
        })
    }
}

fn read_rule(rule: networking::NetworkPolicyIngressRule) -> IngressRule {
    let is_tcp = |port: &networking::NetworkPolicyPort| {
        port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP")
    };
    let read_port = |port: networking::NetworkPolicyPort| match port.port {
        None => AllowedPort::All,
        Some(IntOrString::Int(first)) => AllowedPort::Numbers(first..=port.end_port.unwrap_or(first)),
        Some(IntOrString::String(name)) => AllowedPort::Name(name),
    };
    IngressRule {
        from: rule.from.unwrap_or_default(),
        ports: rule
            .ports
            .filter(|ports| !ports.is_empty())
            .map(|ports| ports.into_iter().filter(is_tcp).map(read_port).collect()),
    }
}
