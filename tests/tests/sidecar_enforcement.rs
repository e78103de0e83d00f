//! The switch of the installation that turns every policy to Shadow, live: a real API server and kubectl, a real
//! Redis, the operator and sidecars.

use std::process::Command;

use serde_json::json;
use sluice_tests::client::get;
use sluice_tests::components::sidecar::flood;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::wait::until;

const SYSTEM: &str = "enforcement-system";

fn spec(requests: usize) -> serde_json::Value {
    json!({"limits": [{"name": "l", "rates": [{"requests": requests, "per": "8784h"}]}]})
}

fn run(mut kubectl: Command, arguments: &[&str]) -> String {
    let output = kubectl.args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Does what the chart's value or an administrator does.
fn switch(plane: &ControlPlane, mode: &str) {
    let data = json!({"data": {"enforcement": mode}}).to_string();
    run(plane.kubectl(), &["-n", SYSTEM, "patch", "configmap", "sluice-settings", "-p", &data]);
}

/// Waits until every sidecar responds with this status.
async fn all_respond(sidecars: &[Sidecar], status: u16) {
    until(&format!("all sidecars respond with {status}"), async || {
        for sidecar in sidecars {
            if get(&sidecar.address, "/", &[]).await.status != status {
                return None;
            }
        }
        Some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_installation_turns_all_policies_to_shadow_and_back_without_a_restart() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let mut operator = Operator::start(plane, SYSTEM, &redis.url).await;
    let kubectl = |arguments: &[&str]| run(plane.kubectl(), arguments);
    kubectl(&["-n", SYSTEM, "create", "configmap", "sluice-settings", "--from-literal=enforcement=Enforce"]);
    let namespace = TestNamespace::create(plane.client().await, "enforcement").await;
    namespace.apply("p", spec(3)).await.unwrap();
    namespace.apply("kept", spec(1_000_000)).await.unwrap();
    let mut sidecars = Vec::new();
    for name in ["one", "two"] {
        let pod = namespace.pod(name, true, json!({"app": "a"})).await;
        sidecars.push(Sidecar::start(&namespace, &pod, &operator).await);
    }
    namespace.wait_for("p", "Ready", "True Ready").await;
    let tally = flood(&sidecars, 5, 4, &[]).await;
    assert_eq!((tally.count(200), tally.count(429)), (3, 7), "{tally:?}");

    // An edit that the schema accepts and the operator does not: sidecars keep the version before it, a limit of 0.
    namespace.apply("kept", spec(0)).await.unwrap();
    namespace.wait_for("kept", "Ready", "True Ready").await;
    let mut invalid = spec(0);
    invalid["limits"][0]["rates"][0]["per"] = json!("9000h");
    namespace.apply("kept", invalid).await.unwrap();
    namespace.wait_for("kept", "Accepted", "False Invalid").await;

    switch(plane, "Shadow");
    all_respond(&sidecars, 200).await;
    let message = namespace.wait_for("p", "Ready", "True ShadowedByInstallation").await;
    assert!(message.contains("requests over a limit are counted and pass"), "{message}");
    assert!(message.contains("`enforcement` in the ConfigMap sluice-settings is Shadow"), "{message}");
    let columns = kubectl(&["-n", &namespace.name, "get", "ratelimitpolicies.sluice.dev", "p", "-o", "wide"]);
    eprintln!("{columns}");
    assert!(columns.contains("ShadowedByInstallation"), "{columns}");
    assert!(columns.contains("l 3/8784h; shadowed by the installation"), "{columns}");
    let metrics = get(operator.admin_url.trim_start_matches("http://"), "/metrics", &[]).await.body;
    assert!(metrics.contains("sluice_operator_shadow 1"), "{metrics}");
    let shadow_denied = async || get(&sidecars[0].admin, "/metrics", &[]).await.body;
    let text = shadow_denied().await;
    let labels =
        format!("policy_namespace=\"{}\",policy=\"p\",limit=\"l\",outcome=\"shadow_denied\"", namespace.name);
    assert!(text.lines().any(|line| line.contains(&labels) && !line.ends_with(" 0")), "{text}");

    // A value that is neither changes nothing, and neither does another operator.
    switch(plane, "Maybe");
    until("the operator reports the value", async || {
        operator.process.output().contains("must be Enforce or Shadow").then_some(())
    })
    .await;
    switch(plane, "Shadow");
    operator.process.stop();
    let control_url = operator.control_url.clone();
    drop(operator);
    let operator = Operator::start_with(plane, SYSTEM, &redis.url, &control_url, &[]).await;
    namespace.apply("p", spec(0)).await.unwrap();
    namespace.wait_for("p", "Ready", "True ShadowedByInstallation").await;
    assert_eq!(flood(&sidecars, 10, 4, &[]).await.count(200), 20);

    switch(plane, "Enforce");
    all_respond(&sidecars, 429).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    let log = operator.process.output();
    for line in ["turns all policies to Shadow: no request is rejected", "enforces policies again"] {
        assert!(log.contains(line), "{line}: {log}");
    }
    // Without the ConfigMap policies are enforced.
    switch(plane, "Shadow");
    all_respond(&sidecars, 200).await;
    kubectl(&["-n", SYSTEM, "delete", "configmap", "sluice-settings"]);
    all_respond(&sidecars, 429).await;
}
