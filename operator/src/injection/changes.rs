//! The changes of a pod as operations of a JSON patch.

use json_patch::jsonptr::{Pointer, PointerBuf};
use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};
use sluice_crds::INJECTED_ANNOTATION;

use super::capture::CapturedPort;
use super::note::Note;
use super::resources::RESOURCES;
use super::sidecar::PRE_STOP_SECONDS;

/// Grace period of a pod that sets none, in seconds.
pub(super) const DEFAULT_GRACE_SECONDS: i64 = 30;

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
    pub(super) fn release_ports(
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
pub(super) fn in_spec(field: &'static str) -> PointerBuf {
    PointerBuf::from_tokens(["spec", field])
}

/// Iterates over the paths in a container of the ports that probes and lifecycle handlers refer to.
pub(super) fn handled_ports() -> impl Iterator<Item = PointerBuf> {
    HANDLERS.iter().flat_map(|handler| {
        ACTIONS.map(|action| Pointer::from_static(handler).concat(Pointer::from_static(action)))
    })
}
