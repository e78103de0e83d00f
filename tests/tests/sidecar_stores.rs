//! Stores of namespaces: from the object and its Secret to the sidecars that count there, and back to the status.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams};
use serde_json::{Value, json};
use sluice_crds::RateLimitStore;
use sluice_tests::client::get;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace, wait_for_store as wait_for};
use sluice_tests::process::free_port;
use sluice_tests::wait::until;

const OPERATOR: &str = "stores-system";

async fn operator(plane: &ControlPlane, default: &Redis) -> Operator {
    let control = format!("https://127.0.0.1:{}", free_port());
    Operator::start_with(plane, OPERATOR, &default.url, &control, &["--tenant-stores"]).await
}

/// Applies the Secret `redis`.
async fn secret(namespace: &TestNamespace, kind: &str, fields: &[(&str, &str)]) {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    let secret = Secret {
        metadata: ObjectMeta { name: Some("redis".into()), ..ObjectMeta::default() },
        type_: Some(kind.into()),
        data: Some(fields.iter().map(|&(field, text)| (field.to_owned(), bytes(text))).collect()),
        ..Secret::default()
    };
    let params = PatchParams::apply("test").force();
    namespace.api::<Secret>().patch("redis", &params, &Patch::Apply(&secret)).await.expect("a Secret");
}

/// Applies the store `redis`.
async fn store(namespace: &TestNamespace, url: &str) {
    let endpoint = url.trim_start_matches("redis://");
    let spec = json!({
        "servers": {"standalone": {"endpoint": endpoint}}, "secretRef": {"name": "redis"}, "latencyBudget": "5s",
    });
    namespace.apply_object::<RateLimitStore>("redis", json!({"spec": spec})).await;
}

fn policy(store: Option<&str>, requests: i64) -> Value {
    let mut spec = json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{"name": "l", "key": {"parts": [{"header": {"name": "x-client"}}]}, "rates": [{"requests": requests, "per": "24h"}]}],
    });
    if let Some(store) = store {
        spec["storeRef"] = json!({"name": store});
    }
    spec
}

async fn status_of(sidecar: &Sidecar, client: &str) -> (u16, String) {
    let response = get(&sidecar.address, "/", &[("x-client", client)]).await;
    (response.status, response.header("x-ratelimit-remaining").unwrap_or_default().to_owned())
}

/// Sets the passwords of the user `sluice`, and disconnects it.
async fn set_passwords(redis: &Redis, passwords: &[&str]) {
    let mut connection = redis.connection().await.expect("Redis answers");
    let mut command = redis::cmd("ACL");
    command.arg(&["SETUSER", "sluice", "reset", "on", "~sluice:*", "resetchannels", "-@all"]);
    command.arg(&["+evalsha", "+eval", "+time", "+get", "+mget", "+set", "+setrange"]);
    for password in passwords {
        command.arg(format!(">{password}"));
    }
    command.query_async::<()>(&mut connection).await.expect("the user is set");
    let mut kill = redis::cmd("CLIENT");
    kill.arg(&["KILL", "USER", "sluice"]);
    let _ = kill.query_async::<i64>(&mut connection).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_counts_in_its_own_store_and_a_changed_password_loses_no_check() {
    let plane = ControlPlane::shared().await;
    let (default, own, other) = (Redis::start().await, Redis::start().await, Redis::start().await);
    set_passwords(&own, &["one"]).await;
    let operator = operator(plane, &default).await;
    let namespace = TestNamespace::create(plane.client().await, "own-store").await;
    let stores = namespace.api::<RateLimitStore>();

    // The policy says what is missing, step by step.
    namespace.apply("p", policy(Some("redis"), 1_000)).await.expect("a policy");
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let sidecar = Sidecar::start(&namespace, &pod, &operator).await;
    let message = namespace.wait_for("p", "ResolvedRefs", "False RefNotFound").await;
    assert!(message.contains("has no RateLimitStore redis. Create it"), "{message}");
    assert!(namespace.wait_for("p", "Ready", "False RefNotFound").await.starts_with("ResolvedRefs: "));
    store(&namespace, &own.url).await;
    let message = wait_for(&stores, "redis", "ResolvedRefs", "False RefNotFound").await;
    assert!(message.contains("--type=sluice.dev/store"), "{message}");
    secret(&namespace, "Opaque", &[("username", "sluice"), ("password", "one")]).await;
    wait_for(&stores, "redis", "ResolvedRefs", "False InvalidContent").await;
    namespace.wait_for("p", "ResolvedRefs", "False InvalidContent").await;
    // The type of a Secret cannot be changed.
    namespace.api::<Secret>().delete("redis", &DeleteParams::default()).await.expect("the Secret is deleted");
    secret(&namespace, "sluice.dev/store", &[("username", "sluice"), ("password", "one")]).await;
    wait_for(&stores, "redis", "Ready", "True Ready").await;
    namespace.wait_for("p", "ResolvedRefs", "True ResolvedRefs").await;
    namespace.wait_for("p", "StoreHealthy", "True Healthy").await;
    assert_eq!(status_of(&sidecar, "alice").await, (200, "999".into()), "{}", sidecar.process.output());
    assert_eq!((own.keys().await.len(), default.keys().await.len()), (1, 0));

    // A password that changes while requests arrive: every one is decided by the store.
    let failed = Arc::new(AtomicBool::new(false));
    let (running, address) = (Arc::new(AtomicBool::new(true)), sidecar.address.clone());
    let requests = tokio::spawn({
        let (failed, running) = (failed.clone(), running.clone());
        async move {
            let mut sent = 0;
            while running.load(Ordering::Relaxed) {
                let response = get(&address, "/", &[("x-client", "alice")]).await;
                let decided = response.header("x-ratelimit-remaining").is_some();
                failed.fetch_or(response.status != 200 || !decided, Ordering::Relaxed);
                sent += 1;
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            sent
        }
    });
    let mut connection = own.connection().await.expect("Redis answers");
    let set = async |connection: &mut redis::aio::MultiplexedConnection, rule: &str| {
        let mut command = redis::cmd("ACL");
        command.arg(&["SETUSER", "sluice", rule]);
        command.query_async::<()>(connection).await.expect("the user is set");
    };
    set(&mut connection, ">two").await;
    let before = connections_of_user(&mut connection).await;
    secret(&namespace, "sluice.dev/store", &[("username", "sluice"), ("password", "two")]).await;
    until("the sidecar has connected with the new password", async || {
        let now = connections_of_user(&mut connection.clone()).await;
        (!now.is_empty() && now.keys().all(|id| !before.contains_key(id))).then_some(())
    })
    .await;
    set(&mut connection, "<one").await;
    running.store(false, Ordering::Relaxed);
    let sent: u64 = requests.await.expect("the requests end");
    assert!(!failed.load(Ordering::Relaxed), "{}", sidecar.process.output());
    let (_, remaining) = status_of(&sidecar, "alice").await;
    assert_eq!(remaining.parse::<u64>().expect("a number"), 1_000 - sent - 2, "no check is lost");

    // The status names the real reason, and what to do.
    set_passwords(&own, &["three"]).await;
    let message = wait_for(&stores, "redis", "Reachable", "False AuthenticationFailed").await;
    assert!(message.contains("Correct `username` and `password` in the Secret. Seen by"), "{message}");
    let message = namespace.wait_for("p", "StoreHealthy", "False Refused").await;
    assert!(
        message.contains("the user or its password is wrong") && message.contains("describe"),
        "{message}"
    );
    assert_eq!(status_of(&sidecar, "bob").await.0, 200, "the share of the limit");
    secret(&namespace, "sluice.dev/store", &[("username", "sluice"), ("password", "three")]).await;
    wait_for(&stores, "redis", "Reachable", "True Reachable").await;

    // Another server: counts start at zero there, and what local quota counted is taken along.
    set_passwords(&other, &["three"]).await;
    store(&namespace, &other.url).await;
    until("the sidecar counts in the other server", async || {
        status_of(&sidecar, "carol").await;
        (!other.keys().await.is_empty()).then_some(())
    })
    .await;
    assert!(default.keys().await.is_empty());
    let log = operator.process.output();
    assert!(!log.contains("three"), "{log}");
}

/// Returns the connections of the user `sluice` by their ids.
async fn connections_of_user(connection: &mut redis::aio::MultiplexedConnection) -> BTreeMap<String, String> {
    let mut list = redis::cmd("CLIENT");
    list.arg("LIST");
    let text: String = list.query_async(connection).await.expect("Redis answers");
    let of_user = text.lines().filter(|line| line.contains(" user=sluice "));
    of_user.filter_map(|line| Some((line.split(' ').next()?.to_owned(), line.to_owned()))).collect()
}
