//! The containers of a pod that keep running: the ordinary ones, and the native sidecars, which are init containers with
//! the restart policy `Always`.

use k8s_openapi::api::core::v1::{Container, PodSpec};
use sluice_crds::SIDECAR_CONTAINER;

/// Volume of the service-account token and the operator's authority.
pub(super) const IDENTITY_VOLUME: &str = "sluice-identity";
/// Volume of the last good snapshot.
pub(super) const STATE_VOLUME: &str = "sluice-state";
/// Beginning of the argument that names a listener of the sidecar and the application behind it.
pub(super) const PROXY_ARGUMENT: &str = "--proxy=";
/// Beginning of the argument that names the admin port.
pub(super) const ADMIN_ARGUMENT: &str = "--admin=";

/// Containers of service meshes, by the names that their injectors give them. Their ports are not the application's.
const MESH_PROXIES: [&str; 4] = ["istio-proxy", "linkerd-proxy", "kuma-sidecar", "consul-dataplane"];

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
pub(super) fn is_mesh_proxy(container: &Container) -> bool {
    MESH_PROXIES.contains(&container.name.as_str())
}

/// Returns the sidecar of a pod, either a native one or an ordinary container. A container that only has its name is none.
#[must_use]
pub fn find_sidecar(spec: &PodSpec) -> Option<&Container> {
    running(spec).find(|container| has_sidecar_name(container) && is_sidecar(container))
}

/// Reports whether a container that is not the sidecar has its name.
pub(super) fn is_name_taken(spec: &PodSpec) -> bool {
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(has_sidecar_name)
        && find_sidecar(spec).is_none()
}

/// Returns the volume with the name of one of the sidecar's that another container mounts.
pub(super) fn taken_volume(spec: &PodSpec) -> Option<&str> {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut mounts = containers.flat_map(|container| container.volume_mounts.iter().flatten());
    mounts
        .find(|mount| [IDENTITY_VOLUME, STATE_VOLUME].contains(&mount.name.as_str()))
        .map(|mount| &*mount.name)
}

fn has_sidecar_name(container: &Container) -> bool {
    container.name == SIDECAR_CONTAINER
}

fn is_sidecar(container: &Container) -> bool {
    container.args.iter().flatten().any(|argument| argument.starts_with(PROXY_ARGUMENT))
        && container.volume_mounts.iter().flatten().any(|mount| mount.name == IDENTITY_VOLUME)
}
