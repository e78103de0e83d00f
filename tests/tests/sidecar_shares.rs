//! Shares on the whole path: a real API server, a real Redis, the operator and three sidecars as processes. The operator
//! says who shares a policy; each sidecar counts its share, because the policy says so or because Redis is gone.

use serde_json::json;
use sluice_tests::cluster::TestNamespace;
use sluice_tests::control_plane::ControlPlane;
use sluice_tests::load::{Outcome, get, many};
use sluice_tests::operator::Operator;
use sluice_tests::redis::Redis;
use sluice_tests::sidecar::Sidecar;
use sluice_tests::wait::until;

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

/// By shares alone, of a real operator's word: the sidecars never ask for them, and together admit exactly the number.
#[tokio::test(flavor = "multi_thread")]
async fn sidecars_share_a_number_by_what_the_operator_says_of_each_other() {
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
    let all_know = async |policy: &str| {
        for sidecar in &sidecars {
            let line = format!("sluice_policy_pods{{policy=\"{}/{policy}\"}} 3", namespace.name);
            until(&format!("a sidecar knows of all three: {line}"), async || {
                get(&sidecar.admin, "/metrics", &[]).await.body.contains(&line).then_some(())
            })
            .await;
        }
    };
    all_know("local").await;
    let outcome = flood(&sidecars, N, "alice").await;
    assert_eq!((outcome.count(200), outcome.count(429)), (N, 2 * N), "{outcome:?}");
    assert_eq!(redis.as_ref().unwrap().keys().await, Vec::<String>::new());
    // The same when the store is killed under a policy that asks it.
    let api = namespace.api::<sluice_crds::RateLimitPolicy>();
    api.delete("local", &Default::default()).await.unwrap();
    namespace.apply("strict", policy("Strict")).await.unwrap();
    namespace.wait_for("strict", "Ready", "True Ready").await;
    all_know("strict").await;
    redis.take();
    for sidecar in &sidecars {
        until("it counts by its share", async || {
            let answer = get(&sidecar.address, "/", &[("x-client", "nobody")]).await;
            answer.header("x-sluice-store-failure").is_some().then_some(())
        })
        .await;
    }
    let outcome = flood(&sidecars, N, "bob").await;
    assert_eq!((outcome.count(200), outcome.count(429)), (N, 2 * N), "{outcome:?}");
}
