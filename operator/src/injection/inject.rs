//! Adds the sidecar to a pod, by a patch of what the pod's author wrote: nothing else is written, so fields of a newer API
//! stay as they are. Pure and idempotent: a pod as it left it is left unchanged.
//!
//! The API server asks the webhook once more after a webhook or a MutatingAdmissionPolicy that came later, and a manifest may be copied
//! from a running pod. Then the pod gets what others took from it, or changed. An annotation notes what the webhook has changed in it:
//! nothing else tells what the pod was before.

use std::collections::BTreeMap;

use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sluice_crds::{INJECTED_ANNOTATION, SIDECAR_CONTAINER};

use crate::injection::capture::{
    ADMIN_ARGUMENT, CaptureError, CapturedPort, DEBUG_ARGUMENT, PROXY_ARGUMENT, Ports, find_sidecar,
    is_native_sidecar, is_sidecar, moves, named_ports, numbered, of_sidecar, running,
};
use crate::injection::config::InjectConfig;
use crate::injection::decide::{Plan, Skip, decide};
use crate::injection::resources::{Bounds, RESOURCES, share_again};
use crate::injection::sidecar::{self, PRE_STOP_SECONDS, mounts, volumes};

#[cfg(test)]
pub(crate) mod tests;

#[cfg(test)]
mod again_tests;

/// Returns the patch that gives a pod its sidecar, or what others took from it since, or the reason why there is none.
pub fn inject(pod: &Pod, config: &InjectConfig, bounds: &Bounds) -> Result<Injected, Skip> {
    let note = Note::read(pod);
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    if let Some((sidecar, ports)) = find_sidecar(spec).zip(of_sidecar(spec)) {
        return complete(pod, spec, sidecar, ports, note.unwrap_or_default());
    }
    if let Some(given_back) = note.and_then(|note| give_back(spec, &note)) {
        return Ok(given_back);
    }
    let plan = decide(pod, config, bounds)?;
    let mut changes = Changes::default();
    changes.add_sidecar(pod, spec, &plan, config);
    Ok(changes.patch(plan.warnings, "injected"))
}

impl Changes {
    fn add_sidecar(&mut self, pod: &Pod, spec: &PodSpec, plan: &Plan, config: &InjectConfig) {
        let captured = &plan.ports.captured;
        for (list, n, container) in numbered(spec) {
            self.release_ports(spec, list, n, container, captured);
        }
        let sidecar = vec![json!(sidecar::container(&plan.ports, config, &plan.settings))];
        if config.native {
            // After the other init containers, so that these run as before. The sidecar is ready before the
            // application.
            let is_empty = spec.init_containers.as_ref().is_none_or(Vec::is_empty);
            self.append(&in_spec("initContainers"), is_empty, sidecar);
        } else {
            self.append(&in_spec("containers"), spec.containers.is_empty(), sidecar);
        }
        let mut note = Note::default();
        note.captured.extend(captured.iter().map(|port| (port.name.clone(), port.application)));
        self.raise(spec.resources.as_ref(), plan.pod_resources.as_ref(), &mut note);
        let volumes = spec.volumes.as_deref().unwrap_or_default();
        // A manifest copied from a running pod may contain the volumes without the sidecar. From the last one, so that the
        // numbers of those before it stay.
        for (n, volume) in volumes.iter().enumerate().rev() {
            if sidecar::is_sidecar_volume(volume) {
                self.remove(in_spec("volumes").with_trailing_token(n));
            }
        }
        let added = sidecar::volumes().map(|volume| json!(volume)).to_vec();
        self.append(&in_spec("volumes"), volumes.is_empty(), added);
        self.note(pod, &note);
    }
}

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
fn give_back(spec: &PodSpec, note: &Note) -> Option<Injected> {
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

/// Grace period of a pod that sets none, in seconds.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The probes and lifecycle handlers of a container, and the ports of what they do.
const HANDLERS: [&str; 5] =
    ["/livenessProbe", "/readinessProbe", "/startupProbe", "/lifecycle/postStart", "/lifecycle/preStop"];
const ACTIONS: [&str; 2] = ["/httpGet/port", "/tcpSocket/port"];

/// How a pod is changed.
#[derive(Debug, Clone, PartialEq)]
pub struct Injected {
    /// The patch of the pod. Without `test` operations: one that fails would refuse the pod.
    pub patch: Patch,
    /// Warnings about what does not do what it seems to.
    pub warnings: Vec<String>,
    /// Value of the metric label `outcome`.
    pub outcome: &'static str,
}

/// The changes of a pod, in the order in which they are made.
#[derive(Default)]
pub(super) struct Changes(Vec<PatchOperation>);

impl Changes {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn patch(self, warnings: Vec<String>, outcome: &'static str) -> Injected {
        Injected { patch: Patch(self.0), warnings, outcome }
    }

    /// Adds a field or an entry. A field that is there is replaced.
    pub(super) fn add(&mut self, path: PointerBuf, value: Value) {
        self.0.push(PatchOperation::Add(AddOperation { path, value }));
    }

    pub(super) fn remove(&mut self, path: PointerBuf) {
        self.0.push(PatchOperation::Remove(RemoveOperation { path }));
    }

    /// Appends items to a list, which may be absent or null if it is empty.
    pub(super) fn append(&mut self, path: &PointerBuf, is_empty: bool, items: Vec<Value>) {
        if is_empty && !items.is_empty() {
            return self.add(path.clone(), items.into());
        }
        for item in items {
            self.add(path.with_trailing_token("-"), item);
        }
    }

    /// Raises the resources of the pod itself, and notes the amounts. Nothing but the amounts that change is written: a pod may
    /// have amounts of other resources.
    pub(super) fn raise(
        &mut self,
        before: Option<&ResourceRequirements>,
        after: Option<&ResourceRequirements>,
        note: &mut Note,
    ) {
        let [before, after] = [before, after].map(|resources| json!(resources));
        for (part, noted) in
            [("requests", &mut note.resources.requests), ("limits", &mut note.resources.limits)]
        {
            let path = in_spec("resources").with_trailing_token(part);
            let changed =
                RESOURCES.iter().filter(|resource| before[part][resource.name] != after[part][resource.name]);
            for (n, resource) in changed.enumerate() {
                let amount = &after[part][resource.name];
                if n == 0 && before[part].is_null() {
                    self.add(path.clone(), json!({}));
                }
                self.add(path.with_trailing_token(resource.name), amount.clone());
                let amount = Quantity(amount.as_str().unwrap_or_default().to_owned());
                noted.get_or_insert_default().insert(resource.name.to_owned(), amount);
            }
        }
    }

    /// Writes the note of a pod if it has another one.
    pub(super) fn note(&mut self, pod: &Pod, note: &Note) {
        if Note::read(pod).as_ref() == Some(note) {
            return;
        }
        let path = PointerBuf::from_tokens(["metadata", "annotations"]);
        if pod.metadata.annotations.is_none() {
            self.add(path.clone(), json!({}));
        }
        self.add(path.with_trailing_token(INJECTED_ANNOTATION), json!(note).to_string().into());
    }

    /// Removes the names of the captured ports from a container. Probes and lifecycle handlers that refer to such
    /// a name get the number instead, so that they keep reaching the application and never count as requests. Lets an ordinary
    /// container with a captured port sleep before it is stopped. Native sidecars end after the application anyway.
    fn release_ports(
        &mut self,
        spec: &PodSpec,
        list: &'static str,
        n: usize,
        container: &Container,
        captured: &[CapturedPort],
    ) {
        let at = &in_spec(list).with_trailing_token(n);
        let mut has_captured_port = false;
        for (n, port) in container.ports.iter().flatten().enumerate() {
            if captured.iter().any(|c| {
                port.name.as_deref() == Some(&c.name) && port.container_port == i32::from(c.application)
            }) {
                self.remove(
                    at.with_trailing_token("ports").with_trailing_token(n).with_trailing_token("name"),
                );
                has_captured_port = true;
            }
        }
        let value = json!(container);
        for path in handled_ports() {
            let name = value.pointer(path.as_str()).and_then(Value::as_str);
            if let Some(found) = captured.iter().find(|c| name == Some(&c.name)) {
                self.add(at.concat(&path), found.application.into());
            }
        }
        if has_captured_port && list == "containers" {
            let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
            // At most half of the grace period, so that the application has time to stop.
            self.delay_stop(at, container, PRE_STOP_SECONDS.min(grace / 2));
        }
    }

    /// Lets a container sleep before it is stopped, unless it has a preStop handler of its own.
    fn delay_stop(&mut self, at: &PointerBuf, container: &Container, seconds: i64) {
        let sleep = json!({"sleep": {"seconds": seconds}});
        let path = at.with_trailing_token("lifecycle");
        match &container.lifecycle {
            _ if seconds <= 0 => {}
            None => self.add(path, json!({"preStop": sleep})),
            Some(lifecycle) if lifecycle.pre_stop.is_none() => {
                self.add(path.with_trailing_token("preStop"), sleep);
            }
            Some(_) => {}
        }
    }
}

/// Returns the path of a field of the pod's spec.
fn in_spec(field: &'static str) -> PointerBuf {
    PointerBuf::from_tokens(["spec", field])
}

/// Iterates over the paths in a container of the ports that probes and lifecycle handlers refer to.
fn handled_ports() -> impl Iterator<Item = PointerBuf> {
    HANDLERS.iter().flat_map(|handler| {
        ACTIONS.map(|action| Pointer::from_static(handler).concat(Pointer::from_static(action)))
    })
}

/// Maximum length of an annotation that is read, in bytes. Those of the webhook have some hundred.
const MAX_LENGTH: usize = 4096;

/// The changes of a pod by the webhook.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Note {
    /// The names that moved to the sidecar, with the port of the application that had each.
    pub captured: BTreeMap<String, u16>,
    /// Amounts of the pod itself that include the sidecar's.
    #[serde(default)]
    pub resources: ResourceRequirements,
}

impl Note {
    /// Reads the note of a pod. One that is not the webhook's is none.
    pub fn read(pod: &Pod) -> Option<Self> {
        let text = pod.metadata.annotations.as_ref()?.get(INJECTED_ANNOTATION)?;
        (text.len() <= MAX_LENGTH).then(|| serde_json::from_str(text).ok())?
    }
}
