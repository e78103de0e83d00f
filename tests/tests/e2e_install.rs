//! `helm install` on a real node, as the README says.

use sluice_tests::node::{SYSTEM, install, kubectl};

#[test]
fn e2e_installs_by_helm_and_comes_up() {
    install();
    kubectl(&format!("-n {SYSTEM} rollout status deployment/sluice-operator --timeout=180s"));
    assert!(kubectl("get crd ratelimitpolicies.sluice.dev -o name").contains("ratelimitpolicies.sluice.dev"));
    let pods = kubectl(&format!("-n {SYSTEM} get pods"));
    assert!(pods.contains("sluice-operator") && pods.contains("sluice-redis"), "{pods}");
}

/// Least privilege, asked of the API server itself.
#[test]
fn e2e_the_operator_may_do_what_it_must_and_no_more() {
    install();
    let can = |question: &str| {
        let account = format!("--as=system:serviceaccount:{SYSTEM}:sluice-operator");
        let mut arguments = vec!["auth", "can-i"];
        arguments.extend(question.split(' '));
        arguments.push(&account);
        sluice_tests::node::run("kubectl", &arguments, "").0
    };
    for question in [
        "watch pods -A",
        "get pods -A",
        "create tokenreviews.authentication.k8s.io",
        "watch ratelimitpolicies.sluice.dev -A",
    ] {
        assert!(can(question), "{question}");
    }
    for question in [
        "get secrets -A",
        "get secrets -n default",
        "create pods -A",
        "delete pods -A",
        "patch deployments.apps -A",
        "create pods/exec -A",
        "update ratelimitpolicies.sluice.dev -A",
        "get nodes",
        "create clusterrolebindings.rbac.authorization.k8s.io",
        "delete mutatingwebhookconfigurations.admissionregistration.k8s.io",
    ] {
        assert!(!can(question), "{question}");
    }
}
