//! The path of a policy without a kubelet: a real API server, a real Redis, the operator and three sidecars.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;
use sluice_tests::client::get;
use sluice_tests::components::sidecar::flood;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::wait::until;

/// Without trusted proxies, an ingress is one client. The status says so, and its command mends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_is_not_trusted_is_named_with_the_command_that_trusts_it() {
    const N: usize = 5;
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let operator = Operator::start(plane, "proxies-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "proxies").await;
    let limit =
        json!({"name": "l", "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": N, "per": "1h"}]});
    namespace.apply("p", json!({"limits": [limit]})).await.unwrap();
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let sidecar = Sidecar::start(&namespace, &pod, &operator).await;
    namespace.wait_for("p", "ClientAddress", "True Known").await;

    let from = |client: usize| format!("198.51.100.{client}");
    let mut statuses = Vec::new();
    for client in 0..200 {
        let address = from(client);
        statuses.push(get(&sidecar.address, "/", &[("x-forwarded-for", &address)]).await.status);
    }
    assert_eq!(
        statuses.iter().filter(|&&status| status == 200).count(),
        N,
        "one counter for all: {statuses:?}"
    );
    let message = namespace.wait_for("p", "ClientAddress", "False UntrustedProxy").await;
    assert!(message.contains("X-Forwarded-For from 127.0.0.1"), "{message}");

    plane.type_in_shell(&message[message.find("kubectl ").unwrap()..]);
    let known = namespace.wait_for("p", "ClientAddress", "True Known").await;
    println!("{message}\n{known}");
    until("each client behind the proxy has a counter", async || {
        let address = from(201);
        (get(&sidecar.address, "/", &[("x-forwarded-for", &address)]).await.status == 200).then_some(())
    })
    .await;
    for client in 0..200 {
        let address = from(client);
        assert_eq!(
            get(&sidecar.address, "/", &[("x-forwarded-for", &address)]).await.status,
            200,
            "{client}"
        );
    }
}

fn spec(requests: usize) -> serde_json::Value {
    json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{"name": "l", "key": {"parts": [{"header": {"name": "x-client"}}]}, "rates": [{"requests": requests, "per": "1h"}]}],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_enforce_a_policy_together_and_without_the_operator() {
    const N: usize = 100;
    let alice = [("x-client", "alice")];
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
    until("the next full hour is not near", async || {
        (SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() % 3600 < 3480).then_some(())
    })
    .await;

    let tally = flood(&sidecars, N, 20, &alice).await;
    assert_eq!(
        (tally.count(200), tally.count(429)),
        (N, 2 * N),
        "{tally:?}\n{}",
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
    let tally = flood(&sidecars, 10, 20, &alice).await;
    assert_eq!((tally.count(200), tally.count(429)), (10, 20), "an edit keeps counts: {tally:?}");

    // Without the operator, sidecars keep their policies, even when one of them restarts.
    operator.process.stop();
    let tally = flood(&sidecars, 5, 20, &alice).await;
    assert_eq!(tally.count(429), 15, "{tally:?}");
    sidecars[0].restart().await;
    let tally = flood(&sidecars, 5, 20, &alice).await;
    assert_eq!(tally.count(429), 15, "{tally:?}\n{}", sidecars[0].process.output());

    // When the operator is back, sidecars reconnect and receive edits.
    let control_url = operator.control_url.clone();
    drop(operator);
    let operator = Operator::start_with(plane, "process-system", &redis.url, &control_url, &[]).await;
    namespace.apply("p", spec(N + 20)).await.unwrap();
    namespace.wait_for("p", "Ready", "True Ready").await;
    let tally = flood(&sidecars, 10, 20, &alice).await;
    assert_eq!((tally.count(200), tally.count(429)), (10, 20), "{tally:?}");

    namespace.api::<sluice_crds::RateLimitPolicy>().delete("p", &Default::default()).await.unwrap();
    until("deleting the policy lifts the limit", async || {
        (flood(&sidecars, 2, 20, &alice).await.count(200) == 6).then_some(())
    })
    .await;
    drop(operator);
}
