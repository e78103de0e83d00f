//! The decision about a pod: whether it gets a sidecar, and why not. It reads the bounds of the namespace and the parts of the pod that
//! matter, and changes nothing. All else of a pod is of no interest, and may be most of it: environments, scripts, and who set which
//! field.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, ResourceRequirements,
};
use sluice_crds::{GROUP, INJECT_LABEL, INJECTED_ANNOTATION, SIDECAR_CONTAINER};

use crate::injection::capture::{self, CaptureError, Ports, is_name_taken, taken_volume};
use crate::injection::config::{InjectConfig, PodSettings};
use crate::injection::resources::{Bounds, NoRoom, RESOURCES, fit};

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
pub fn is_opted_out(labels: &BTreeMap<String, String>) -> bool {
    labels.get(INJECT_LABEL).is_some_and(|value| value == "false")
}

/// Returns the warnings that hold for a pod, whether or not it has its sidecar already.
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

/// The reason why a pod gets no sidecar. Its text says what keeps the pod from having one, and what to do. It tells nothing
/// but what the pod contains: the webhook does not know who asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Skip {
    /// The pod has a sidecar.
    Present,
    /// The pod had a sidecar, which something removed.
    Removed,
    /// The pod is labelled to get none.
    OptedOut,
    /// The pod uses the host's network.
    HostNetwork,
    /// The pod stands for one that kubelet read from a file. The API server refuses any change of it.
    Mirror,
    /// The pod runs on Windows.
    Windows,
    /// The pod belongs to a Job, which would never complete while an ordinary container keeps running.
    Job,
    /// A container that is not the sidecar has its name.
    NameTaken,
    /// A container mounts a volume with the name of one of the sidecar's.
    VolumeTaken(String),
    /// The bounds of the namespace leave too little for a sidecar.
    NoRoom,
    /// No port of the pod can be captured.
    Capture(CaptureError),
}

impl Skip {
    /// Reports whether the pod is to have no sidecar, or has one. All else is a problem to tell.
    pub fn is_wanted(&self) -> bool {
        matches!(self, Self::Present | Self::OptedOut)
    }

    /// Returns the value of the metric label `outcome`.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Removed => "removed",
            Self::OptedOut => "opted-out",
            Self::HostNetwork => "host-network",
            Self::Mirror => "mirror",
            Self::Windows => "windows",
            Self::Job => "job",
            Self::NameTaken | Self::VolumeTaken(_) => "name-taken",
            Self::NoRoom => "no-room",
            Self::Capture(_) => "nothing-to-capture",
        }
    }
}

impl Display for Skip {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Present => f.write_str("it has a sidecar"),
            Self::Removed => write!(
                f,
                "another webhook or a MutatingAdmissionPolicy removed it after Sluice had added it. `kubectl get \
                 mutatingwebhookconfigurations,mutatingadmissionpolicies` lists them: let it leave the container \
                 {SIDECAR_CONTAINER} in the pod, or label the pod {INJECT_LABEL}=false. If the pod was copied from one with a \
                 sidecar, remove the annotation {INJECTED_ANNOTATION}"
            ),
            Self::OptedOut => write!(f, "it is labelled {INJECT_LABEL}=false"),
            Self::HostNetwork => f.write_str("it uses the network of its host"),
            Self::Mirror => f.write_str(
                "kubelet made it from a file on its node, and such pods cannot be changed: run it as a DaemonSet",
            ),
            Self::Windows => f.write_str("it runs on Windows, which sidecars do not support"),
            Self::Job => f.write_str(
                "it belongs to a Job, which a sidecar would keep from completing: this needs Kubernetes 1.33",
            ),
            Self::NameTaken => {
                write!(f, "a container that is not Sluice's is named {SIDECAR_CONTAINER}: rename it")
            }
            Self::VolumeTaken(name) => {
                write!(f, "a container mounts a volume of its own named {name}, a name that the sidecar needs: rename it")
            }
            Self::NoRoom => write!(
                f,
                "the LimitRanges of its namespace leave no room for it: a sidecar needs a limit of 100m CPU and 64Mi memory \
                 beside the other containers. Raise them, or label the pod {INJECT_LABEL}=false"
            ),
            Self::Capture(error) => Display::fmt(error, f),
        }
    }
}

/// Labels of nodes that name their operating system.
const OS_LABELS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];
const WINDOWS: &str = "windows";
/// Annotation of a pod that kubelet read from a file, and not from the API server.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Reports whether a pod stands for one that kubelet read from a file.
fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION))
}

/// Reports whether a pod can only run on Windows: by its operating system, the nodes that it selects, or options that only
/// Windows has.
fn is_windows(spec: &PodSpec) -> bool {
    let by_os = spec.os.as_ref().is_some_and(|os| os.name == WINDOWS);
    let by_selector = spec
        .node_selector
        .iter()
        .flatten()
        .any(|(label, value)| OS_LABELS.contains(&label.as_str()) && value.eq_ignore_ascii_case(WINDOWS));
    let required = || {
        let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
        affinity.required_during_scheduling_ignored_during_execution.as_ref()
    };
    // A node must satisfy one of the terms.
    let by_affinity = required().is_some_and(|required| {
        let terms = &required.node_selector_terms;
        !terms.is_empty() && terms.iter().all(selects_windows)
    });
    let options = spec.security_context.as_ref().is_some_and(|context| context.windows_options.is_some());
    let of_container = spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(|container| {
        container.security_context.as_ref().is_some_and(|context| context.windows_options.is_some())
    });
    by_os || by_selector || by_affinity || options || of_container
}

fn selects_windows(term: &NodeSelectorTerm) -> bool {
    let names_windows = |requirement: &NodeSelectorRequirement| {
        let values = requirement.values.as_deref().unwrap_or_default();
        OS_LABELS.contains(&requirement.key.as_str())
            && requirement.operator == "In"
            && !values.is_empty()
            && values.iter().all(|value| value.eq_ignore_ascii_case(WINDOWS))
    };
    term.match_expressions.iter().flatten().any(names_windows)
}

/// Returns why the pod's DNS does not know the name of the operator, if that is so. `cluster` are the name servers that the
/// operator has from kubelet; empty if they are not known.
fn dns_problem(spec: &PodSpec, cluster: &[IpAddr]) -> Option<String> {
    let config = spec.dns_config.as_ref();
    let has_server = || {
        let servers = config.and_then(|config| config.nameservers.as_deref()).unwrap_or_default();
        servers
            .iter()
            .filter_map(|server| server.parse::<IpAddr>().ok())
            .any(|server| cluster.contains(&server))
    };
    // The operator's name lacks the domain of the cluster.
    let has_search = || {
        let searches = config.and_then(|config| config.searches.as_deref()).unwrap_or_default();
        searches.iter().any(|domain| !domain.is_empty() && domain != ".")
    };
    let policy = spec.dns_policy.as_deref()?;
    match policy {
        "Default" | "None" if cluster.is_empty() => return None,
        "Default" | "None" if has_server() && has_search() => return None,
        "Default" | "None" => {}
        _ => return None,
    }
    Some(format!(
        "its dnsPolicy {policy} leaves out the DNS of the cluster, so its sidecar does not find the operator and never gets a \
         policy: use dnsPolicy ClusterFirst, or add the cluster's name server and a search domain such as cluster.local to \
         dnsConfig"
    ))
}

/// How much the parts of a pod may count. A container of a usual pod counts some hundred.
pub const MOST_PARTS: usize = 30_000;

/// Fields that are read, wherever they are in an object that is read.
const FIELDS: &str = "metadata annotations generateName kind labels name namespace ownerReferences \
    spec containers initContainers volumes hostNetwork terminationGracePeriodSeconds \
    affinity nodeAffinity requiredDuringSchedulingIgnoredDuringExecution nodeSelectorTerms matchExpressions key operator values \
    nodeSelector os securityContext windowsOptions dnsConfig dnsPolicy nameservers searches \
    args resources limits requests restartPolicy volumeMounts mountPath ports containerPort protocol \
    livenessProbe readinessProbe startupProbe lifecycle postStart preStop httpGet tcpSocket port";

/// Returns what a part of a pod counts, given the name of the field that contains it and its own. `None`: it is not read.
/// Containers and volumes have so many fields that each takes the memory of 25 others.
pub fn cost_of_part(of: &str, field: &str) -> Option<usize> {
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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
    fn spec(extra: Value) -> PodSpec {
        let mut spec = json!({"containers": [{"name": "app"}]});
        json_patch::merge(&mut spec, &extra);
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_pod_asks_for_windows_in_several_ways() {
        let affinity = |terms: Value| json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}});
        let os = |operator: &str, values: Value| json!({"matchExpressions": [{"key": "kubernetes.io/os", "operator": operator, "values": values}]});
        for windows in [
            json!({"os": {"name": "windows"}}),
            json!({"nodeSelector": {"kubernetes.io/os": "windows"}}),
            json!({"nodeSelector": {"beta.kubernetes.io/os": "Windows"}}),
            affinity(json!([os("In", json!(["windows"]))])),
            json!({"securityContext": {"windowsOptions": {"runAsUserName": "ContainerUser"}}}),
            json!({"containers": [{"name": "app", "securityContext": {"windowsOptions": {}}}]}),
        ] {
            assert!(is_windows(&spec(windows.clone())), "{windows}");
        }
        for other in [
            json!({}),
            json!({"os": {"name": "linux"}}),
            json!({"nodeSelector": {"kubernetes.io/os": "linux"}}),
            affinity(json!([os("In", json!(["windows", "linux"]))])),
            affinity(json!([os("NotIn", json!(["windows"]))])),
            affinity(json!([os("In", json!(["windows"])), os("In", json!(["linux"]))])),
            json!({"tolerations": [{"key": "os", "value": "windows"}]}),
        ] {
            assert!(!is_windows(&spec(other.clone())), "{other}");
        }
    }

    #[test]
    fn a_pod_without_the_cluster_s_dns_is_told() {
        let cluster = ["10.96.0.10".parse().unwrap()];
        let of = |extra: Value| dns_problem(&spec(extra), &cluster);
        for fine in [
            json!({}),
            json!({"dnsPolicy": "ClusterFirst"}),
            json!({"dnsPolicy": "ClusterFirstWithHostNet"}),
            json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1", "10.96.0.10"], "searches": ["cluster.local"]}}),
        ] {
            assert_eq!(of(fine.clone()), None, "{fine}");
        }
        for (policy, config) in [
            ("Default", json!(null)),
            ("None", json!({"nameservers": ["1.1.1.1"], "searches": ["cluster.local"]})),
            ("None", json!({"nameservers": ["10.96.0.10"]})),
        ] {
            let problem = of(json!({"dnsPolicy": policy, "dnsConfig": config})).unwrap();
            assert!(problem.contains(policy), "{problem}");
        }
        assert_eq!(dns_problem(&spec(json!({"dnsPolicy": "Default"})), &[]), None, "nothing to compare with");
    }
}
