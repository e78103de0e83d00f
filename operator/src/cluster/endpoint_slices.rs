//! EndpointSlices that users or other controllers write. Those that Kubernetes makes from the selector of a
//! Service are not watched: their content follows from the Service, and they change with every pod.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::discovery::v1 as discovery;
use kube::ResourceExt as _;

use crate::cluster::objects::{Objects, Trimmed};

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
