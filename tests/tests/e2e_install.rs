//! `helm install` on a real node, as the README describes.

use sluice_tests::node::{SYSTEM, install, kubectl};

#[test]
fn e2e_helm_install_becomes_ready() {
    install();
    kubectl(&format!("-n {SYSTEM} rollout status deployment/sluice-operator --timeout=180s"));
    assert!(kubectl("get crd ratelimitpolicies.sluice.dev -o name").contains("ratelimitpolicies.sluice.dev"));
    let pods = kubectl(&format!("-n {SYSTEM} get pods"));
    assert!(pods.contains("sluice-operator") && pods.contains("sluice-redis"), "{pods}");
}

#[test]
fn e2e_the_operator_has_the_rights_that_it_needs_and_no_others() {
    install();
    let can = |request: &str| {
        let account = format!("--as=system:serviceaccount:{SYSTEM}:sluice-operator");
        let mut arguments = vec!["auth", "can-i"];
        arguments.extend(request.split(' '));
        arguments.push(&account);
        sluice_tests::node::run("kubectl", &arguments, "").0
    };
    for request in [
        "watch pods -A",
        "get pods -A",
        "create tokenreviews.authentication.k8s.io",
        "watch ratelimitpolicies.sluice.dev -A",
        "watch endpointslices.discovery.k8s.io -A",
        "watch networkpolicies.networking.k8s.io -A",
    ] {
        assert!(can(request), "{request}");
    }
    for request in [
        "get secrets -A",
        "get secrets -n default",
        "get configmaps -A",
        "create pods -A",
        "delete pods -A",
        "patch deployments.apps -A",
        "create pods/exec -A",
        "update ratelimitpolicies.sluice.dev -A",
        "patch services -A",
        "patch endpointslices.discovery.k8s.io -A",
        "create networkpolicies.networking.k8s.io -A",
        "get nodes",
        "create clusterrolebindings.rbac.authorization.k8s.io",
        "delete mutatingwebhookconfigurations.admissionregistration.k8s.io",
    ] {
        assert!(!can(request), "{request}");
    }
}
