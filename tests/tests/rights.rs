//! The operator with the rights that the chart gives it, and without one of them, on a real API server.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sluice_tests::components::Operator;
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::process::{Process, binary, free_port, repository_root};
use sluice_tests::wait::until;

const SYSTEM: &str = "sluice-system";

/// The right to offer the policy that proves the webhook, as the chart grants it.
const PROOF: &str =
    "by a dry run.\n- apiGroups: [sluice.dev]\n  resources: [ratelimitpolicies]\n  verbs: [create]\n";

/// Installs the chart's objects without the right to prove the webhook.
fn install(plane: &ControlPlane) {
    let mut helm = Command::new(plane.helm());
    helm.args(["template", "sluice", "charts/sluice", "--namespace", SYSTEM, "--kube-version", "1.37.0"]);
    let rendered = helm.current_dir(repository_root()).output().unwrap();
    let rendered = String::from_utf8(rendered.stdout).unwrap();
    assert_eq!(rendered.matches(PROOF).count(), 1);
    let without = rendered.replace(PROOF, &PROOF.replace("create", "list"));
    let mut kubectl = plane.kubectl();
    let mut kubectl = kubectl.args(["apply", "-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    kubectl.stdin.take().unwrap().write_all(without.as_bytes()).unwrap();
    assert!(kubectl.wait().unwrap().success());
}

/// Starts an operator with the rights of its ServiceAccount.
async fn start(plane: &ControlPlane) -> Process {
    let ports = [free_port(), free_port(), free_port()];
    let (arguments, (variable, admin)) =
        Operator::arguments(plane, SYSTEM, "redis://127.0.0.1:1", ports).await;
    install(plane);
    let text = std::fs::read_to_string(admin).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["users"][0]["user"]["as"] = json!(format!("system:serviceaccount:{SYSTEM}:sluice-operator"));
    let file = plane.directory().join("operator.kubeconfig");
    std::fs::write(&file, config.to_string()).unwrap();
    let environment = [(variable, file.display().to_string())];
    let log = plane.directory().join("operator.log");
    Process::start(&binary("sluice-operator"), &arguments, &environment, &log, "TERM")
}

#[tokio::test]
async fn what_the_operator_may_not_do_is_logged_once_and_a_new_right_is_noticed() {
    let plane = ControlPlane::start().await;
    let operator = start(&plane).await;
    let namespace = TestNamespace::create(plane.client().await, "rights").await;
    let limits = (0..8).map(|limit| {
        let sources =
            (0..8).map(|n| json!({"configMapRef": {"name": format!("c{limit}{n}"), "key": "clients"}}));
        json!({
            "name": format!("l{limit}"), "key": {"parts": [{"header": {"name": "x-api-key"}}]},
            "rates": [{"requests": 5, "per": "1h"}], "overridesFrom": sources.collect::<Vec<_>>(),
        })
    });
    namespace.apply("p", json!({"limits": limits.collect::<Vec<_>>()})).await.unwrap();
    namespace.wait_for("p", "ResolvedRefs", "False RefNotPermitted").await;
    let unproved = "it is not known whether the API server calls the webhook: it answers: ApiError: ";
    until("the missing right is logged", async || operator.output().contains(unproved).then_some(())).await;

    let name = &namespace.name;
    plane.type_in_shell(&format!(
        "kubectl -n {name} create role r --verb=get,list,watch --resource=configmaps && kubectl -n {name} create \
         rolebinding r --role=r --serviceaccount={SYSTEM}:sluice-operator"
    ));
    namespace.wait_for("p", "ResolvedRefs", "False RefNotFound").await;

    // Each watch was tried again until then.
    let output = operator.output();
    let forbidden: Vec<_> = output.lines().filter(|line| line.contains("forbidden")).collect();
    assert_eq!(forbidden.len(), 1, "{output}");
    assert!(forbidden[0].contains(unproved) && forbidden[0].contains("WARN"), "{output}");
    let denied = "cannot create resource \"ratelimitpolicies\"";
    assert_eq!(forbidden[0].matches(denied).count(), 1, "{output}");
}
