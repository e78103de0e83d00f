//! The objects that lead traffic to pods, or keep it from them: tables by namespace and name, with only the fields that matter here.
//!
//! EndpointSlices that Kubernetes makes from the selector of a Service are not watched: their content follows from the Service, and
//! they change with every pod.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Debug};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, RwLock};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::Api;
use kube::core::Selector;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Error, Event, Result};
use kube::{CustomResource, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sluice_crds::{BYPASS_ANNOTATION, IGNORE_BYPASS};

use crate::cluster::watch::{Change, follow, key_of};
use crate::locks::{Latch, read, write};

#[cfg(test)]
mod tests;

/// The fields of an object that matter here.
pub trait Trimmed: Sized + PartialEq + Send + Sync + 'static {
    /// The object as the API server has it.
    type Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static;

    /// Label selector of the objects that are watched. All of them by default.
    const LABELS: Option<&'static str> = None;

    /// Whether clusters may lack the kind. Without it there are no objects.
    const IS_OPTIONAL: bool = false;

    /// Reads the fields, or returns `None` if the object does not matter.
    fn read(object: Self::Object) -> Option<Self>;
}

/// Objects by namespace and name.
type ByNamespace<T> = BTreeMap<String, BTreeMap<String, Arc<T>>>;

/// All objects of one kind that matter.
pub struct Objects<T> {
    table: RwLock<ByNamespace<T>>,
    /// Whether the first list is complete.
    pub listed: Latch,
}

/// Takes the answer to a list of a kind that is not installed for an empty list.
fn none_if_not_installed<K>(event: Result<Event<K>>) -> Result<Event<K>> {
    match event {
        Err(Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => Ok(Event::InitDone),
        event => event,
    }
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self { table: RwLock::default(), listed: Latch::default() }
    }
}

impl<T: Trimmed> Objects<T> {
    /// Keeps the table up to date and passes on the namespace of every change.
    pub async fn watch(&self, client: kube::Client, mut on_change: impl FnMut(&str) + Send) {
        let api: Api<T::Object> = Api::all(client);
        let config = watcher::Config { label_selector: T::LABELS.map(Into::into), ..Default::default() };
        let stream = watcher::watcher(api, config);
        let stream = match T::IS_OPTIONAL {
            true => stream.default_backoff().map(none_if_not_installed).left_stream(),
            false => stream.right_stream(),
        };
        follow(stream, |change| {
            let (key, object) = match change {
                Change::Applied(object) => (key_of(&object), T::read(object)),
                Change::Deleted { key, .. } => (key, None),
                Change::Listed => return self.listed.set(),
            };
            if self.set(&key.namespace, key.name, object) {
                on_change(&key.namespace);
            }
        })
        .await;
    }

    /// Sets or removes an object. Reports whether that changed the table.
    fn set(&self, namespace: &str, name: String, object: Option<T>) -> bool {
        let mut table = write(&self.table);
        let Some(object) = object.map(Arc::new) else {
            let Some(objects) = table.get_mut(namespace) else { return false };
            let removed = objects.remove(&name).is_some();
            if objects.is_empty() {
                table.remove(namespace);
            }
            return removed;
        };
        let old = table.entry(namespace.to_owned()).or_default().insert(name, object.clone());
        old.as_ref() != Some(&object)
    }

    /// Returns the objects of a namespace, ordered by name.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        let table = read(&self.table);
        table.get(namespace).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }
}

/// All Services, except those that are only a DNS alias.
pub type Services = Objects<Service>;

/// The kind of what leads to pods by their labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServiceKind {
    /// A Service.
    Service,
    /// An InferencePool of the Gateway API.
    InferencePool,
}

/// A Service, or what leads to pods like one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Its kind.
    pub kind: ServiceKind,
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
            kind: ServiceKind::Service,
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

/// All InferencePools.
pub type InferencePools = Objects<InferencePool>;

/// An InferencePool. It leads to pods as a Service does whose ports target numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct InferencePool(pub Arc<Service>);

/// The part of an InferencePool that leads to pods.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug)]
#[kube(
    group = "inference.networking.k8s.io",
    version = "v1",
    kind = "InferencePool",
    root = "PoolObject",
    plural = "inferencepools",
    namespaced,
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct PoolSpec {
    #[serde(default)]
    selector: PoolLabels,
    #[serde(default)]
    target_ports: Vec<PoolPort>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
struct PoolLabels {
    #[serde(default)]
    match_labels: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
struct PoolPort {
    number: i32,
}

impl Trimmed for InferencePool {
    type Object = PoolObject;

    const IS_OPTIONAL: bool = true;

    fn read(object: PoolObject) -> Option<Self> {
        let is_ignored =
            object.annotations().get(BYPASS_ANNOTATION).is_some_and(|value| value == IGNORE_BYPASS);
        let ports = object.spec.target_ports.iter().enumerate();
        let ports = ports.map(|(index, target)| ServicePort {
            index,
            port: target.number,
            target: IntOrString::Int(target.number),
        });
        Some(Self(Arc::new(Service {
            kind: ServiceKind::InferencePool,
            name: object.name_any(),
            selector: object.spec.selector.match_labels.clone(),
            headless: false,
            is_ignored,
            is_portless: false,
            ports: ports.collect(),
        })))
    }
}

/// Label with the name of the Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// Label with the name of the controller that writes the EndpointSlice.
const MANAGED_BY_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
/// The controller that copies the Endpoints that a user writes.
const MIRRORING_CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";

/// All EndpointSlices of Services that do not follow from the Service's selector.
pub type EndpointSlices = Objects<EndpointSlice>;

/// An EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Name of the EndpointSlice.
    pub name: String,
    /// Name of its Service.
    pub service: String,
    /// Whether it is a copy of the Endpoints with the name of the Service, which have to be changed instead.
    pub is_mirrored: bool,
    /// Addresses to which the Service sends traffic.
    pub addresses: BTreeSet<IpAddr>,
    /// TCP ports of these addresses.
    pub ports: Vec<SlicePort>,
}

/// A TCP port of an EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlicePort {
    /// Index in the list of all ports of the EndpointSlice.
    pub index: usize,
    /// Number of the port. `None` means all ports.
    pub port: Option<i32>,
}

impl Trimmed for EndpointSlice {
    type Object = discovery::EndpointSlice;

    const LABELS: Option<&'static str> = Some(
        "kubernetes.io/service-name,endpointslice.kubernetes.io/managed-by!=endpointslice-controller.k8s.io",
    );

    fn read(object: discovery::EndpointSlice) -> Option<Self> {
        let service = object.labels().get(SERVICE_LABEL)?.clone();
        let managed_by = object.labels().get(MANAGED_BY_LABEL);
        let ports = object.ports.iter().flatten().enumerate();
        Some(Self {
            name: object.name_any(),
            service,
            is_mirrored: managed_by.is_some_and(|controller| controller == MIRRORING_CONTROLLER),
            // Host names are no addresses of pods.
            addresses: object
                .endpoints
                .iter()
                .flat_map(|endpoint| &endpoint.addresses)
                .filter_map(|address| address.parse().ok())
                .collect(),
            ports: ports
                .filter(|(_, port)| port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP"))
                .map(|(index, port)| SlicePort { index, port: port.port })
                .collect(),
        })
    }
}

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
