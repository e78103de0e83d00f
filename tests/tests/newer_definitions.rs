//! CustomResourceDefinitions that become newer than the operator which runs, as in an upgrade that brings them first. What is written with
//! a field or a value that the operator does not know is told, and the other policies go on. No webhook refuses it before.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use sluice_tests::components::Operator;
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::wait::until;

/// Nothing listens here.
const STORE_URL: &str = "redis://127.0.0.1:1";
/// Where a definition has the schema of `spec`.
const SPEC: &str = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";

const SYSTEM: &str = "sluice-system";
const POLICIES: &str = "ratelimitpolicies";
const STORES: &str = "ratelimitstores";
/// Part of the message about a field or a value.
const NEWER: &str = "is newer than this version of Sluice";

fn spec(requests: u64) -> Value {
    json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{"name": "l", "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": requests, "per": "1h"}]}],
    })
}

/// Applies a patch of JSON to a definition.
async fn upgrade(namespace: &TestNamespace, objects: &str, path: &str, value: Value) {
    let api: Api<CustomResourceDefinition> = Api::all(namespace.client.clone());
    let patch = json!([{"op": "add", "path": format!("{SPEC}{path}"), "value": value}]);
    let patch = Patch::<()>::Json(serde_json::from_value(patch).unwrap());
    api.patch(&format!("{objects}.sluice.dev"), &PatchParams::default(), &patch).await.unwrap();
}

/// Creates an object that needs a new definition, as soon as the API server has that.
async fn create(namespace: &TestNamespace, objects: &str, name: &str, spec: &Value) {
    let kind = if objects == POLICIES { "RateLimitPolicy" } else { "RateLimitStore" };
    let object =
        json!({"apiVersion": "sluice.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let path =
        format!("/apis/sluice.dev/v1alpha1/namespaces/{}/{objects}?fieldValidation=Strict", namespace.name);
    until("the API server has the new definition", async || {
        let request = http::Request::post(&path).header("content-type", "application/json");
        let request = request.body(object.to_string().into_bytes()).unwrap();
        namespace.client.request_text(request).await.ok()
    })
    .await;
}

/// Waits until an object, which may be unreadable for this version, is not accepted. Returns the message.
async fn refused(namespace: &TestNamespace, objects: &str, name: &str) -> String {
    let path = format!("/apis/sluice.dev/v1alpha1/namespaces/{}/{objects}/{name}", namespace.name);
    until(&format!("{name} is not accepted"), async || {
        let request = http::Request::get(&path).body(Vec::new()).unwrap();
        let object: Value = namespace.client.request(request).await.ok()?;
        let conditions = object["status"]["conditions"].as_array()?;
        let accepted = conditions.iter().find(|condition| condition["type"] == "Accepted")?;
        (accepted["reason"] == "Invalid").then(|| accepted["message"].as_str().unwrap().to_owned())
    })
    .await
}

async fn start() -> (ControlPlane, Operator, TestNamespace) {
    let plane = ControlPlane::start().await;
    let operator = Operator::start(&plane, SYSTEM, STORE_URL).await;
    let namespace = TestNamespace::create(plane.client().await, "newer").await;
    namespace.apply("plain", spec(5)).await.unwrap();
    namespace.wait_for("plain", "Accepted", "True Accepted").await;
    (plane, operator, namespace)
}

#[tokio::test]
async fn a_field_that_came_while_the_operator_ran_is_told() {
    let (_plane, _operator, namespace) = start().await;
    let mut newer = spec(5);
    newer["invented"] = json!("x");
    upgrade(&namespace, POLICIES, "/invented", json!({"type": "string"})).await;
    create(&namespace, POLICIES, "newer", &newer).await;
    let message = refused(&namespace, POLICIES, "newer").await;
    assert!(message.contains("spec.invented: unknown field") && message.contains(NEWER), "{message}");

    // So is an edit, and others go on.
    namespace.apply("plain", spec(6)).await.unwrap();
    namespace.wait_for("plain", "Accepted", "True Accepted").await;
    namespace.apply("plain", newer).await.unwrap();
    namespace.wait_for("plain", "Accepted", "False Invalid").await;
    namespace.apply("plain", spec(5)).await.unwrap();
    namespace.wait_for("plain", "Accepted", "True Accepted").await;

    let system = TestNamespace { name: SYSTEM.to_owned(), ..namespace };
    upgrade(&system, STORES, "/invented", json!({"type": "string"})).await;
    let store = json!({"servers": {"standalone": {"endpoint": "127.0.0.1:1"}}, "invented": "x"});
    create(&system, STORES, "other", &store).await;
    let message = refused(&system, STORES, "other").await;
    assert!(message.contains("spec.invented: unknown field") && message.contains(NEWER), "{message}");
}

#[tokio::test]
async fn a_value_that_came_while_the_operator_ran_is_told() {
    let (_plane, _operator, namespace) = start().await;
    let mut newer = spec(5);
    newer["mode"] = json!("Invented");
    upgrade(&namespace, POLICIES, "/mode/enum/-", json!("Invented")).await;
    create(&namespace, POLICIES, "newer", &newer).await;
    let message = refused(&namespace, POLICIES, "newer").await;
    assert!(
        message.contains("spec.mode: \"Invented\" is not allowed") && message.contains(NEWER),
        "{message}"
    );
    namespace.apply("plain", spec(6)).await.unwrap();
    namespace.wait_for("plain", "Accepted", "True Accepted").await;
}
