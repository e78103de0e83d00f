//! The chart on a real API server with a real operator: nobody changes a field that the chart sets, so a GitOps tool finds
//! no difference.

use std::io::Write as _;
use std::process::{Command, Stdio};

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use kube::api::Api;
use serde_json::Value;
use sluice_crds::RateLimitStore;
use sluice_tests::components::{Operator, Redis};
use sluice_tests::kubernetes::{ControlPlane, wait_for_store};
use sluice_tests::process::{free_port, repository_root};
use sluice_tests::wait::until;

const SYSTEM: &str = "sluice-system";

/// Runs a command with an input, and returns whether it succeeded and what it wrote.
fn run(command: &mut Command, input: &str) -> (bool, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Renders the chart for the API server of the tests.
fn render(plane: &ControlPlane) -> String {
    let mut helm = Command::new(plane.helm());
    helm.args(["template", "sluice", "charts/sluice", "--namespace", SYSTEM]);
    helm.args(["--kube-version", "1.37.0"]);
    helm.args(["--set", "operator.networkPolicy.enabled=true", "--set", "redis.networkPolicy.enabled=true"]);
    helm.args(["--set", "monitoring.dashboards.enabled=true", "--set", "tenantStores.enabled=true"]);
    // Quantities that the API server would write in another way.
    helm.args(["--set", "redis.resources.limits.memory=384Mi", "--set", "sidecar.resources.limits.cpu=1"]);
    helm.current_dir(repository_root());
    let (ok, text) = run(&mut helm, "");
    assert!(ok, "{text}");
    text
}

/// Returns what the cluster has in place of what the chart sets, by path. Fields that the chart does not set may differ.
fn differences(path: &str, chart: &Value, cluster: &Value, found: &mut Vec<String>) {
    match (chart, cluster) {
        (Value::Object(chart), Value::Object(cluster)) => {
            for (name, value) in chart {
                differences(
                    &format!("{path}.{name}"),
                    value,
                    cluster.get(name).unwrap_or(&Value::Null),
                    found,
                );
            }
        }
        (Value::Array(chart), Value::Array(cluster)) if chart.len() == cluster.len() => {
            for (at, (chart, cluster)) in chart.iter().zip(cluster).enumerate() {
                differences(&format!("{path}[{at}]"), chart, cluster, found);
            }
        }
        (chart, cluster) if chart == cluster => {}
        // The API server drops what is empty.
        (Value::Object(chart), Value::Null) if chart.is_empty() => {}
        (Value::Array(chart), Value::Null) if chart.is_empty() => {}
        (chart, cluster) => found.push(format!("{path}: {chart} is {cluster}")),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_changes_a_field_that_the_chart_sets() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let rendered = render(plane);
    let kubectl = |arguments: &[&str], input: &str| run(plane.kubectl().args(arguments), input);
    let (ok, text) = kubectl(&["create", "namespace", SYSTEM], "");
    assert!(ok, "{text}");
    let (ok, text) = kubectl(&["apply", "-f", "-"], &rendered);
    assert!(ok, "{text}");

    // The operator has written all that it writes.
    let control_url = format!("https://127.0.0.1:{}", free_port());
    let _operator = Operator::start_with(plane, SYSTEM, &redis.url, &control_url, &[]).await;
    let client = plane.client().await;
    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    until("the operator has written the caBundle", async || {
        let object = webhooks.get("sluice").await.ok()?;
        object.webhooks?.iter().all(|webhook| webhook.client_config.ca_bundle.is_some()).then_some(())
    })
    .await;
    wait_for_store(&Api::<RateLimitStore>::namespaced(client, SYSTEM), "default", "Ready", "True Ready")
        .await;

    let (ok, live) = kubectl(&["get", "-f", "-", "-o", "json"], &rendered);
    assert!(ok, "{live}");
    let live: Value = serde_json::from_str(&live).unwrap();
    let live = live["items"].as_array().unwrap();
    let documents = serde_saphyr::from_multiple::<Value>(&rendered).unwrap();
    let documents: Vec<_> = documents.into_iter().filter(Value::is_object).collect();
    assert!(documents.len() > 20 && documents.len() == live.len(), "{} objects", documents.len());
    let mut found = Vec::new();
    for (chart, cluster) in documents.iter().zip(live) {
        let name = format!("{} {}", chart["kind"], chart["metadata"]["name"]);
        differences(&name, chart, cluster, &mut found);
    }
    assert_eq!(found, Vec::<String>::new());

    // The pod of `helm test` may do what it does, and nothing else.
    let can = |request: &str| {
        let account = format!("--as=system:serviceaccount:{SYSTEM}:sluice-verify");
        let words = ["auth", "can-i", "--namespace", SYSTEM, &account];
        kubectl(&words.into_iter().chain(request.split(' ')).collect::<Vec<_>>(), "").0
    };
    assert!(can("create ratelimitpolicies.sluice.dev") && can("get ratelimitstores.sluice.dev/default"));
    for request in [
        "get secrets",
        "create pods",
        "patch ratelimitpolicies.sluice.dev",
        "list ratelimitstores.sluice.dev",
    ] {
        assert!(!can(request), "{request}");
    }

    // What the tools find themselves: by a patch of the client, and by server-side apply.
    let (same, text) = kubectl(&["diff", "-f", "-"], &rendered);
    assert!(same, "{text}");
    let (ok, text) = kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &rendered);
    assert!(ok, "{text}");
    let (same, text) = kubectl(&["diff", "--server-side", "-f", "-"], &rendered);
    assert!(same, "{text}");
    let object = webhooks.get("sluice").await.unwrap();
    let has_bundle = |webhook: &MutatingWebhook| webhook.client_config.ca_bundle.is_some();
    assert!(object.webhooks.unwrap().iter().all(has_bundle), "an upgrade leaves the caBundle");
    // A change is found.
    let changed = rendered.replace("enforcement: Enforce", "enforcement: Shadow");
    assert_ne!(changed, rendered);
    let (same, text) = kubectl(&["diff", "--server-side", "-f", "-"], &changed);
    assert!(!same && text.contains("enforcement: Shadow"), "{text}");
}
