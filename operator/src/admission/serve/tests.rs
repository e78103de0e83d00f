//! The webhook as the API server calls it, in the same process: JSON requests and JSON responses.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use sluice_host::logging::LogFormat;
use tower::ServiceExt as _;

use super::router;
use crate::injection::config::{InjectConfig, StartupPolicy, guaranteed_resources, resources};

fn webhook() -> Router {
    let config = InjectConfig {
        image: "sidecar:1".into(),
        pull_policy: "IfNotPresent".into(),
        resources: resources("{}").unwrap(),
        guaranteed_resources: guaranteed_resources(r#"{"cpu":"200m","memory":"128Mi"}"#).unwrap(),
        cluster_dns: Vec::new(),
        log: "info".parse().unwrap(),
        log_format: LogFormat::Text,
        platform_user: false,
        startup_policy: StartupPolicy::Forward,
        debug_headers: false,
        tracing: None,
        control_url: "https://control:8443".into(),
        native: true,
    };
    router(Arc::new(config), Default::default(), Default::default(), Arc::default())
}

async fn call(path: &str, body: String) -> (StatusCode, Value) {
    send(webhook(), path, Body::from(body)).await
}

async fn send(webhook: Router, path: &str, body: Body) -> (StatusCode, Value) {
    let request = Request::post(path).header("content-type", "application/json").body(body).unwrap();
    let response = webhook.oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    (status, serde_json::from_slice(&bytes).unwrap_or_default())
}

fn review(object: &Value) -> String {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "42", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE", "userInfo": {}, "object": object, "namespace": "n", "name": "p",
        },
    })
    .to_string()
}

/// Applies the patch of a response.
fn patched(object: &Value, response: &Value) -> Value {
    // The patch is a list of bytes. The API server accepts that as well as base64.
    let patch: Vec<u8> = serde_json::from_value(response["response"]["patch"].clone()).unwrap();
    let mut object = object.clone();
    json_patch::patch(&mut object, &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap()).unwrap();
    object
}

#[tokio::test]
async fn admit_injects_once_and_keeps_unknown_fields() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {"containers": [
            {"name": "helper", "image": "h", "fieldOfTheFuture": {"a": 1}},
            {"name": "app", "image": "a", "ports": [{"name": "http", "containerPort": 8080}], "readinessProbe": {"httpGet": {"port": "http"}}},
        ]},
    });
    let (status, response) = call("/inject", review(&pod)).await;
    assert!(
        status.is_success() && response["response"]["allowed"] == true && response["response"]["uid"] == "42",
        "{response}"
    );
    let after = patched(&pod, &response);
    assert_eq!(
        after["spec"]["containers"][0], pod["spec"]["containers"][0],
        "a field of a newer API is kept"
    );
    assert_eq!(after["spec"]["containers"][1]["readinessProbe"]["httpGet"]["port"], 8080);
    assert_eq!(after["spec"]["containers"][1]["ports"], json!([{"containerPort": 8080}]));
    let sidecar = &after["spec"]["initContainers"][0];
    assert_eq!((&sidecar["name"], &sidecar["ports"][0]["name"]), (&json!("sluice-sidecar"), &json!("http")));
    let (_, again) = call("/inject", review(&after)).await;
    assert!(again["response"]["allowed"] == true && again["response"]["patch"].is_null(), "{again}");
}

#[tokio::test]
async fn admit_removes_a_left_over_volume_and_keeps_those_behind_it() {
    let certificate =
        json!({"name": "certificate", "projected": {"sources": [{"podCertificate": {"signerName": "a/b"}}]}});
    let left_over = |name: &str| json!({"name": name, "emptyDir": {}});
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "app", "ports": [{"name": "http", "containerPort": 8080}]}],
            "volumes": [left_over("sluice-identity"), certificate, left_over("sluice-state"), left_over("data")],
        },
    });
    let (_, response) = call("/inject", review(&pod)).await;
    let after = patched(&pod, &response);
    let volumes = after["spec"]["volumes"].as_array().unwrap();
    assert_eq!(volumes[..2], [certificate, left_over("data")], "{response}");
    let names: Vec<_> = volumes[2..].iter().map(|volume| &volume["name"]).collect();
    assert_eq!(names, ["sluice-identity", "sluice-state"]);
}

#[tokio::test]
async fn admit_never_blocks_a_pod() {
    for pod in [
        json!({"metadata": {"name": "p"}, "spec": {"containers": "nonsense"}}),
        json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "ports": [{"containerPort": 99_999_999_999_i64}]}]}}),
        json!({"metadata": {"name": "p"}, "spec": {"hostNetwork": true, "containers": []}}),
        json!({"metadata": {"name": "p"}}),
        Value::Null,
    ] {
        let (status, response) = call("/inject", review(&pod)).await;
        let response = &response["response"];
        assert!(
            status.is_success() && response["allowed"] == true && response["patch"].is_null(),
            "{pod}: {response}"
        );
    }
    let bare = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "db", "ports": [{"name": "postgres", "containerPort": 5432}]}]}});
    let (_, response) = call("/inject", review(&bare)).await;
    assert!(
        response["response"]["warnings"][0].as_str().unwrap().contains("does not indicate HTTP"),
        "{response}"
    );
}

#[tokio::test]
async fn admit_warns_about_annotations_that_have_no_effect_and_injects_nevertheless() {
    let pod = json!({
        "metadata": {"name": "p", "annotations": {"sluice.dev/cpu-limit": "much", "sluice.dev/workers": "2"}},
        "spec": {"containers": [{"name": "app", "ports": [{"name": "http", "containerPort": 8080}]}]},
    });
    let (_, response) = call("/inject", review(&pod)).await;
    let warnings = response["response"]["warnings"].as_array().unwrap();
    assert!(
        warnings.len() == 1 && warnings[0].as_str().unwrap().contains("sluice.dev/cpu-limit has no effect"),
        "{response}"
    );
    let sidecar = &patched(&pod, &response)["spec"]["initContainers"][0];
    assert!(sidecar["args"].as_array().unwrap().contains(&json!("--workers=2")), "{sidecar}");
}

#[tokio::test]
async fn admit_rejects_an_invalid_policy_with_every_path_and_warns_about_a_doubtful_one() {
    let policy =
        |limits: Value| json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"limits": limits}});
    let bad =
        policy(json!([{"name": "a", "rates": [{"requests": 1, "per": "9999h"}], "key": {"parts": [{}]}}]));
    let (_, response) = call("/validate", review(&bad)).await;
    let text = response["response"]["status"]["message"].as_str().unwrap();
    assert!(
        response["response"]["allowed"] == false
            && text.contains("spec.limits[0].rates[0].per: ")
            && text.contains("spec.limits[0].key.parts[0]: "),
        "{response}"
    );
    let doubtful =
        policy(json!([{"name": "a", "rates": [{"requests": 9, "per": "1m"}, {"requests": 9, "per": "1h"}]}]));
    let (_, response) = call("/validate", review(&doubtful)).await;
    assert!(
        response["response"]["allowed"] == true
            && response["response"]["warnings"][0].as_str().unwrap().contains("has no effect"),
        "{response}"
    );
}

#[tokio::test]
async fn admit_tells_nothing_about_another_namespace_than_that_of_the_request() {
    for metadata in [json!({"name": "p", "namespace": "other"}), json!({"name": "p"})] {
        let policy = json!({
            "metadata": metadata,
            "spec": {"limits": [{"name": "a", "rates": [{"requests": 9, "per": "1m"}]}]},
        });
        let (_, response) = call("/validate", review(&policy)).await;
        assert_eq!(response["response"]["allowed"], false);
        let message = response["response"]["status"]["message"].as_str().unwrap();
        assert_eq!(message, "the namespace of the object is not the one of the request");
    }
}

#[tokio::test(start_paused = true)]
async fn admit_answers_while_others_send_bodies_that_do_not_end() {
    let webhook = webhook();
    let slow: Vec<_> = (0..100)
        .map(|_| {
            let first = futures::stream::iter([Ok::<_, std::io::Error>("{")]);
            let endless = Body::from_stream(futures::StreamExt::chain(first, futures::stream::pending()));
            let webhook = webhook.clone();
            tokio::spawn(async move { send(webhook, "/validate", endless).await.0 })
        })
        .collect();
    tokio::task::yield_now().await;
    let begun = tokio::time::Instant::now();
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "app"}]}});
    let (status, _) = send(webhook, "/inject", Body::from(review(&pod))).await;
    // The clock goes on only when nothing else can.
    assert_eq!((status, begun.elapsed().as_secs()), (StatusCode::OK, 0));
    // The port ends them in time.
    slow.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn admit_reviews_a_very_long_list_without_looking_at_each() {
    let limits: Vec<_> = (0..8_000).map(|_| json!({"name": "a"})).collect();
    let policy = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"limits": limits}});
    let (_, response) = call("/validate", review(&policy)).await;
    let message = response["response"]["status"]["message"].as_str().unwrap();
    assert!(message.contains("spec.limits: has 8000 entries: at most 32 are allowed"), "{message}");
    let many = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {"limits": vec![0; 1_000_000]}});
    let (_, response) = call("/validate", review(&many)).await;
    let message = response["response"]["status"]["message"].as_str().unwrap();
    assert!(message.starts_with("the object has too many fields and entries"), "{message}");
}

#[tokio::test]
async fn admit_rejects_bodies_that_are_not_reviews() {
    for body in ["", "[]", "{}", "\u{0}", r#"{"request":null}"#] {
        let (status, response) = call("/inject", body.to_owned()).await;
        assert!(
            status.is_client_error() || response["response"]["allowed"] == false,
            "{body:?}: {status} {response}"
        );
    }
    let (status, _) = call("/inject", "x".repeat(9 << 20)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}
