//! Adds the sidecar to a pod, by a patch of what the pod's author wrote: nothing else is written, so fields of a newer API
//! stay as they are. Pure and idempotent: a pod that has a sidecar is left unchanged.

use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::{Value, json};

use super::bounds::Bounds;
use super::capture::CapturedPort;
use super::config::InjectConfig;
use super::decide::{Plan, decide};
use super::resources::RESOURCES;
use super::sidecar::{self, PRE_STOP_SECONDS};
use super::skip::Skip;

#[cfg(test)]
pub(crate) mod tests;

/// Grace period of a pod that sets none, in seconds.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The probes and lifecycle handlers of a container, and the ports of what they do.
const HANDLERS: [&str; 5] =
    ["/livenessProbe", "/readinessProbe", "/startupProbe", "/lifecycle/postStart", "/lifecycle/preStop"];
const ACTIONS: [&str; 2] = ["/httpGet/port", "/tcpSocket/port"];

/// How a pod gets its sidecar.
#[derive(Debug, Clone, PartialEq)]
pub struct Injected {
    /// The patch of the pod. Without `test` operations: one that fails would refuse the pod.
    pub patch: Patch,
    /// Warnings about annotations that have no effect.
    pub warnings: Vec<String>,
}

/// Returns the patch that gives a pod its sidecar, or the reason why it gets none.
pub fn inject(pod: &Pod, config: &InjectConfig, bounds: &Bounds) -> Result<Injected, Skip> {
    let plan = decide(pod, config, bounds)?;
    let mut changes = Changes::default();
    if let Some(spec) = &pod.spec {
        changes.add_sidecar(spec, &plan, config);
    }
    Ok(Injected { patch: Patch(changes.0), warnings: plan.warnings })
}

/// The changes of a pod, in the order in which they are made.
#[derive(Default)]
struct Changes(Vec<PatchOperation>);

impl Changes {
    /// Adds a field or an entry. A field that is there is replaced.
    fn add(&mut self, path: PointerBuf, value: Value) {
        self.0.push(PatchOperation::Add(AddOperation { path, value }));
    }

    fn remove(&mut self, path: PointerBuf) {
        self.0.push(PatchOperation::Remove(RemoveOperation { path }));
    }

    /// Appends items to a list of the pod, which may be absent or null if it is empty.
    fn append(&mut self, list: &str, is_empty: bool, items: Vec<Value>) {
        let path = PointerBuf::from_tokens(["spec", list]);
        if is_empty {
            return self.add(path, items.into());
        }
        for item in items {
            self.add(path.with_trailing_token("-"), item);
        }
    }

    fn add_sidecar(&mut self, spec: &PodSpec, plan: &Plan, config: &InjectConfig) {
        let captured = &plan.ports.captured;
        let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
        // At most half of the grace period, so that the application has time to stop.
        let pre_stop_seconds = PRE_STOP_SECONDS.min(grace / 2);
        for (n, container) in spec.containers.iter().enumerate() {
            let at = PointerBuf::from_tokens(["spec", "containers"]).with_trailing_token(n);
            if self.release_ports(&at, container, captured) {
                self.delay_stop(&at, container, pre_stop_seconds);
            }
        }
        // Native sidecars end after the application anyway.
        let init_containers = spec.init_containers.as_deref().unwrap_or_default();
        for (n, container) in init_containers.iter().enumerate() {
            let at = PointerBuf::from_tokens(["spec", "initContainers"]).with_trailing_token(n);
            self.release_ports(&at, container, captured);
        }
        let sidecar = vec![json!(sidecar::container(&plan.ports, config, &plan.settings))];
        if config.native {
            // After the other init containers, so that these run as before. The sidecar is ready before the
            // application.
            self.append("initContainers", init_containers.is_empty(), sidecar);
        } else {
            self.append("containers", spec.containers.is_empty(), sidecar);
        }
        // Nothing but the amounts that change is written: a pod may have amounts of other resources.
        let [before, after] = [&spec.resources, &plan.pod_resources].map(|resources| json!(resources));
        for (part, name) in
            RESOURCES.iter().flat_map(|resource| ["requests", "limits"].map(|part| (part, resource.name)))
        {
            if before[part][name] != after[part][name] {
                let path = PointerBuf::from_tokens(["spec", "resources", part, name]);
                self.add(path, after[part][name].clone());
            }
        }
        let volumes = spec.volumes.as_deref().unwrap_or_default();
        // A manifest copied from a running pod may contain the volumes without the sidecar. From the last one, so that the
        // numbers of those before it stay.
        for (n, volume) in volumes.iter().enumerate().rev() {
            if sidecar::is_sidecar_volume(volume) {
                self.remove(PointerBuf::from_tokens(["spec", "volumes"]).with_trailing_token(n));
            }
        }
        let added = sidecar::volumes().map(|volume| json!(volume)).to_vec();
        self.append("volumes", volumes.is_empty(), added);
    }

    /// Removes the names of the captured ports from a container. Probes and lifecycle handlers that refer to such
    /// a name get the number instead, so that they keep reaching the application and never count as requests.
    /// Reports whether the container has a captured port.
    fn release_ports(&mut self, at: &PointerBuf, container: &Container, captured: &[CapturedPort]) -> bool {
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
        let container = json!(container);
        for (handler, action) in HANDLERS.iter().flat_map(|handler| ACTIONS.map(|action| (handler, action))) {
            let path = Pointer::from_static(handler).concat(Pointer::from_static(action));
            let name = container.pointer(path.as_str()).and_then(Value::as_str);
            if let Some(found) = captured.iter().find(|c| name == Some(&c.name)) {
                self.add(at.concat(&path), found.application.into());
            }
        }
        has_captured_port
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
