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
pub(super) fn is_mesh_proxy(container: &Container) -> bool {
    MESH_PROXIES.contains(&container.name.as_str())
}

/// Returns the sidecar of a pod, either a native one or an ordinary container. A container that only has its name is none. One
/// that lost its restart policy or its volumes is.
#[must_use]
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
