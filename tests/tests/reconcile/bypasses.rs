//! The condition Captured while objects bypass the sidecars. The commands of its message are run with kubectl.

use std::process::Command;

use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use sluice_tests::components::Session;
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::wait::until;

use super::fixture::{confirm, open_session, spec, start};

/// Creates a namespace with a policy that its pod `one` has confirmed.
async fn ready(prefix: &str) -> (TestNamespace, Session) {
    let (namespace, control) = start(prefix).await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut session = open_session(&namespace, &control, "one").await;
    confirm(&mut session).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    (namespace, session)
}

/// Runs one of the commands of a message as a user would.
async fn run_command(message: &str, index: usize) {
    let command = message.split('`').skip(1).step_by(2).nth(index).expect("a command").to_owned();
    let plane = ControlPlane::shared().await;
    let kubectl = plane.kubectl();
    let directory = std::path::Path::new(kubectl.get_program()).parent().unwrap();
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", &command]).env("PATH", path).env("KUBECONFIG", plane.kubeconfig());
    let output = tokio::task::spawn_blocking(move || shell.output().unwrap()).await.unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

async fn headless(namespace: &TestNamespace, ports: Value) {
    let spec = json!({"clusterIP": "None", "selector": {"app": "a"}, "ports": ports});
    namespace.apply_object::<Service>("db", json!({"spec": spec})).await;
}

#[tokio::test]
async fn reconcile_names_a_service_that_bypasses_the_sidecars_and_its_command_mends_it() {
    let (namespace, _session) = ready("bypass").await;
    namespace.service("legacy", json!({"app": "a"}), json!(8080)).await;
    let message = namespace.wait_for("p", "Captured", "False BypassedByService").await;
    assert!(message.starts_with("Port 80 of Service legacy targets port 8080 of the pods"), "{message}");
    namespace.wait_for("p", "Ready", "False BypassedByService").await;
    run_command(&message, 0).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
}

#[tokio::test]
async fn reconcile_names_an_inference_pool_that_bypasses_the_sidecars_and_its_command_mends_it() {
    let (namespace, _session) = ready("pool").await;
    let resource = ApiResource {
        group: "inference.networking.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "inference.networking.k8s.io/v1".to_owned(),
        kind: "InferencePool".to_owned(),
        plural: "inferencepools".to_owned(),
    };
    let pools: Api<DynamicObject> =
        Api::namespaced_with(namespace.client.clone(), &namespace.name, &resource);
    let pool = json!({
        "apiVersion": resource.api_version, "kind": "InferencePool", "metadata": {"name": "llm"},
        "spec": {
            "selector": {"matchLabels": {"app": "a"}}, "targetPorts": [{"number": 8080}],
            "endpointPickerRef": {"name": "picker"},
        },
    });
    until("the API server serves InferencePools", async || {
        pools.patch("llm", &PatchParams::apply("test"), &Patch::Apply(&pool)).await.ok()
    })
    .await;
    let message = namespace.wait_for("p", "Captured", "False BypassedByService").await;
    assert!(message.starts_with("Port 8080 of InferencePool llm targets port 8080 of the pods"), "{message}");
    run_command(&message, 0).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
}

#[tokio::test]
async fn reconcile_names_a_headless_service_and_each_of_its_commands_mends_it() {
    let (namespace, _session) = ready("headless").await;
    headless(&namespace, json!([{"port": 8080, "targetPort": "http"}])).await;
    let message = namespace.wait_for("p", "Captured", "False BypassedByService").await;
    assert!(message.starts_with("Service db is headless"), "{message}");
    run_command(&message, 0).await;
    let message = namespace.wait_for("p", "Captured", "True AllTraffic").await;
    assert_eq!(message, "No known route bypasses the sidecars.");

    namespace.api::<Service>().delete("db", &Default::default()).await.unwrap();
    headless(&namespace, json!([])).await;
    let message = namespace.wait_for("p", "Captured", "False BypassedByService").await;
    run_command(&message, 0).await;
    namespace.wait_for("p", "Captured", "True AllTraffic").await;

    namespace.api::<Service>().delete("db", &Default::default()).await.unwrap();
    headless(&namespace, json!([{"port": 8080, "targetPort": "http"}])).await;
    let message = namespace.wait_for("p", "Captured", "False BypassedByService").await;
    run_command(&message, 1).await;
    let message = namespace.wait_for("p", "Captured", "True AllTraffic").await;
    assert!(message.ends_with("because of the annotation sluice.dev/bypass: Service db."), "{message}");
}

#[tokio::test]
async fn reconcile_names_an_endpoint_slice_that_lists_a_pod_with_the_applications_port() {
    let (namespace, _session) = ready("slices").await;
    namespace.apply_object::<Service>("manual", json!({"spec": {"ports": [{"port": 80}]}})).await;
    let slice = json!({
        "metadata": {"labels": {"kubernetes.io/service-name": "manual"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["192.0.2.7"]}],
        "ports": [{"port": 8080}],
    });
    namespace.apply_object::<EndpointSlice>("by-hand", slice).await;
    namespace.set_address("one", "192.0.2.7").await;
    let message = namespace.wait_for("p", "Captured", "False BypassedByService").await;
    let start = "EndpointSlice by-hand of Service manual lists pod one (192.0.2.7) with port 8080";
    assert!(message.starts_with(start), "{message}");
    // The pod's sandbox is created again.
    namespace.set_address("one", "192.0.2.8").await;
    namespace.wait_for("p", "Captured", "True AllTraffic").await;
    namespace.set_address("one", "192.0.2.7").await;
    let message = namespace.wait_for("p", "Captured", "False BypassedByService").await;
    run_command(&message, 0).await;
    namespace.wait_for("p", "Captured", "True AllTraffic").await;
}

#[tokio::test]
async fn reconcile_names_pods_without_limits_behind_the_service_of_selected_pods() {
    let (namespace, _session) = ready("pods").await;
    namespace.service("web", json!({"app": "a"}), json!("http")).await;
    namespace.pod("out", false, json!({"app": "a", "sluice.dev/inject": "false"})).await;
    let message = namespace.wait_for("p", "Captured", "False BypassedByPod").await;
    assert!(message.starts_with("Service web also sends requests to pod/out"), "{message}");
    namespace.delete_pod("out").await;
    namespace.wait_for("p", "Captured", "True AllTraffic").await;

    // The policy does not select these pods, but the Service does.
    let host = json!({
        "metadata": {"name": "host", "labels": {"app": "a"}},
        "spec": {
            "hostNetwork": true, "serviceAccountName": "default", "nodeName": "nowhere",
            "containers": [{"name": "app", "image": "app", "ports": [{"name": "http", "containerPort": 8080}]}],
        },
    });
    let pods = namespace.api::<Pod>();
    pods.create(&PostParams::default(), &serde_json::from_value(host).unwrap()).await.unwrap();
    let running = json!({"status": {"phase": "Running"}});
    pods.patch_status("host", &Default::default(), &kube::api::Patch::Merge(&running)).await.unwrap();
    let message = namespace.wait_for("p", "Captured", "False BypassedByPod").await;
    assert!(message.contains("pod/host, which applies no limits because it uses the network"), "{message}");
    namespace.delete_pod("host").await;
    namespace.wait_for("p", "Captured", "True AllTraffic").await;

    let mut narrow = spec(5);
    narrow["selector"] = json!({"matchLabels": {"app": "a", "tier": "front"}});
    namespace.apply("narrow", narrow).await.unwrap();
    let (_, control) = start("unused").await;
    let pod = namespace.pod("two", true, json!({"app": "a", "tier": "front"})).await;
    let mut two = control.connect(&namespace.token(&pod, "sluice.dev").await, None).await.unwrap();
    confirm(&mut two).await;
    namespace.wait_for("narrow", "Captured", "True AllTraffic").await;
    namespace.pod("bare", false, json!({"app": "a"})).await;
    let message = namespace.wait_for("narrow", "Captured", "False BypassedByPod").await;
    assert!(message.contains("pod/bare, which has no sidecar"), "{message}");
}

#[tokio::test]
async fn reconcile_names_a_network_policy_that_blocks_the_sidecars_and_its_command_mends_it() {
    let (namespace, _session) = ready("blocked").await;
    let ingress = json!([{"from": [{"podSelector": {}}], "ports": [{"port": 8080}]}]);
    let spec = json!({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": ingress});
    namespace.apply_object::<NetworkPolicy>("clients", json!({"spec": spec})).await;
    let message = namespace.wait_for("p", "Captured", "False BlockedByNetworkPolicy").await;
    assert!(message.starts_with("NetworkPolicy clients allows clients of port 8080"), "{message}");
    run_command(&message, 0).await;
    namespace.wait_for("p", "Captured", "True AllTraffic").await;
}
