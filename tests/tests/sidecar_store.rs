//! From the operator's arguments and the store's Secret to a Redis that asks for a certificate; and what is refused.

#[path = "../../store/tests/support/mod.rs"]
mod support;
#[path = "../../store/tests/support/tls.rs"]
mod tls;

use std::process::Output;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams};
use serde_json::json;
use sluice_tests::cluster::TestNamespace;
use sluice_tests::control_plane::ControlPlane;
use sluice_tests::load::get;
use sluice_tests::operator::Operator;
use sluice_tests::process::{binary, free_port};
use sluice_tests::sidecar::Sidecar;
use sluice_tests::wait::{BOUND, until};
use tls::{Authority, Files, serve};

/// Makes a Secret, and its namespace if it is not there.
async fn make_secret(plane: &ControlPlane, namespace: &str, name: &str, data: &[(&str, &str)]) {
    let client = plane.client().await;
    let made = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
    let _ = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &made).await;
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let secret = Secret {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        data: Some(data.iter().map(|&(field, text)| (field.to_owned(), bytes(text))).collect()),
        ..Secret::default()
    };
    Api::namespaced(client, namespace).create(&PostParams::default(), &secret).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_certificate_of_the_secret_opens_a_redis_to_sidecars() {
    let plane = ControlPlane::shared().await;
    let authority = Authority::new();
    let (redis, port) = serve(&Files::new(&authority, "127.0.0.1"), "yes");
    let (certificate, key) = authority.issue("sluice");
    let data = [("ca.crt", authority.pem.as_str()), ("tls.crt", &certificate), ("tls.key", &key)];
    // Somebody has forgotten the key: the operator says so, and tries again.
    make_secret(plane, "store-system", "my-redis", &data[..2]).await;
    let store = format!("rediss://127.0.0.1:{port}");
    let control = format!("https://127.0.0.1:{}", free_port());
    let more = ["--store-secret=my-redis"];
    let operator = Operator::start_with(plane, "store-system", &store, &control, &more).await;
    until("the operator says what is wrong", async || {
        operator.process.output().contains("the Secret my-redis has `tls.crt` but no `tls.key`").then_some(())
    })
    .await;
    let secrets: Api<Secret> = Api::namespaced(plane.client().await, "store-system");
    secrets.delete("my-redis", &DeleteParams::default()).await.unwrap();
    make_secret(plane, "store-system", "my-redis", &data).await;
    let namespace = TestNamespace::create(plane.client().await, "store").await;
    let spec = json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{"name": "l", "key": {"parts": [{"header": {"name": "x-client"}}]}, "rates": [{"requests": 5, "per": "24h"}]}],
    });
    namespace.apply("p", spec).await.unwrap();
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let sidecar = Sidecar::start(&namespace, &pod, &operator).await;
    namespace.wait_for("p", "StoreHealthy", "True Healthy").await;
    for n in 0..6 {
        let answer = get(&sidecar.address, "/", &[("x-client", "alice")]).await;
        assert_eq!(answer.status, if n < 5 { 200 } else { 429 }, "{}", sidecar.process.output());
    }
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis.connection()).unwrap();
    assert!(keys.len() == 1 && keys[0].starts_with("sluice:"), "{keys:?}");
    for log in [operator.process.output(), sidecar.process.output()] {
        assert!(!log.contains("PRIVATE KEY"), "{log}");
    }
}

/// An operator that is to end by itself.
async fn ends(plane: &ControlPlane, arguments: &[&str]) -> String {
    let ports =
        ["webhook", "control", "admin"].map(|name| format!("--{name}-listen=127.0.0.1:{}", free_port()));
    let process = tokio::process::Command::new(binary("sluice-operator"))
        .args(["--namespace=refused-system", "--no-lease"])
        .args(ports)
        .args(arguments)
        .env("KUBECONFIG", plane.kubeconfig())
        .kill_on_drop(true)
        .output();
    let ended = tokio::time::timeout(BOUND, process).await.expect("the operator ends");
    let Output { status, stderr, .. } = ended.unwrap();
    let text = String::from_utf8(stderr).unwrap();
    assert!(!status.success() && !text.contains("hunter2"), "{text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_refuses_a_url_that_no_sidecar_could_use() {
    let plane = ControlPlane::shared().await;
    let says = |text: &str, all: &[&str]| assert!(all.iter().all(|part| text.contains(part)), "{text}");
    let text = ends(plane, &["--store-url=redis+cluster://:hunter2@a,b:x"]).await;
    says(&text, &["--store-url", "the store's url cannot be used: server 2 of 2 has a port"]);
}
