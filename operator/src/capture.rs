//! Ports of a pod that its sidecar captures.
//!
//! A new pod's ports are planned: the ports that the annotation names, or the port named `http`, or the only
//! named TCP port if its name indicates HTTP. A database port must not be captured by mistake, because the
//! sidecar would answer the database's clients with HTTP. Ports of a service mesh's proxy are never captured. The
//! annotation may also choose the number on which the sidecar listens. The ports of an injected pod are read back from
//! its sidecar's arguments.

use std::ops::RangeInclusive;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec};
use sluice_config::{ADMIN_PORT, DEBUG_PORT, PROXY_PORT};
use sluice_crds::{PORTS_ANNOTATION, SIDECAR_CONTAINER};

#[cfg(test)]
mod tests;

/// First listen port for captured ports after the first one. The ports between have other uses in the
/// sidecar.
const MORE_PROXY_PORTS: u16 = 8794;
/// Ports that the annotation may choose for the sidecar, which may not listen on lower ones.
const UNPRIVILEGED_PORTS: RangeInclusive<u16> = 1024..=u16::MAX;
/// Maximum number of captured ports in one pod.
const MAX_PORTS: usize = 16;

/// Containers of service meshes, by the names that their injectors give them. Their ports are not the application's.
const MESH_PROXIES: [&str; 4] = ["istio-proxy", "linkerd-proxy", "kuma-sidecar", "consul-dataplane"];

/// A port that a sidecar captures.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CapturedPort {
    /// Name of the port, which moves from the application's container to the sidecar.
    pub name: String,
    /// Port on which the sidecar listens.
    pub sidecar: u16,
    /// Port on which the application listens.
    pub application: u16,
}

/// The reason why a sidecar cannot capture the ports of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum CaptureError {
    /// No port has a name.
    #[error("no container has a named TCP port: add `name: http` to the port that serves requests")]
    NoNamedPort,
    /// The annotation names no port.
    #[error("the annotation {PORTS_ANNOTATION} is empty: list the ports that serve requests, or remove it")]
    EmptyAnnotation,
    /// Several ports have names, and none of them is `http`.
    #[error(
        "several ports are named ({0}): list the ports that serve requests in the annotation {PORTS_ANNOTATION}"
    )]
    Ambiguous(String),
    /// The name of the only named port does not indicate HTTP.
    #[error(
        "the port name {0:?} does not indicate HTTP: if the port serves HTTP, set the annotation \
         {PORTS_ANNOTATION}: {0}"
    )]
    NotHttp(String),
    /// Two containers have a port of the same name.
    #[error("two ports are named {0:?}: give them different names")]
    DuplicateName(String),
    /// A container listens on a port that the sidecar needs.
    #[error("a container uses port {0}, which the sidecar needs: move the container to another port")]
    PortInUse(u16),
    /// The annotation names a port that no container has.
    #[error(
        "the annotation {PORTS_ANNOTATION} names {0:?}, but no container has a TCP port of that name: correct \
         the annotation, or name the port"
    )]
    UnknownName(String),
    /// The annotation chooses a port on which the sidecar cannot listen.
    #[error(
        "the annotation {PORTS_ANNOTATION} has {0:?}: write NAME, or NAME=PORT with a PORT from 1024 to 65535 \
         that nothing else in the pod uses"
    )]
    InvalidPort(String),
    /// The annotation names too many ports.
    #[error("the annotation {PORTS_ANNOTATION} names more than {MAX_PORTS} ports: remove some")]
    TooMany,
}

/// Returns the ports that a sidecar of this pod would capture.
pub fn plan(pod: &Pod) -> Result<Vec<CapturedPort>, CaptureError> {
    let spec = pod.spec.as_ref();
    let named: Vec<(&str, u16)> = spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .filter(|container| container.name != SIDECAR_CONTAINER)
        .filter(|container| !MESH_PROXIES.contains(&container.name.as_str()))
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(named_tcp)
        .collect();
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(PORTS_ANNOTATION));
    let wanted: Vec<Wanted<'_>> = match annotation {
        Some(text) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            items.map(Wanted::read).collect::<Result<_, _>>()?
        }
        None => vec![Wanted { name: default_port(&named)?, listen: None }],
    };
    if wanted.is_empty() {
        return Err(CaptureError::EmptyAnnotation);
    }
    if wanted.len() > MAX_PORTS {
        return Err(CaptureError::TooMany);
    }
    if let Some(port) =
        wanted.iter().find(|port| named.iter().filter(|(other, _)| *other == port.name).count() > 1)
    {
        return Err(CaptureError::DuplicateName(port.name.into()));
    }
    let mut used: Vec<u16> = spec
        .iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| u16::try_from(port.container_port).ok())
        .collect();
    if let Some(own) = [ADMIN_PORT, DEBUG_PORT].into_iter().find(|port| used.contains(port)) {
        return Err(CaptureError::PortInUse(own));
    }
    for port in &wanted {
        let Some(listen) = port.listen else { continue };
        if used.contains(&listen) {
            return Err(CaptureError::PortInUse(listen));
        }
        used.push(listen);
    }
    let mut free = std::iter::once(PROXY_PORT).chain(MORE_PROXY_PORTS..).filter(|port| !used.contains(port));
    wanted
        .into_iter()
        .map(|Wanted { name, listen }| {
            let found = named.iter().find(|(other, _)| *other == name);
            let &(_, application) = found.ok_or_else(|| CaptureError::UnknownName(name.into()))?;
            let sidecar = listen.unwrap_or_else(|| free.next().unwrap_or(PROXY_PORT));
            Ok(CapturedPort { name: name.into(), sidecar, application })
        })
        .collect()
}

/// A port that is to be captured.
struct Wanted<'a> {
    name: &'a str,
    /// Port on which the sidecar is to listen, if it matters.
    listen: Option<u16>,
}

impl<'a> Wanted<'a> {
    /// Reads `NAME` or `NAME=PORT`.
    fn read(item: &'a str) -> Result<Self, CaptureError> {
        let Some((name, port)) = item.split_once('=') else { return Ok(Self { name: item, listen: None }) };
        let port = port.trim().parse().ok().filter(|port| UNPRIVILEGED_PORTS.contains(port));
        let listen = port.filter(|port| !(ADMIN_PORT..MORE_PROXY_PORTS).contains(port));
        let listen = listen.ok_or_else(|| CaptureError::InvalidPort(item.into()))?;
        Ok(Self { name: name.trim(), listen: Some(listen) })
    }
}

/// Chooses the port of a pod without the annotation.
fn default_port<'a>(named: &[(&'a str, u16)]) -> Result<&'a str, CaptureError> {
    match named {
        [] => Err(CaptureError::NoNamedPort),
        [(only, _)] if indicates_http(only) => Ok(only),
        [(only, _)] => Err(CaptureError::NotHttp((*only).into())),
        several => several.iter().find(|(name, _)| *name == "http").map(|(http, _)| *http).ok_or_else(|| {
            let names: Vec<_> = several.iter().map(|(name, _)| *name).collect();
            CaptureError::Ambiguous(names.join(", "))
        }),
    }
}

/// Reports whether a port name is one that Kubernetes users give to ports that serve HTTP without TLS.
fn indicates_http(name: &str) -> bool {
    let first = name.split('-').next().unwrap_or(name);
    let word = first.trim_end_matches(|c: char| c.is_ascii_digit());
    ["http", "web", "grpc"].contains(&word) || first == "h2c"
}

fn named_tcp(port: &ContainerPort) -> Option<(&str, u16)> {
    let tcp = port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
    let number = u16::try_from(port.container_port).ok().filter(|number| *number > 0)?;
    port.name.as_deref().filter(|name| tcp && !name.is_empty()).map(|name| (name, number))
}

/// Returns the sidecar of a pod, either a native one (an init container) or an ordinary container.
#[must_use]
pub fn find_sidecar(spec: &PodSpec) -> Option<&Container> {
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|container| container.name == SIDECAR_CONTAINER)
}

/// Returns the ports that the sidecar of a pod captures, or `None` if the pod has no sidecar.
#[must_use]
pub fn captured_by_sidecar(spec: &PodSpec) -> Option<Vec<CapturedPort>> {
    let container = find_sidecar(spec)?;
    let proxies = container.args.iter().flatten().filter_map(|arg| {
        let (listen, upstream) = arg.strip_prefix("--proxy=")?.split_once('=')?;
        let port = |address: &str| address.rsplit(':').next()?.parse::<u16>().ok();
        Some((port(listen)?, port(upstream)?))
    });
    let captured = proxies.filter_map(|(sidecar, application)| {
        let port = container.ports.iter().flatten().find(|port| port.container_port == i32::from(sidecar))?;
        Some(CapturedPort { name: port.name.clone()?, sidecar, application })
    });
    Some(captured.collect())
}
