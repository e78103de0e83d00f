//! Adds the sidecar to a pod, by a patch of what the pod's author wrote: nothing else is written, so fields of a newer API
//! stay as they are. Pure and idempotent: a pod as it left it is left unchanged.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::json;

use super::again::{complete, give_back};
use super::bounds::Bounds;
use super::capture::of_sidecar;
use super::changes::{Changes, Injected, in_spec};
use super::config::InjectConfig;
use super::containers::{find_sidecar, numbered};
use super::decide::{Plan, decide};
use super::note::Note;
use super::sidecar;
use super::skip::Skip;

#[cfg(test)]
pub(crate) mod tests;

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
