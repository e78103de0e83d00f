//! Adds the sidecar to a pod. Pure and idempotent: a pod that has a sidecar is left unchanged.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Lifecycle, LifecycleHandler, Pod, PodSpec, SleepAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_crds::INJECT_LABEL;

use crate::admission::config::InjectConfig;
use crate::admission::pod_settings::PodSettings;
use crate::admission::sidecar::{self, PRE_STOP_SECONDS};
use crate::capture::{self, CaptureError, CapturedPort};

#[cfg(test)]
pub(super) mod tests;

/// Grace period of a pod that sets none, in seconds.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The reason why a pod gets no sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skip {
    /// The pod has a sidecar.
    Present,
    /// The pod is labelled to get none.
    OptedOut,
    /// The pod uses the host's network.
    HostNetwork,
    /// The pod runs on Windows.
    Windows,
    /// The pod belongs to a Job, which would never complete while an ordinary container keeps running.
    Job,
    /// No port of the pod can be captured.
    Capture(CaptureError),
}

impl Skip {
    /// Returns what keeps the pod from having a sidecar, unless it has one or wants none.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Present | Self::OptedOut => None,
            Self::HostNetwork => Some("it uses the network of its host".to_owned()),
            Self::Windows => Some("it runs on Windows, which sidecars do not support".to_owned()),
            Self::Job => Some(
                "it belongs to a Job, which a sidecar would keep from completing: this needs Kubernetes 1.32"
                    .to_owned(),
            ),
            Self::Capture(error) => Some(error.to_string()),
        }
    }

    /// Returns the value of the metric label `outcome`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::OptedOut => "opted-out",
            Self::HostNetwork => "host-network",
            Self::Windows => "windows",
            Self::Job => "job",
            Self::Capture(_) => "nothing-to-capture",
        }
    }
}

/// A pod with its sidecar.
#[derive(Debug, Clone, PartialEq)]
pub struct Injected {
    /// The pod.
    pub pod: Pod,
    /// Warnings about annotations that have no effect.
    pub warnings: Vec<String>,
}

/// Returns the pod with its sidecar, or the reason why it gets none.
pub fn inject(pod: &Pod, config: &InjectConfig) -> Result<Injected, Skip> {
    let spec = pod.spec.clone().unwrap_or_default();
    let label =
        |name: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
    if capture::find_sidecar(&spec).is_some() {
        return Err(Skip::Present);
    }
    if label(INJECT_LABEL) == Some("false") {
        return Err(Skip::OptedOut);
    }
    if spec.host_network == Some(true) {
        return Err(Skip::HostNetwork);
    }
    if spec.os.as_ref().is_some_and(|os| os.name == "windows") {
        return Err(Skip::Windows);
    }
    if !config.native && pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "Job") {
        return Err(Skip::Job);
    }
    let captured = capture::plan(pod).map_err(Skip::Capture)?;
    let none = BTreeMap::new();
    let (settings, warnings) = PodSettings::new(config, pod.metadata.annotations.as_ref().unwrap_or(&none));
    let mut pod = pod.clone();
    pod.spec = Some(add_sidecar(spec, &captured, config, &settings));
    Ok(Injected { pod, warnings })
}

fn add_sidecar(
    mut spec: PodSpec,
    captured: &[CapturedPort],
    config: &InjectConfig,
    settings: &PodSettings,
) -> PodSpec {
    let grace = spec.termination_grace_period_seconds.unwrap_or(DEFAULT_GRACE_SECONDS);
    // At most half of the grace period, so that the application has time to stop.
    let pre_stop_seconds = if config.pre_stop_sleep { PRE_STOP_SECONDS.min(grace / 2) } else { 0 };
    for container in &mut spec.containers {
        if release_ports(container, captured) {
            delay_stop(container, pre_stop_seconds);
        }
    }
    let sidecar = sidecar::container(captured, config, settings);
    if config.native {
        // After the other init containers, so that these run as before. The sidecar is ready before the
        // application.
        spec.init_containers.get_or_insert_default().push(sidecar);
    } else {
        spec.containers.push(sidecar);
    }
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
