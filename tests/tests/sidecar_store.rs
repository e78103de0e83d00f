//! Store access on its way from the operator's arguments and the store's Secret to a sidecar, with a Redis
//! that requires a client certificate. Also the store URLs that the operator rejects.

use std::process::Output;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use sluice_config::duration::Duration;
use sluice_crds::RateLimitStore;
use sluice_tests::client::get;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace, wait_for_store};
use sluice_tests::process::{binary, free_port};
use sluice_tests::wait::{BOUND, until};

use crate::tls::{Authority, Files, serve};

/// Creates a Secret, and its namespace unless it exists.
async fn create_secret(plane: &ControlPlane, namespace: &str, name: &str, data: &[(&str, &str)]) {
    let client = plane.client().await;
    let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).unwrap();
    let _ = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await;
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let secret = Secret {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        data: Some(data.iter().map(|&(field, text)| (field.to_owned(), bytes(text))).collect()),
        ..Secret::default()
    };
    Api::namespaced(client, namespace).create(&PostParams::default(), &secret).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_connects_to_redis_with_the_client_certificate_of_the_secret() {
    let plane = ControlPlane::shared().await;
    let authority = Authority::new();
    let (redis, port) = serve(&Files::new(&authority, "127.0.0.1"), "yes");
    let (certificate, key) = authority.issue("sluice");
    let data = [("ca.crt", authority.pem.as_str()), ("tls.crt", &certificate), ("tls.key", &key)];
    // The Secret lacks the key. The operator logs that and tries again.
    create_secret(plane, "store-system", "my-redis", &data[..2]).await;
    let store = format!("rediss://127.0.0.1:{port}");
    let control = format!("https://127.0.0.1:{}", free_port());
    let more = ["--store-secret=my-redis"];
    let operator = Operator::start_with(plane, "store-system", &store, &control, &more).await;
    until("the operator logs what is wrong", async || {
        operator.process.output().contains("the Secret my-redis has `tls.crt` but no `tls.key`").then_some(())
    })
    .await;
    let secrets: Api<Secret> = Api::namespaced(plane.client().await, "store-system");
    secrets.delete("my-redis", &DeleteParams::default()).await.unwrap();
    create_secret(plane, "store-system", "my-redis", &data).await;
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
        let response = get(&sidecar.address, "/", &[("x-client", "alice")]).await;
        assert_eq!(response.status, if n < 5 { 200 } else { 429 }, "{}", sidecar.process.output());
    }
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut redis.connection()).unwrap();
    // The counter, and the registry of the limit's keys.
    assert!(keys.len() == 2 && keys.iter().all(|key| key.starts_with("sluice:")), "{keys:?}");
    for log in [operator.process.output(), sidecar.process.output()] {
        assert!(!log.contains("PRIVATE KEY"), "{log}");
    }
}

/// Runs an operator that is expected to fail, and returns what it wrote to standard error.
async fn fail_to_start(plane: &ControlPlane, arguments: &[&str]) -> String {
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
async fn an_operator_does_not_start_with_a_store_url_that_no_sidecar_can_use() {
    let plane = ControlPlane::shared().await;
    let text = fail_to_start(plane, &["--store-url=redis+cluster://:hunter2@a,b:x"]).await;
    for part in ["--store-url", "the store's URL cannot be used: server 2 of 2 has a port"] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_of_the_installation_is_an_object_that_follows_the_arguments() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let control = format!("https://127.0.0.1:{}", free_port());
    let operator = Operator::start_with(plane, "default-store-system", &redis.url, &control, &[]).await;
    let api: Api<RateLimitStore> = Api::namespaced(plane.client().await, "default-store-system");
    let message = wait_for_store(&api, "default", "Ready", "True Ready").await;
    assert_eq!(message, "The operator can use the store. No sidecar uses it yet.");
    // What somebody else changes or deletes, the operator sets back.
    let edit = json!({"spec": {"latencyBudget": "9s"}});
    api.patch("default", &PatchParams::default(), &Patch::Merge(&edit)).await.expect("an edit");
    let is_back = async || {
        let store = api.get("default").await.ok()?;
        (store.spec.latency_budget == Some(Duration::from_millis(2000))).then_some(())
    };
    until("the store is as the arguments say", is_back).await;
    api.delete("default", &DeleteParams::default()).await.expect("a deletion");
    until("the store is back", is_back).await;
    let edit = json!({"spec": {"partitions": 7}});
    let refused = api.patch("default", &PatchParams::default(), &Patch::Merge(&edit)).await;
    let refused = refused.expect_err("partitions are immutable").to_string();
    assert!(refused.contains("partitions cannot be changed"), "{refused}");
    // A namespace may not have a store of its own here.
    let namespace = TestNamespace::create(plane.client().await, "no-store").await;
    let spec = json!({"servers": {"standalone": {"endpoint": "127.0.0.1"}}});
    namespace.apply_object::<RateLimitStore>("redis", json!({"spec": spec})).await;
    let message = wait_for_store(&namespace.api(), "redis", "Ready", "False NotAllowed").await;
    assert!(message.contains("tenantStores.enabled"), "{message}");
    drop(operator);
}
