//! InferencePools of the Gateway API. A gateway sends the requests of one to the pods that it selects, at the numbers of their ports.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, ResourceExt as _};
use serde::{Deserialize, Serialize};
use sluice_crds::{BYPASS_ANNOTATION, IGNORE_BYPASS};

use crate::cluster::objects::{Objects, Trimmed};
use crate::cluster::services::{Kind, Service, ServicePort};

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
    root = "Object",
    plural = "inferencepools",
    namespaced,
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    #[serde(default)]
    selector: Labels,
    #[serde(default)]
    target_ports: Vec<TargetPort>,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[serde(rename_all = "camelCase")]
struct Labels {
    #[serde(default)]
    match_labels: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize, Clone, Debug)]
struct TargetPort {
    number: i32,
}

impl Trimmed for InferencePool {
    type Object = Object;

    const IS_OPTIONAL: bool = true;

    fn read(object: Object) -> Option<Self> {
        let is_ignored =
            object.annotations().get(BYPASS_ANNOTATION).is_some_and(|value| value == IGNORE_BYPASS);
        let ports = object.spec.target_ports.iter().enumerate();
        let ports = ports.map(|(index, target)| ServicePort {
            index,
            port: target.number,
            target: IntOrString::Int(target.number),
        });
        Some(Self(Arc::new(Service {
            kind: Kind::InferencePool,
            name: object.name_any(),
            selector: object.spec.selector.match_labels.clone(),
            headless: false,
            is_ignored,
            is_portless: false,
            ports: ports.collect(),
        })))
    }
}
