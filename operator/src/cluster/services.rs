//! Services. Their targets decide whether traffic bypasses the sidecars.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use sluice_crds::{BYPASS_ANNOTATION, IGNORE_BYPASS};

use crate::cluster::objects::{Objects, Trimmed};

/// All Services, except those that are only a DNS alias.
pub type Services = Objects<Service>;

/// The kind of what leads to pods by their labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A Service.
    Service,
    /// An InferencePool of the Gateway API.
    InferencePool,
}

/// A Service, or what leads to pods like one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its kind.
    pub kind: Kind,
    /// Name of the Service.
    pub name: String,
    /// Labels of the pods that the Service selects. A Service without a selector selects no pods.
    pub selector: BTreeMap<String, String>,
    /// Whether clients get the addresses of the pods from DNS, and choose the port themselves.
    pub headless: bool,
    /// Whether an annotation declares that no bypass by this Service is to be reported.
    pub is_ignored: bool,
    /// Whether the Service has no ports at all, which only a headless one may have.
    pub is_portless: bool,
    /// TCP ports of the Service.
    pub ports: Vec<ServicePort>,
}

/// A TCP port of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Index in the list of all ports of the Service.
    pub index: usize,
    /// Number of the port.
    pub port: i32,
    /// Name or number of the targeted port in the pods.
    pub target: IntOrString,
}

impl Service {
    /// Reports whether the Service selects pods with these labels.
    #[must_use]
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.selector.is_empty() && self.selector.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)
    }
}

impl Trimmed for Service {
    type Object = core::Service;

    fn read(object: core::Service) -> Option<Self> {
        let name = object.name_any();
        let is_ignored =
            object.annotations().get(BYPASS_ANNOTATION).is_some_and(|value| value == IGNORE_BYPASS);
        let spec = object.spec.unwrap_or_default();
        if spec.type_.as_deref() == Some("ExternalName") {
            return None;
        }
        let ports = spec.ports.unwrap_or_default();
        Some(Self {
            kind: Kind::Service,
            name,
            selector: spec.selector.unwrap_or_default(),
            headless: spec.cluster_ip.as_deref() == Some("None"),
            is_ignored,
            is_portless: ports.is_empty(),
            ports: ports
                .into_iter()
                .enumerate()
                .filter(|(_, port)| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"))
                .map(|(index, port)| ServicePort {
                    index,
                    port: port.port,
                    target: port.target_port.unwrap_or(IntOrString::Int(port.port)),
                })
                .collect(),
        })
    }
}
