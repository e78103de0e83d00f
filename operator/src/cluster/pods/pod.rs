//! A pod: its metadata, and the facts about its containers that matter here.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::ResourceExt as _;
use kube::api::ObjectMeta;
use sluice_config::ADMIN_PORT;
use sluice_crds::PORTS_ANNOTATION;

use crate::injection::capture::{self, CapturedPort, Ports, TakenName, running, taken_names};
use crate::injection::config::InjectConfig;
use crate::injection::decide::{Skip, decide, warnings};
use crate::injection::inject::Note;
use crate::injection::resources::Bounds;

/// Labels of a pod. Neighbours in the table share them if they are equal, as those of most pods of a workload are.
pub type Labels = Arc<BTreeMap<String, String>>;

/// Answers a question about labels, and does not ask again while the next pods share them.
pub fn for_shared<T: Copy>(ask: impl Fn(&BTreeMap<String, String>) -> T) -> impl FnMut(&Labels) -> T {
    let mut last: Option<(Labels, T)> = None;
    move |labels| match &last {
        Some((known, answer)) if Arc::ptr_eq(known, labels) => *answer,
        _ => last.insert((labels.clone(), ask(labels))).1,
    }
}

/// The metadata of a running pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// UID of the pod.
    pub uid: String,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Labels of the pod.
    pub labels: Labels,
    /// Time at which the pod is to have ended, if it is being deleted.
    pub ends: Option<Timestamp>,
    /// Time at which it was created.
    pub created: Option<Timestamp>,
    /// The workload that created the pod, as kubectl names it: `deployment/checkout`, `cloneset.apps.kruise.io/checkout`.
    pub owner: Option<String>,
    /// The object that created the pod.
    pub controller: Option<Controller>,
}

/// The object that created a pod. The API server checks nothing of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controller {
    /// Its version, such as apps/v1.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl Pod {
    pub(in crate::cluster) fn read(metadata: &ObjectMeta) -> Self {
        let labels = metadata.labels.clone().unwrap_or_default();
        // Messages show commands with this name, and the API server does not check it.
        let is_plain = |text: &str| {
            !text.is_empty()
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
        };
        let controller =
            metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        let owner =
            controller.filter(|owner| is_plain(&owner.name) && is_plain(&owner.kind)).and_then(|owner| {
                let group = owner.api_version.rsplit_once('/').map_or("", |(group, _)| group);
                // A Deployment owns a ReplicaSet named after itself and the hash of the pod template.
                let deployment = labels
                    .get("pod-template-hash")
                    .and_then(|hash| owner.name.strip_suffix(&format!("-{hash}")));
                let kind = owner.kind.to_lowercase();
                Some(match (group, kind.as_str(), deployment) {
                    ("apps", "replicaset", Some(deployment)) => format!("deployment/{deployment}"),
                    ("" | "apps" | "batch", ..) => format!("{kind}/{}", owner.name),
                    // Such as the StatefulSet of OpenKruise, which has nothing of a StatefulSet but its name.
                    _ if is_plain(group) => format!("{kind}.{group}/{}", owner.name),
                    _ => return None,
                })
            });
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            labels: Arc::new(labels),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            ends: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            owner,
            controller: controller.map(|owner| Controller {
                api_version: owner.api_version.clone(),
                kind: owner.kind.clone(),
                name: owner.name.clone(),
                uid: owner.uid.clone(),
            }),
        }
    }
}

/// Facts about the containers of a pod. They do not change while the pod lives.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PodFacts {
    /// Whether the pod has a sidecar.
    pub injected: bool,
    /// Whether the pod uses the host's network. Such pods get no sidecar and are not counted.
    pub host_network: bool,
    /// Names of captured ports that lead to another container than the sidecar.
    pub taken_names: Vec<TakenName>,
    /// The ports that the sidecar captures, or would capture if the pod had one; or why the pod cannot get one.
    pub captured: Result<Vec<CapturedPort>, Skip>,
    /// Settings of the pod that do not do what they seem to, if it has a sidecar.
    pub warnings: Vec<String>,
    /// Port of the sidecar's health checks and metrics.
    pub admin: u16,
    /// Whether the annotation lists the ports that serve requests. Other ports are then bypassed on purpose.
    pub has_ports_annotation: bool,
    /// Container ports that are also ports of the node.
    pub host_ports: Vec<HostPort>,
}

/// A container port that is also a port of the node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPort {
    /// Name of the container.
    pub container: String,
    /// Number of the port in the pod.
    pub port: u16,
}

impl PodFacts {
    /// The facts about a pod that enforces policies without a sidecar.
    pub fn of_service() -> Self {
        Self {
            injected: true,
            host_network: false,
            taken_names: Vec::new(),
            captured: Ok(Vec::new()),
            warnings: Vec::new(),
            admin: 0,
            has_ports_annotation: false,
            host_ports: Vec::new(),
        }
    }

    /// Reads the facts from a pod. Without a sidecar, it is looked at as a new pod in its namespace.
    pub fn read(pod: &core::Pod, config: &InjectConfig, bounds: &Bounds) -> Self {
        let none = core::PodSpec::default();
        let spec = pod.spec.as_ref().unwrap_or(&none);
        let of_sidecar = capture::of_sidecar(spec);
        let injected = of_sidecar.is_some();
        let ports = match of_sidecar {
            Some(ports) => Ok(ports),
            None if Note::read(pod).is_some() => Err(Skip::Removed),
            None => decide(pod, config, bounds).map(|plan| plan.ports),
        };
        Self {
            injected,
            host_network: spec.host_network.unwrap_or(false),
            taken_names: taken_names(spec),
            warnings: if injected { warnings(pod, config) } else { Vec::new() },
            admin: ports.as_ref().map_or(ADMIN_PORT, |ports| ports.admin),
            captured: ports.map(|Ports { captured, .. }| captured),
            has_ports_annotation: pod.annotations().contains_key(PORTS_ANNOTATION),
            host_ports: running(spec)
                .flat_map(|container| container.ports.iter().flatten().map(|port| (&container.name, port)))
                .filter(|(_, port)| port.host_port.is_some())
                .filter_map(|(container, port)| {
                    let port = u16::try_from(port.container_port).ok()?;
                    Some(HostPort { container: container.clone(), port })
                })
                .collect(),
        }
    }
}

/// Reads the addresses of a pod. They change only if its sandbox is created again, for example after a restart
/// of the node.
pub(in crate::cluster) fn read_addresses(pod: &core::Pod) -> Vec<IpAddr> {
    let status = pod.status.iter();
    let all = status.flat_map(|status| {
        let several = status.pod_ips.iter().flatten().map(|address| &address.ip);
        several.chain(&status.pod_ip)
    });
    all.filter_map(|address| address.parse().ok()).collect()
}
