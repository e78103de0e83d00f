//! Injection as a change of a typed pod. What the patch makes of a pod must be the same.

use k8s_openapi::api::core::v1::{Lifecycle, LifecycleHandler, SleepAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::*;
use crate::injection::capture::CapturedPort;
use crate::injection::inject::DEFAULT_GRACE_SECONDS;
use crate::injection::sidecar::PRE_STOP_SECONDS;

pub(super) fn inject(mut pod: Pod, config: &InjectConfig) -> Result<Pod, Skip> {
    let plan = decide(&pod, config, &Bounds::default())?;
    let before = json!(pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()));
    let after = json!(plan.pod_resources);
    let mut note = json!({"captured": {}, "resources": {}});
    for (part, name) in [("requests", "cpu"), ("requests", "memory"), ("limits", "cpu"), ("limits", "memory")]
    {
        if before[part][name] != after[part][name] {
            note["resources"][part][name] = after[part][name].clone();
        }
    }
    for port in &plan.ports.captured {
        note["captured"][&port.name] = port.application.into();
    }
    pod.metadata.annotations.get_or_insert_default().insert("sluice.dev/injected".into(), note.to_string());
    pod.spec = Some(add_sidecar(pod.spec.unwrap_or_default(), &plan, config));
    Ok(pod)
}

fn add_sidecar(mut spec: PodSpec, plan: &Plan, config: &InjectConfig) -> PodSpec {
    let captured = &plan.ports.captured;
    let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
    // At most half of the grace period, so that the application has time to stop.
    let pre_stop_seconds = PRE_STOP_SECONDS.min(grace / 2);
    for container in &mut spec.containers {
        if release_ports(container, captured) {
            delay_stop(container, pre_stop_seconds);
        }
    }
    // Native sidecars end after the application anyway.
    for container in spec.init_containers.iter_mut().flatten() {
        release_ports(container, captured);
    }
    let sidecar = sidecar::container(&plan.ports, config, &plan.settings);
    if config.native {
        // After the other init containers, so that these run as before. The sidecar is ready before the
        // application.
        spec.init_containers.get_or_insert_default().push(sidecar);
    } else {
        spec.containers.push(sidecar);
    }
    spec.resources.clone_from(&plan.pod_resources);
    // A manifest copied from a running pod may contain the volumes without the sidecar.
    let volumes = spec.volumes.get_or_insert_default();
    volumes.retain(|volume| !sidecar::is_sidecar_volume(volume));
    volumes.extend(sidecar::volumes());
    spec
}

/// Removes the names of the captured ports from a container. Probes and lifecycle handlers that refer to such
/// a name get the number instead, so that they keep reaching the application and never count as requests.
/// Reports whether the container has a captured port.
fn release_ports(container: &mut Container, captured: &[CapturedPort]) -> bool {
    let mut has_captured_port = false;
    for port in container.ports.iter_mut().flatten() {
        if captured
            .iter()
            .any(|c| port.name.as_deref() == Some(&c.name) && port.container_port == i32::from(c.application))
        {
            port.name = None;
            has_captured_port = true;
        }
    }
    let replace_name = |port: &mut IntOrString| {
        if let IntOrString::String(name) = port
            && let Some(found) = captured.iter().find(|c| c.name == *name)
        {
            *port = IntOrString::Int(i32::from(found.application));
        }
    };
    for probe in [&mut container.liveness_probe, &mut container.readiness_probe, &mut container.startup_probe]
    {
        let Some(probe) = probe else { continue };
        probe.http_get.iter_mut().for_each(|get| replace_name(&mut get.port));
        probe.tcp_socket.iter_mut().for_each(|socket| replace_name(&mut socket.port));
    }
    if let Some(lifecycle) = &mut container.lifecycle {
        for handler in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
            handler.http_get.iter_mut().for_each(|get| replace_name(&mut get.port));
            handler.tcp_socket.iter_mut().for_each(|socket| replace_name(&mut socket.port));
        }
    }
    has_captured_port
}

/// Lets a container sleep before it is stopped, unless it has a preStop handler of its own.
fn delay_stop(container: &mut Container, seconds: i64) {
    let has_handler = container.lifecycle.as_ref().is_some_and(|lifecycle| lifecycle.pre_stop.is_some());
    if seconds > 0 && !has_handler {
        let sleep = LifecycleHandler { sleep: Some(SleepAction { seconds }), ..LifecycleHandler::default() };
        container.lifecycle.get_or_insert_with(Lifecycle::default).pre_stop = Some(sleep);
    }
}
