//! The parts of a pod that injection reads. All else is of no interest, and may be most of it: environments, scripts, and who
//! set which field.

use sluice_crds::{GROUP, INJECT_LABEL};

use super::platform::{MIRROR_ANNOTATION, OS_LABELS};
use super::resources::RESOURCES;

/// How much the parts of a pod may count. A container of a usual pod counts some hundred.
pub const MOST: usize = 30_000;

/// Fields that are read, wherever they are in an object that is read.
const FIELDS: &str = "metadata annotations generateName kind labels name namespace ownerReferences \
    spec containers initContainers volumes hostNetwork terminationGracePeriodSeconds \
    affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms matchExpressions key operator values \
    nodeSelector os securityContext windowsOptions dnsConfig dnsPolicy nameservers searches \
    args resources limits requests restartPolicy volumeMounts mountPath ports containerPort protocol \
    livenessProbe readinessProbe startupProbe lifecycle postStart preStop httpGet tcpSocket port";

/// Returns what a part of a pod counts, given the name of the field that contains it and its own. `None`: it is not read.
/// Containers and volumes have so many fields that each takes the memory of 25 others.
#[must_use]
pub fn cost(of: &str, field: &str) -> Option<usize> {
    let is_read = match of {
        "annotations" => field.starts_with(GROUP) || field == MIRROR_ANNOTATION,
        "labels" => field == INJECT_LABEL,
        "nodeSelector" => OS_LABELS.contains(&field),
        "limits" | "requests" => RESOURCES.iter().any(|resource| resource.name == field),
        "volumes" => field == "name",
        _ => FIELDS.split(' ').any(|known| known == field),
    };
    let is_large = ["containers", "initContainers", "volumes"].contains(&field);
    is_read.then_some(if is_large { 25 } else { 1 })
}
