//! The containers of a pod that keep running (the ordinary ones, and the native sidecars, which are init containers with the restart
//! policy `Always`), and their ports that the pod's sidecar captures.
//!
//! A new pod's ports are planned: the ports that the annotation names, or the port named `http`, or the only
//! named TCP port if its name indicates HTTP. A database port must not be captured by mistake, because the
//! sidecar would answer the database's clients with HTTP. Native sidecars have ports too: without the annotation, theirs
//! are looked at only if no other container has a named one. A name that two containers have is never captured: a Service
//! would reach the other one instead of the sidecar. Ports of a service mesh's proxy are never captured. The
//! annotation may also choose the number on which the sidecar listens. The ports of an injected pod are read back from
//! its sidecar's arguments.

use std::collections::HashSet;
use std::ops::RangeInclusive;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec};
use sluice_config::{ADMIN_PORT, DEBUG_PORT, PROXY_PORT};
use sluice_crds::{INJECT_LABEL, PORTS_ANNOTATION, SIDECAR_CONTAINER};

#[cfg(test)]
mod tests;

/// First listen port for captured ports after the first one. The ports between have other uses in the
/// sidecar.
const MORE_PROXY_PORTS: u16 = 8794;
/// Ports that the annotation may choose for the sidecar, which may not listen on lower ones.
const UNPRIVILEGED_PORTS: RangeInclusive<u16> = 1024..=u16::MAX;
/// Maximum number of captured ports in one pod.
const MAX_PORTS: usize = 16;

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
    #[error(
        "no container has a named TCP port: add `name: http` to the port that serves requests, or label the pod \
         {INJECT_LABEL}=false if it serves none"
    )]
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
    #[error(
        "the containers {first} and {second} both have a port named {name:?}, of which a Service reaches one: give one of \
         them another name"
    )]
    DuplicateName {
        /// Name of the port.
        name: String,
        /// The first container with this port.
        first: String,
        /// The second container with this port.
        second: String,
    },
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

/// The ports of a sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ports {
    /// The ports that it captures.
    pub captured: Vec<CapturedPort>,
    /// Port of its health checks and metrics.
    pub admin: u16,
}

/// A named TCP port of a container that keeps running.
pub(super) struct NamedPort<'a> {
    pub(super) name: &'a str,
    pub(super) number: u16,
    container: &'a Container,
}

/// Returns the ports that a sidecar of this pod would have.
pub fn plan(pod: &Pod) -> Result<Ports, CaptureError> {
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    let named: Vec<_> = running(spec).flat_map(named_ports).collect();
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(PORTS_ANNOTATION));
    let wanted: Vec<WantedPort<'_>> = match annotation {
        Some(text) => {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            let mut wanted = Vec::<WantedPort<'_>>::new();
            for item in items {
                let next = WantedPort::read(item)?;
                match wanted.iter().find(|port| port.name == next.name) {
                    Some(same) if same.listen == next.listen => {}
                    Some(_) => return Err(CaptureError::InvalidPort(item.into())),
                    // The annotation may have any length, and each is compared with all others.
                    None if wanted.len() == MAX_PORTS => return Err(CaptureError::TooMany),
                    None => wanted.push(next),
                }
            }
            wanted
        }
        None => vec![WantedPort { name: default_port(spec)?, listen: None }],
    };
    if wanted.is_empty() {
        return Err(CaptureError::EmptyAnnotation);
    }
    for port in &wanted {
        // The ports of a mesh's proxy are not captured, but they have names too.
        let owners: Vec<_> = named.iter().filter(|owner| owner.name == port.name).collect();
        if let [first, second, ..] = owners.as_slice() {
            let [first, second] = [first, second].map(|owner| owner.container.name.clone());
            return Err(CaptureError::DuplicateName { name: port.name.into(), first, second });
        }
    }
    let mut used = used(spec);
    if used.contains(&DEBUG_PORT) {
        return Err(CaptureError::PortInUse(DEBUG_PORT));
    }
    for port in &wanted {
        let Some(listen) = port.listen else { continue };
        if used.contains(&listen) {
            return Err(CaptureError::PortInUse(listen));
        }
        used.insert(listen);
    }
    let is_free = |port: &u16| !used.contains(port);
    let mut more = (MORE_PROXY_PORTS..=u16::MAX).filter(is_free);
    let admin = Some(ADMIN_PORT).filter(is_free).or_else(|| more.next()).ok_or(CaptureError::TooMany)?;
    let mut free = Some(PROXY_PORT).filter(is_free).into_iter().chain(more);
    let captured = wanted.into_iter().map(|WantedPort { name, listen }| {
        let found = named.iter().find(|owner| owner.name == name && !is_mesh_proxy(owner.container));
        let application = found.ok_or_else(|| CaptureError::UnknownName(name.into()))?.number;
        let sidecar = listen.or_else(|| free.next()).ok_or(CaptureError::TooMany)?;
        Ok(CapturedPort { name: name.into(), sidecar, application })
    });
    Ok(Ports { captured: captured.collect::<Result<_, _>>()?, admin })
}

/// Returns the numbers of the ports of all containers but the sidecar.
fn used(spec: &PodSpec) -> HashSet<u16> {
    let others = numbered(spec).filter(|(_, _, container)| !is_sidecar(container));
    let ports = others.flat_map(|(_, _, container)| container.ports.iter().flatten());
    ports.filter_map(|port| u16::try_from(port.container_port).ok()).collect()
}

/// Returns the ports of a sidecar that another container uses too, each with a free one. The last is `None` for the debug port,
/// which the sidecar can do without.
pub(super) fn moves(spec: &PodSpec, ports: &Ports) -> Vec<(u16, Option<u16>)> {
    let used = used(spec);
    let own: Vec<_> = ports.captured.iter().map(|port| port.sidecar).chain([ports.admin]).collect();
    let free = (MORE_PROXY_PORTS..=u16::MAX).filter(|port| !used.contains(port) && !own.contains(port));
    let moves = own.iter().copied().filter(|port| used.contains(port)).zip(free.map(Some));
    moves.chain(used.contains(&DEBUG_PORT).then_some((DEBUG_PORT, None))).collect()
}

/// A name of a captured port that leads to another container than the sidecar.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TakenName {
    /// The name.
    pub name: String,
    /// The container.
    pub container: String,
}

/// Returns the names of captured ports that Kubernetes finds at another container: it takes the first container that has a name.
pub fn taken_names(spec: &PodSpec) -> Vec<TakenName> {
    let captured = of_sidecar(spec).map(|ports| ports.captured).unwrap_or_default();
    let owner =
        |name: &str| running(spec).find(|container| named_ports(container).any(|port| port.name == name));
    let taken = captured.into_iter().filter_map(|port| {
        let owner = owner(&port.name).filter(|owner| !is_sidecar(owner))?;
        Some(TakenName { name: port.name, container: owner.name.clone() })
    });
    taken.collect()
}

/// A port that is to be captured.
struct WantedPort<'a> {
    name: &'a str,
    /// Port on which the sidecar is to listen, if it matters.
    listen: Option<u16>,
}

impl<'a> WantedPort<'a> {
    /// Reads `NAME` or `NAME=PORT`.
    fn read(item: &'a str) -> Result<Self, CaptureError> {
        let Some((name, port)) = item.split_once('=') else { return Ok(Self { name: item, listen: None }) };
        let port = port.trim().parse().ok().filter(|port| UNPRIVILEGED_PORTS.contains(port));
        let listen = port.filter(|port| !(ADMIN_PORT..MORE_PROXY_PORTS).contains(port));
        let listen = listen.ok_or_else(|| CaptureError::InvalidPort(item.into()))?;
        Ok(Self { name: name.trim(), listen: Some(listen) })
    }
}

/// Chooses the port of a pod without the annotation. Native sidecars help the application, so theirs are chosen only
/// where no other container has a named port.
fn default_port(spec: &PodSpec) -> Result<&str, CaptureError> {
    fn names<'a>(containers: impl Iterator<Item = &'a Container>) -> Vec<&'a str> {
        let own = containers.filter(|container| !is_mesh_proxy(container));
        own.flat_map(named_ports).map(|port| port.name).collect()
    }
    let of_containers = names(spec.containers.iter());
    let names = if of_containers.is_empty() { names(native_sidecars(spec)) } else { of_containers };
    match names.as_slice() {
        [] => Err(CaptureError::NoNamedPort),
        [only] if indicates_http(only) => Ok(only),
        [only] => Err(CaptureError::NotHttp((*only).into())),
        several => {
            let http = several.iter().find(|name| **name == "http");
            http.copied().ok_or_else(|| CaptureError::Ambiguous(several.join(", ")))
        }
    }
}

/// Reports whether a port name is one that Kubernetes users give to ports that serve HTTP without TLS.
fn indicates_http(name: &str) -> bool {
    let first = name.split('-').next().unwrap_or(name);
    let word = first.trim_end_matches(|c: char| c.is_ascii_digit());
    ["http", "web", "grpc"].contains(&word) || first == "h2c"
}

/// Iterates over the named TCP ports of a container.
pub(super) fn named_ports(container: &Container) -> impl Iterator<Item = NamedPort<'_>> {
    container.ports.iter().flatten().filter_map(move |port| {
        let (name, number) = named_tcp(port)?;
        Some(NamedPort { name, number, container })
    })
}

fn named_tcp(port: &ContainerPort) -> Option<(&str, u16)> {
    let tcp = port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
    let number = u16::try_from(port.container_port).ok().filter(|number| *number > 0)?;
    port.name.as_deref().filter(|name| tcp && !name.is_empty()).map(|name| (name, number))
}

/// Returns the ports of a pod's sidecar, or `None` if the pod has no sidecar.
pub fn of_sidecar(spec: &PodSpec) -> Option<Ports> {
    let container = find_sidecar(spec)?;
    let arguments = || container.args.iter().flatten();
    let port = |address: &str| address.rsplit(':').next()?.parse::<u16>().ok();
    let proxies = arguments().filter_map(|argument| {
        let (listen, upstream) = argument.strip_prefix(PROXY_ARGUMENT)?.split_once('=')?;
        Some((port(listen)?, port(upstream)?))
    });
    let captured = proxies.filter_map(|(sidecar, application)| {
        let port = container.ports.iter().flatten().find(|port| port.container_port == i32::from(sidecar))?;
        Some(CapturedPort { name: port.name.clone()?, sidecar, application })
    });
    let admin = arguments().find_map(|argument| port(argument.strip_prefix(ADMIN_ARGUMENT)?));
    Some(Ports { captured: captured.collect(), admin: admin.unwrap_or(ADMIN_PORT) })
}

/// Volume of the service-account token and the operator's authority.
pub(super) const IDENTITY_VOLUME: &str = "sluice-identity";
/// Volume of the last good snapshot.
pub(super) const STATE_VOLUME: &str = "sluice-state";
/// Beginning of the argument that names a listener of the sidecar and the application behind it.
pub(super) const PROXY_ARGUMENT: &str = "--proxy=";
/// Beginning of the argument that names the admin port.
pub(super) const ADMIN_ARGUMENT: &str = "--admin=";
/// Beginning of the argument that names the debug port.
pub(super) const DEBUG_ARGUMENT: &str = "--debug=";
/// Beginning of the argument that names the file of the service-account token.
pub(super) const TOKEN_ARGUMENT: &str = "--token-file=";

/// Containers of service meshes, by the names that their injectors give them. Their ports are not the application's.
const MESH_PROXIES: [&str; 4] = ["istio-proxy", "linkerd-proxy", "kuma-sidecar", "consul-dataplane"];

/// Iterates over all containers, each with the name of its list and its number in it: the ordinary ones first.
pub(super) fn numbered(spec: &PodSpec) -> impl Iterator<Item = (&'static str, usize, &Container)> + Clone {
    let init = spec.init_containers.iter().flatten().enumerate();
    let ordinary = spec.containers.iter().enumerate().map(|(n, container)| ("containers", n, container));
    ordinary.chain(init.map(|(n, container)| ("initContainers", n, container)))
}

/// Iterates over the ordinary containers, then the native sidecars, as Kubernetes does when it looks for a named port.
pub fn running(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.containers.iter().chain(native_sidecars(spec))
}

/// Iterates over the native sidecars.
pub(super) fn native_sidecars(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().filter(|container| is_native_sidecar(container))
}

/// Reports whether an init container keeps running.
pub(super) fn is_native_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

/// Reports whether a container belongs to a service mesh.
fn is_mesh_proxy(container: &Container) -> bool {
    MESH_PROXIES.contains(&container.name.as_str())
}

/// Returns the sidecar of a pod, either a native one or an ordinary container. A container that only has its name is none. One
/// that lost its restart policy or its volumes is.
pub fn find_sidecar(spec: &PodSpec) -> Option<&Container> {
    numbered(spec).map(|(_, _, container)| container).find(|container| is_sidecar(container))
}

/// Reports whether a container that is not the sidecar has its name.
pub(super) fn is_name_taken(spec: &PodSpec) -> bool {
    numbered(spec).any(|(_, _, container)| container.name == SIDECAR_CONTAINER && !is_sidecar(container))
}

/// Returns the volume with the name of one of the sidecar's that another container mounts.
pub(super) fn taken_volume(spec: &PodSpec) -> Option<&str> {
    let mut mounts = numbered(spec).flat_map(|(_, _, container)| container.volume_mounts.iter().flatten());
    mounts
        .find(|mount| [IDENTITY_VOLUME, STATE_VOLUME].contains(&mount.name.as_str()))
        .map(|mount| &*mount.name)
}

/// Reports whether a container is the sidecar. Whoever strips its mounts leaves its arguments.
pub(super) fn is_sidecar(container: &Container) -> bool {
    let has = |beginning| container.args.iter().flatten().any(|argument| argument.starts_with(beginning));
    let mounts = || container.volume_mounts.iter().flatten().any(|mount| mount.name == IDENTITY_VOLUME);
    container.name == SIDECAR_CONTAINER && has(PROXY_ARGUMENT) && (has(TOKEN_ARGUMENT) || mounts())
}
