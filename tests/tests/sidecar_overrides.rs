//! Overrides on their whole path: a real API server, a real Redis, the operator and two sidecars.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use sluice_tests::client::get;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::wait::until;

/// Returns a policy with 5 requests for each client, and with the overrides of these many ConfigMaps.
fn spec(config_maps: usize) -> Value {
    let sources =
        (0..config_maps).map(|n| json!({"configMapRef": {"name": format!("c{n}"), "key": "clients"}}));
    json!({
        "limits": [{
            "name": "l", "key": {"parts": [{"header": {"name": "x-api-key"}}]},
            "rates": [{"requests": 5, "per": "24h"}],
            "plans": [{"name": "large", "rates": [{"requests": 20, "per": "24h"}]}],
            "overridesFrom": sources.collect::<Vec<_>>(),
        }],
    })
}

async fn apply(namespace: &TestNamespace, name: &str, lines: &str) {
    namespace.apply_object::<ConfigMap>(name, json!({"data": {"clients": lines}})).await;
}

async fn status(sidecar: &Sidecar, client: &str) -> u16 {
    get(&sidecar.address, "/", &[("x-api-key", client)]).await.status
}

/// Sends 30 requests to the sidecars in turn. Returns how many were admitted.
async fn admitted(sidecars: &[Sidecar], client: &str) -> usize {
    let mut admitted = 0;
    for n in 0..30 {
        admitted += usize::from(status(&sidecars[n % sidecars.len()], client).await == 200);
    }
    admitted
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_share_the_plans_of_a_hundred_thousand_clients() {
    const CLIENTS: usize = 100_000;
    const CONFIG_MAPS: usize = 4;
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let operator = Operator::start(plane, "overrides-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "overrides").await;
    let lines = |n: usize, plan_of_all: &str| {
        let clients = (n..CLIENTS).step_by(CONFIG_MAPS);
        clients.map(|client| format!("tenant-{client}: {plan_of_all}\n")).collect::<String>()
    };
    for n in 0..CONFIG_MAPS {
        apply(&namespace, &format!("c{n}"), &lines(n, "large")).await;
    }
    namespace.apply("p", spec(CONFIG_MAPS)).await.unwrap();
    let mut sidecars = Vec::new();
    for name in ["one", "two"] {
        let pod = namespace.pod(name, true, json!({"app": "a"})).await;
        sidecars.push(Sidecar::start(&namespace, &pod, &operator).await);
    }
    namespace.wait_for("p", "Programmed", "True Programmed").await;
    namespace.wait_for("p", "ResolvedRefs", "True ResolvedRefs").await;
    for (client, expected) in [("tenant-0", 20), ("tenant-99999", 20), ("tenant-100000", 5), ("anyone", 5)] {
        assert_eq!(admitted(&sidecars, client).await, expected, "{client}");
    }

    // A change reaches all pods, and a client keeps what it has used.
    apply(&namespace, "c1", &format!("{}mallory: deny\n", lines(1, "unlimited"))).await;
    until("all pods have the new plans", async || {
        for sidecar in &sidecars {
            // Not because the others have used up its requests.
            let denied = get(&sidecar.address, "/", &[("x-api-key", "mallory")]).await.body;
            if !denied.contains("admits no such requests") {
                return None;
            }
        }
        Some(())
    })
    .await;
    assert_eq!(admitted(&sidecars, "tenant-1").await, 30);
    assert_eq!(admitted(&sidecars, "tenant-0").await, 0);
    namespace.wait_for("p", "Programmed", "True Programmed").await;
    let kept = std::fs::read_dir(sidecars[0].state_dir()).unwrap().flatten();
    let kept = kept.filter(|entry| entry.file_name().to_string_lossy().starts_with("blob-")).count();
    assert_eq!(kept, 1, "tables that are not in use are removed");

    // A sidecar that starts again has its tables without the operator.
    drop(operator);
    sidecars[0].restart().await;
    assert_eq!(status(&sidecars[0], "mallory").await, 429);
    assert_eq!(admitted(&sidecars, "tenant-5").await, 30);
    assert_eq!(admitted(&sidecars, "tenant-99998").await, 20);
}

/// More overrides than a pod bears are refused by name, and other policies are enforced.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_whose_overrides_do_not_fit_is_refused_by_name() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let operator = Operator::start(plane, "overrides-size-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "overrides-size").await;
    // Each limit has 5 MB of the 8 MiB of a pod.
    let lines = |part: usize| (0..50_000).map(|n| format!("t{part}-{n}: large\n")).collect::<String>();
    for n in 0..5 {
        apply(&namespace, &format!("c{n}"), &lines(n)).await;
    }
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    namespace.apply("a", spec(5)).await.unwrap();
    let sidecar = Sidecar::start(&namespace, &pod, &operator).await;
    namespace.wait_for("a", "Programmed", "True Programmed").await;
    namespace.apply("b", spec(5)).await.unwrap();
    let message = namespace.wait_for("b", "Programmed", "False Refused").await;
    assert!(
        message.contains("the overrides of this pod's policies have more than 8 MiB together"),
        "{message}"
    );
    namespace.wait_for("a", "Programmed", "True Programmed").await;
    assert_eq!(admitted(&[sidecar], "t0-1").await, 20);
}
