//! The decision about a pod. It reads the whole pod and the bounds of its namespace, and changes nothing.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};
use sluice_crds::INJECT_LABEL;

use super::bounds::Bounds;
use super::capture::{self, Ports};
use super::config::InjectConfig;
use super::containers::{is_name_taken, taken_volume};
use super::platform::{dns_problem, is_mirror, is_windows};
use super::pod_settings::PodSettings;
use super::resources::{NoRoom, fit};
use super::skip::Skip;

/// How a pod gets its sidecar.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The ports of the sidecar.
    pub ports: Ports,
    /// The settings of the sidecar, its resources included.
    pub settings: PodSettings,
    /// The resources of the pod itself, raised by the sidecar's, if it has some.
    pub pod_resources: Option<ResourceRequirements>,
    /// Settings that are legal and do not do what they seem to.
    pub warnings: Vec<String>,
}

/// Reports whether labels say that a pod must not have a sidecar.
#[must_use]
pub fn is_opted_out(labels: &BTreeMap<String, String>) -> bool {
    labels.get(INJECT_LABEL).is_some_and(|value| value == "false")
}

/// Returns the warnings that hold for a pod, whether or not it has its sidecar already.
#[must_use]
pub fn warnings(pod: &Pod, config: &InjectConfig) -> Vec<String> {
    let none = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let (_, mut warnings) = PodSettings::new(config, annotations);
    warnings.extend(pod.spec.as_ref().and_then(|spec| dns_problem(spec, &config.cluster_dns)));
    warnings
}

/// Decides whether a pod without a sidecar gets one, and which.
pub fn decide(pod: &Pod, config: &InjectConfig, bounds: &Bounds) -> Result<Plan, Skip> {
    let none = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&none);
    if pod.metadata.labels.as_ref().is_some_and(is_opted_out) {
        return Err(Skip::OptedOut);
    }
    if is_mirror(pod) {
        return Err(Skip::Mirror);
    }
    if spec.host_network == Some(true) {
        return Err(Skip::HostNetwork);
    }
    if is_windows(spec) {
        return Err(Skip::Windows);
    }
    if is_name_taken(spec) {
        return Err(Skip::NameTaken);
    }
    if let Some(volume) = taken_volume(spec) {
        return Err(Skip::VolumeTaken(volume.to_owned()));
    }
    if !config.native && pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "Job") {
        return Err(Skip::Job);
    }
    let ports = capture::plan(pod).map_err(Skip::Capture)?;
    let none = BTreeMap::new();
    let annotations = pod.metadata.annotations.as_ref().unwrap_or(&none);
    let (mut settings, _) = PodSettings::new(config, annotations);
    let mut warnings = warnings(pod, config);
    let fitted = fit(spec, bounds, &config.resources, &settings.resources, &config.guaranteed_resources);
    let fitted = fitted.map_err(|NoRoom| Skip::NoRoom)?;
    settings.resources = fitted.sidecar;
    warnings.extend(fitted.ignored.iter().map(|resource| {
        format!(
            "the annotations sluice.dev/{resource}-request and sluice.dev/{resource}-limit have no effect: the LimitRanges \
             of the namespace, or the resources of the pod, do not allow what they ask for"
        )
    }));
    Ok(Plan { ports, settings, pod_resources: fitted.pod, warnings })
}
