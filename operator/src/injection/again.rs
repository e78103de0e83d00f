//! Pods that others have changed after the sidecar was added. The API server asks the webhook once more after a webhook or
//! a MutatingAdmissionPolicy that came later, and a manifest may be copied from a running pod.

use json_patch::jsonptr::PointerBuf;
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::json;
use sluice_crds::SIDECAR_CONTAINER;

use super::capture::{CaptureError, CapturedPort, Ports, moves, named_ports};
use super::changes::{Changes, Injected, handled_ports, in_spec};
use super::containers::{
    ADMIN_ARGUMENT, DEBUG_ARGUMENT, PROXY_ARGUMENT, is_native_sidecar, is_sidecar, numbered, running,
};
use super::note::Note;
use super::resources::share_again;
use super::sidecar::{mounts, volumes};
use super::skip::Skip;

#[cfg(test)]
mod tests;

/// Returns the patch that gives a pod with a sidecar what others took from it, or changed.
pub(super) fn complete(
    pod: &Pod,
    spec: &PodSpec,
    sidecar: &Container,
    ports: Ports,
    mut note: Note,
) -> Result<Injected, Skip> {
    let moves = moves(spec, &ports);
    let (mut changes, mut warnings) = (Changes::default(), Vec::new());
    let mut is_behind = false;
    for (list, n, container) in numbered(spec) {
        if is_sidecar(container) {
            is_behind = true;
            changes.restore(list, n, container, &moves);
            continue;
        }
        let is_owner = |port: &CapturedPort| {
            named_ports(container).any(|p| p.name == port.name && p.number != port.application)
        };
        let (owned, captured): (Vec<_>, Vec<_>) = ports.captured.iter().cloned().partition(is_owner);
        changes.release_ports(spec, list, n, container, &captured);
        let is_found = !is_behind && (list == "containers" || is_native_sidecar(container));
        warnings.extend(owned.into_iter().filter(|_| is_found).map(|port| {
            let (first, second) = (container.name.clone(), SIDECAR_CONTAINER.to_owned());
            CaptureError::DuplicateName { name: port.name, first, second }.to_string()
        }));
    }
    let present = spec.volumes.as_deref().unwrap_or_default();
    let missing =
        volumes().into_iter().filter(|volume| present.iter().all(|other| other.name != volume.name));
    changes.append(&in_spec("volumes"), present.is_empty(), missing.map(|volume| json!(volume)).collect());
    let mut rest = spec.clone();
    rest.containers.retain(|container| !is_sidecar(container));
    rest.init_containers.iter_mut().for_each(|init| init.retain(|container| !is_sidecar(container)));
    let resources = sidecar.resources.clone().unwrap_or_default();
    let raised = share_again(&rest, &resources, &note.resources);
    changes.raise(spec.resources.as_ref(), raised.as_ref(), &mut note);
    note.captured.extend(ports.captured.into_iter().map(|port| (port.name, port.application)));
    changes.note(pod, &note);
    if changes.is_empty() && warnings.is_empty() {
        return Err(Skip::Present);
    }
    Ok(changes.patch(warnings, "completed"))
}

/// Returns the patch that gives the names of captured ports back to the application if the sidecar was removed. To add it again would
/// not keep it: whoever removed it may be asked again too.
pub(super) fn give_back(spec: &PodSpec, note: &Note) -> Option<Injected> {
    let mut changes = Changes::default();
    let taken = |name: &str| running(spec).flat_map(named_ports).any(|port| port.name == name);
    for (name, number) in note.captured.iter().filter(|(name, _)| !taken(name)) {
        let nameless = numbered(spec).find_map(|(list, n, container)| {
            let ports = container.ports.as_deref().unwrap_or_default();
            let port = ports.iter().position(|port| {
                port.name.as_deref().is_none_or(str::is_empty) && port.container_port == i32::from(*number)
            })?;
            let ports = in_spec(list).with_trailing_token(n).with_trailing_token("ports");
            Some(ports.with_trailing_token(port).with_trailing_token("name"))
        });
        if let Some(path) = nameless {
            changes.add(path, json!(name));
        }
    }
    let warnings = vec![format!("the pod gets no sidecar: {}", Skip::Removed)];
    (!changes.is_empty()).then(|| changes.patch(warnings, Skip::Removed.as_str()))
}

impl Changes {
    /// Restores what the sidecar cannot do without, and moves its ports away from those of other containers. What else others have
    /// changed of it stays.
    fn restore(&mut self, list: &'static str, n: usize, sidecar: &Container, moves: &[(u16, Option<u16>)]) {
        let at = in_spec(list).with_trailing_token(n);
        if list == "initContainers" && !is_native_sidecar(sidecar) {
            self.add(at.with_trailing_token("restartPolicy"), json!("Always"));
        }
        let present = sidecar.volume_mounts.as_deref().unwrap_or_default();
        let missing = mounts()
            .into_iter()
            .filter(|mount| present.iter().all(|other| other.mount_path != mount.mount_path));
        let missing = missing.map(|mount| json!(mount)).collect();
        self.append(&at.with_trailing_token("volumeMounts"), present.is_empty(), missing);
        for (from, to) in moves {
            self.move_port(&at, sidecar, *from, *to);
        }
    }

    /// Lets a sidecar listen on another port, or on none.
    fn move_port(&mut self, at: &PointerBuf, sidecar: &Container, from: u16, to: Option<u16>) {
        let listeners = [PROXY_ARGUMENT, ADMIN_ARGUMENT, DEBUG_ARGUMENT];
        for (n, argument) in sidecar.args.iter().flatten().enumerate() {
            let found = listeners
                .iter()
                .find_map(|listener| argument.strip_prefix(listener).map(|rest| (listener, rest)));
            let Some((beginning, addresses)) = found else { continue };
            let (listen, upstream) = addresses.split_at(addresses.find('=').unwrap_or(addresses.len()));
            let Some(address) = listen.strip_suffix(&format!(":{from}")) else { continue };
            let at = at.with_trailing_token("args").with_trailing_token(n);
            self.remove(at.clone());
            if let Some(to) = to {
                self.add(at, format!("{beginning}{address}:{to}{upstream}").into());
            }
        }
        let Some(to) = to else { return };
        for (n, port) in sidecar.ports.iter().flatten().enumerate() {
            if port.container_port == i32::from(from) {
                let port = at.with_trailing_token("ports").with_trailing_token(n);
                self.add(port.with_trailing_token("containerPort"), to.into());
            }
        }
        let value = json!(sidecar);
        for path in handled_ports().filter(|path| value.pointer(path.as_str()) == Some(&json!(from))) {
            self.add(at.concat(&path), to.into());
        }
    }
}
