//! Where a pod says that it runs: on Windows, and with which DNS.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec};

/// Labels of nodes that name their operating system.
pub(super) const OS_LABELS: [&str; 2] = ["kubernetes.io/os", "beta.kubernetes.io/os"];
const WINDOWS: &str = "windows";
/// Annotation of a pod that kubelet read from a file, and not from the API server.
pub(super) const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

/// Reports whether a pod stands for one that kubelet read from a file.
pub(super) fn is_mirror(pod: &Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(MIRROR_ANNOTATION))
}

/// Reports whether a pod can only run on Windows: by its operating system, the nodes that it selects, or options that only
/// Windows has.
pub(super) fn is_windows(spec: &PodSpec) -> bool {
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
pub(super) fn dns_problem(spec: &PodSpec, cluster: &[IpAddr]) -> Option<String> {
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
