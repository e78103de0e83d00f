//! The whole path without a kubelet: a real API server, a real Redis, the operator and three sidecars as processes.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use sluice_tests::cluster::TestNamespace;
use sluice_tests::control_plane::ControlPlane;
use sluice_tests::load::{Outcome, get, many};
use sluice_tests::operator::Operator;
use sluice_tests::redis::Redis;
use sluice_tests::sidecar::Sidecar;
use sluice_tests::wait::until;

fn spec(requests: usize) -> serde_json::Value {
    json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{"name": "l", "key": {"parts": [{"header": {"name": "x-client"}}]}, "rates": [{"requests": requests, "per": "1h"}]}],
    })
}

/// Sends `n` requests of a client to each sidecar, all at the same time.
async fn flood(sidecars: &[Sidecar], n: usize, client: &str) -> Outcome {
    let headers = [("x-client", client)];
    let mut total = Outcome::default();
    let floods: Vec<_> = sidecars.iter().map(|sidecar| many(&sidecar.address, n, 20, &headers)).collect();
    for outcome in futures::future::join_all(floods).await {
        for (status, count) in outcome.by_status {
            *total.by_status.entry(status).or_default() += count;
        }
    }
    total
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_enforce_a_policy_together_and_survive_their_operator() {
    const N: usize = 100;
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let mut operator = Operator::start(plane, "process-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "process").await;
    namespace.apply("p", spec(N)).await.unwrap();
    let mut sidecars = Vec::new();
    for name in ["one", "two", "three"] {
        let pod = namespace.pod(name, true, json!({"app": "a"})).await;
        sidecars.push(Sidecar::start(&namespace, &pod, &operator).await);
    }
    namespace.wait_for("p", "Ready", "True Ready").await;
    namespace.wait_for("p", "StoreHealthy", "True Healthy").await;
    until("the hour has begun", async || {
        (SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() % 3600 < 3480).then_some(())
    })
    .await;

    let outcome = flood(&sidecars, N, "alice").await;
    assert_eq!(
        (outcome.count(200), outcome.count(429)),
        (N, 2 * N),
        "{outcome:?}\n{}",
        sidecars[0].process.output()
    );
    assert_eq!(get(&sidecars[0].address, "/", &[("x-client", "bob")]).await.status, 200);
    let keys = redis.keys().await;
    assert!(
        keys.len() == 2
            && keys.iter().all(|key| key.starts_with(&format!("sluice:{}/p/l:{{", namespace.name))),
        "{keys:?}"
    );
    assert!(!keys.iter().any(|key| key.contains("alice")), "{keys:?}");

    namespace.apply("p", spec(N + 10)).await.unwrap();
    namespace.wait_for("p", "Ready", "True Ready").await;
    let outcome = flood(&sidecars, 10, "alice").await;
    assert_eq!((outcome.count(200), outcome.count(429)), (10, 20), "an edit keeps counts: {outcome:?}");

    // The operator goes: sidecars keep what they have, even through a restart of their own.
    operator.process.stop();
    let outcome = flood(&sidecars, 5, "alice").await;
    assert_eq!(outcome.count(429), 15, "{outcome:?}");
    sidecars[0].restart().await;
    let outcome = flood(&sidecars, 5, "alice").await;
    assert_eq!(outcome.count(429), 15, "{outcome:?}\n{}", sidecars[0].process.output());

    // It comes back: status is as true as before.
    let port = operator.control.clone();
    drop(operator);
    let operator = Operator::start_at(plane, "process-system", &redis.url, &port).await;
    namespace.apply("p", spec(N + 20)).await.unwrap();
    namespace.wait_for("p", "Ready", "True Ready").await;
    let outcome = flood(&sidecars, 10, "alice").await;
    assert_eq!((outcome.count(200), outcome.count(429)), (10, 20), "{outcome:?}");

    namespace.api::<sluice_crds::RateLimitPolicy>().delete("p", &Default::default()).await.unwrap();
    until("deletion lifts the limit", async || {
        (flood(&sidecars, 2, "alice").await.count(200) == 6).then_some(())
    })
    .await;
    drop(operator);
}
