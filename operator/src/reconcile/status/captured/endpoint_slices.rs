//! EndpointSlices that a user or another controller writes, and that list a pod with a port of its application.

use std::collections::HashMap;
use std::net::IpAddr;

use serde_json::json;

use super::bypass::{Bypass, Kind};
use super::services::{is_of_sidecar, not_captured, ports};
use crate::cluster::endpoint_slices::{EndpointSlice, SlicePort};
use crate::cluster::services::{self, Service};
use crate::reconcile::facts::{CountedPod, Facts};
use crate::reconcile::label_sets::unique_by;
use crate::reconcile::status::mend;

/// Returns how EndpointSlices bypass the sidecars. An EndpointSlice without its Service leads nowhere.
pub(super) fn bypasses(namespace: &str, facts: &Facts) -> Vec<Bypass> {
    if facts.endpoint_slices.is_empty() {
        return Vec::new();
    }
    let services = facts.services.iter().filter(|service| service.kind == services::Kind::Service);
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
    texts.map(|text| Bypass { kind: Kind::Service, text }).collect()
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
        format!("Run {}", mend::patch(namespace, &format!("endpointslice {}", slice.name), &operations))
    };
    Some(format!("{route}, which bypasses the sidecar. {mend}."))
}
