//! Local quota without a kubelet: a real API server, a real Redis, the operator and three sidecars. The
//! operator reports the replicas of a policy. Each sidecar enforces its share of the number, either because
//! the policy is `Local` or because Redis is gone.

use serde_json::json;
use sluice_tests::client::get;
use sluice_tests::components::sidecar::flood;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::wait::until;

#[tokio::test(flavor = "multi_thread")]
async fn replicas_with_local_quota_admit_exactly_the_number_together() {
    const N: usize = 100;
    let plane = ControlPlane::shared().await;
    let mut redis = Some(Redis::start().await);
    let url = redis.as_ref().unwrap().url.clone();
    let operator = Operator::start(plane, "share-system", &url).await;
    let namespace = TestNamespace::create(plane.client().await, "share").await;
    let policy = |consistency: &str| {
        json!({
            "selector": {"matchLabels": {"app": "a"}},
            "consistency": consistency, "onStoreFailure": "Share",
            "limits": [{
                "name": "l", "key": {"parts": [{"header": {"name": "x-client"}}]},
                "rates": [{"requests": N, "per": "8784h"}], "algorithm": {"fixedWindow": {}},
            }],
        })
    };
    namespace.apply("local", policy("Local")).await.unwrap();
    let mut sidecars = Vec::new();
    for name in ["one", "two", "three"] {
        let pod = namespace.pod(name, true, json!({"app": "a"})).await;
        sidecars.push(Sidecar::start(&namespace, &pod, &operator).await);
    }
    namespace.wait_for("local", "Ready", "True Ready").await;
    let wait_for_three_replicas = async |policy: &str| {
        for sidecar in &sidecars {
            let line = format!(
                "sluice_policy_pods{{policy_namespace=\"{}\",policy=\"{policy}\"}} 3",
                namespace.name
            );
            until(&format!("the sidecar reports {line}"), async || {
                get(&sidecar.admin, "/metrics", &[]).await.body.contains(&line).then_some(())
            })
            .await;
        }
    };
    wait_for_three_replicas("local").await;
    let tally = flood(&sidecars, N, 20, &[("x-client", "alice")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (N, 2 * N), "{tally:?}");
    assert_eq!(redis.as_ref().unwrap().keys().await, Vec::<String>::new());

    // With `PerPod`, each admits the whole number.
    let api = namespace.api::<sluice_crds::RateLimitPolicy>();
    api.delete("local", &Default::default()).await.unwrap();
    namespace.apply("per-pod", policy("PerPod")).await.unwrap();
    namespace.wait_for("per-pod", "Ready", "True Ready").await;
    let tally = flood(&sidecars, N + 10, 20, &[("x-client", "alice")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (3 * N, 30), "{tally:?}");
    assert_eq!(redis.as_ref().unwrap().keys().await, Vec::<String>::new());
    api.delete("per-pod", &Default::default()).await.unwrap();

    // Shares hold as well when the store dies under a policy that counts in it.
    namespace.apply("strict", policy("Strict")).await.unwrap();
    namespace.wait_for("strict", "Ready", "True Ready").await;
    wait_for_three_replicas("strict").await;
    redis.take();
    for sidecar in &sidecars {
        until("the sidecar has noticed that the store is gone", async || {
            let response = get(&sidecar.address, "/", &[("x-client", "probe")]).await;
            response.header("x-sluice-store-failure").is_some().then_some(())
        })
        .await;
    }
    let tally = flood(&sidecars, N, 20, &[("x-client", "bob")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (N, 2 * N), "{tally:?}");
}
