//! Which ports of a pod the sidecar takes over: those that the annotation names, or the one named `http`, or the only
//! named TCP port if its name says HTTP. A port of a database must not be taken for one of HTTP: the sidecar would
//! answer its clients. And, of a pod that has a sidecar, which it took.

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod, PodSpec};
use sluice_config::{ADMIN_PORT, PROXY_PORT};
use sluice_crds::{PORTS_ANNOTATION, SIDECAR_CONTAINER};

/// The ports of the sidecar after the first: those between are its own.
const MORE_PROXY_PORTS: u16 = 8794;
/// How many ports of one pod may be captured.
const MOST_PORTS: usize = 16;

/// A port that a sidecar takes over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapturedPort {
    /// Its name, which moves to the sidecar.
    pub name: String,
    /// Where the sidecar listens.
    pub sidecar: u16,
    /// Where the application listens.
    pub application: u16,
}

/// Why no port can be captured.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaptureError {
    /// No port has a name.
    #[error("no TCP port of its containers has a name: add `name: http` to the port that serves requests")]
    NoNamedPort,
    /// Several ports have names, and none of them is `http`.
    #[error(
        "several ports have names ({0}): say which serve requests with the annotation {PORTS_ANNOTATION}"
    )]
    Ambiguous(String),
    /// The only named port does not say that it serves HTTP.
    #[error(
        "the name of its port {0:?} does not say HTTP: if it serves HTTP, say so with the annotation {PORTS_ANNOTATION}: {0}"
    )]
    NotHttp(String),
    /// Two containers have a port of the same name.
    #[error("two ports are named {0:?}: give them different names")]
    Twice(String),
    /// A container listens where the sidecar must.
    #[error("a container has the port {0}, which the sidecar needs")]
    Taken(u16),
    /// The annotation names a port that is not there.
    #[error("the annotation {PORTS_ANNOTATION} names {0:?}, which is no named TCP port of its containers")]
    Unknown(String),
    /// The annotation names too many.
    #[error("the annotation {PORTS_ANNOTATION} names more than {MOST_PORTS} ports")]
    TooMany,
}

/// The ports that a sidecar of this pod would take over.
pub fn plan(pod: &Pod) -> Result<Vec<CapturedPort>, CaptureError> {
    let spec = pod.spec.as_ref();
    let named: Vec<(&str, u16)> = spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .filter(|container| container.name != SIDECAR_CONTAINER)
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(named_tcp)
        .collect();
    let annotation = pod.metadata.annotations.as_ref().and_then(|all| all.get(PORTS_ANNOTATION));
    let wanted: Vec<&str> = match annotation {
        Some(text) => text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect(),
        None => match named.as_slice() {
            [] => return Err(CaptureError::NoNamedPort),
            [(only, _)] if says_http(only) => vec![*only],
            [(only, _)] => return Err(CaptureError::NotHttp((*only).into())),
            several => match several.iter().find(|(name, _)| *name == "http") {
                Some((http, _)) => vec![*http],
                None => {
                    let names: Vec<_> = several.iter().map(|(name, _)| *name).collect();
                    return Err(CaptureError::Ambiguous(names.join(", ")));
                }
            },
        },
    };
    if wanted.is_empty() {
        return Err(CaptureError::NoNamedPort);
    }
    if wanted.len() > MOST_PORTS {
        return Err(CaptureError::TooMany);
    }
    if let Some(name) =
        wanted.iter().find(|name| named.iter().filter(|(other, _)| other == *name).count() > 1)
    {
        return Err(CaptureError::Twice((*name).into()));
    }
    let taken: Vec<u16> = spec
        .iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()))
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| u16::try_from(port.container_port).ok())
        .collect();
    if taken.contains(&ADMIN_PORT) {
        return Err(CaptureError::Taken(ADMIN_PORT));
    }
    let mut free = std::iter::once(PROXY_PORT).chain(MORE_PROXY_PORTS..).filter(|port| !taken.contains(port));
    wanted
        .into_iter()
        .map(|name| {
            let found = named.iter().find(|(other, _)| *other == name);
            let &(_, application) = found.ok_or_else(|| CaptureError::Unknown(name.into()))?;
            Ok(CapturedPort { name: name.into(), sidecar: free.next().unwrap_or(PROXY_PORT), application })
        })
        .collect()
}

/// Whether a port's name says that it serves HTTP without TLS: by the names that Kubernetes users give such ports.
fn says_http(name: &str) -> bool {
    let first = name.split('-').next().unwrap_or(name);
    let word = first.trim_end_matches(|c: char| c.is_ascii_digit());
    ["http", "web", "grpc"].contains(&word) || first == "h2c"
}

fn named_tcp(port: &ContainerPort) -> Option<(&str, u16)> {
    let tcp = port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP");
    let number = u16::try_from(port.container_port).ok().filter(|number| *number > 0)?;
    port.name.as_deref().filter(|name| tcp && !name.is_empty()).map(|name| (name, number))
}

/// The sidecar of a pod, native or not.
#[must_use]
pub fn sidecar(spec: &PodSpec) -> Option<&Container> {
    let mut all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.find(|container| container.name == SIDECAR_CONTAINER)
}

/// The ports that a pod's sidecar has taken over; nothing if it has none.
#[must_use]
pub fn of_sidecar(spec: &PodSpec) -> Option<Vec<CapturedPort>> {
    let container = sidecar(spec)?;
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
