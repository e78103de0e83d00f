//! Stores on a real node: the right to read a Secret that a namespace grants, and the embedded Redis without the operator.

use serde_json::Value;
use sluice_tests::client::get;
use sluice_tests::node::{SYSTEM, Shop, apply, install, kubectl, run, upgrade};
use sluice_tests::wait::until;

/// Waits until a condition of a store has a status and a reason. Returns its message.
async fn wait_for(namespace: &str, store: &str, kind: &str, expected: &str) -> String {
    until(&format!("{store}: {kind} is {expected}"), async || {
        let query = ["-n", namespace, "get", "ratelimitstores.sluice.dev", store, "-o", "json"];
        let (ok, text) = run("kubectl", &query, "");
        let object: Value = serde_json::from_str(&text).ok().filter(|_| ok)?;
        let conditions = object["status"]["conditions"].as_array()?;
        let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
        let text = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
        let found = format!("{} {}", text("status"), text("reason"));
        let is_current = condition["observedGeneration"] == object["metadata"]["generation"];
        (is_current && found == expected).then(|| text("message"))
    })
    .await
}

async fn admitted(address: &str, client: &str, requests: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..requests {
        admitted += usize::from(get(address, "/", &[("x-client", client)]).await.status == 200);
    }
    admitted
}

/// One test, because both parts change the installation.
#[tokio::test]
async fn e2e_stores() {
    the_embedded_redis_restarts_without_the_operator().await;
    a_namespace_grants_the_operator_the_secret_of_its_store().await;
}

async fn the_embedded_redis_restarts_without_the_operator() {
    install();
    let shop = Shop::open("stores-embedded");
    shop.deploy("web", 1);
    shop.limit("p", "web", 5);
    shop.wait_for("p", "Ready", "True Ready").await;
    let address = shop.address("web");
    assert_eq!(admitted(&address, "alice", 7).await, 5);
    wait_for(SYSTEM, "default", "Ready", "True Ready").await;
    println!("{}", kubectl(&format!("-n {SYSTEM} get ratelimitstores.sluice.dev")));
    // The users are in the Secret before the operator goes.
    until("the Secret has the namespace's user", async || {
        let (_, text) = run(
            "kubectl",
            &[
                "-n",
                SYSTEM,
                "get",
                "secret",
                "sluice-redis",
                "-o",
                "go-template={{index .data \"users.acl\" | base64decode}}",
            ],
            "",
        );
        text.contains("user sluice:@stores-embedded ").then_some(())
    })
    .await;
    kubectl(&format!("-n {SYSTEM} scale deployment/sluice-operator --replicas=0"));
    kubectl(&format!(
        "-n {SYSTEM} wait --for=delete pod -l app.kubernetes.io/component=operator --timeout=90s"
    ));
    kubectl(&format!("-n {SYSTEM} scale deployment/sluice-redis --replicas=0"));
    until("Redis has ended", async || {
        let query = format!("-n {SYSTEM} get pods -l app.kubernetes.io/component=redis -o name");
        (!kubectl(&query).contains("pod/")).then_some(())
    })
    .await;
    // The sidecar goes on from what Redis had told it.
    assert_eq!(admitted(&address, "alice", 2).await, 0);
    kubectl(&format!("-n {SYSTEM} scale deployment/sluice-redis --replicas=1"));
    kubectl(&format!("-n {SYSTEM} rollout status deployment/sluice-redis --timeout=120s"));
    // Exact again, with counters that began at zero, although no operator runs.
    let mut n = 0;
    until("the sidecar counts in the new Redis", async || {
        n += 1;
        let response = get(&address, "/", &[("x-client", &format!("new-{n}"))]).await;
        (response.status == 200 && response.header("x-ratelimit-remaining") == Some("4")).then_some(())
    })
    .await;
    assert_eq!(admitted(&address, "bob", 9).await, 5);
    // What the sidecar knew of this client is in the new Redis too.
    assert_eq!(admitted(&address, "alice", 2).await, 0);
    kubectl(&format!("-n {SYSTEM} scale deployment/sluice-operator --replicas=2"));
    kubectl(&format!("-n {SYSTEM} rollout status deployment/sluice-operator --timeout=120s"));
}

async fn a_namespace_grants_the_operator_the_secret_of_its_store() {
    upgrade(&["--set", "tenantStores.enabled=true", "--wait", "--timeout", "5m"]);
    // One that ends reviews objects by its own settings as long as the API server is connected to it.
    until("the operators with the former settings have ended", async || {
        let query = format!("-n {SYSTEM} get pods -l app.kubernetes.io/component=operator -o name");
        (kubectl(&query).lines().count() == 2).then_some(())
    })
    .await;
    let shop = Shop::open("stores-own");
    shop.deploy("web", 1);
    apply(
        "
apiVersion: apps/v1
kind: Deployment
metadata: {name: redis, namespace: stores-own}
spec:
  selector: {matchLabels: {app: redis}}
  template:
    metadata: {labels: {app: redis, sluice.dev/inject: 'false'}}
    spec:
      containers:
      - name: redis
        image: sluice.local/redis:test
        args: [--protected-mode, 'no', --requirepass, 'own-password']
        ports: [{name: redis, containerPort: 6379}]
---
apiVersion: v1
kind: Service
metadata: {name: redis, namespace: stores-own}
spec: {selector: {app: redis}, ports: [{port: 6379, targetPort: redis}]}
---
apiVersion: v1
kind: Secret
metadata: {name: my-redis, namespace: stores-own}
type: sluice.dev/store
stringData: {password: own-password}
---
apiVersion: sluice.dev/v1alpha1
kind: RateLimitStore
metadata: {name: own, namespace: stores-own}
spec:
  servers: {standalone: {endpoint: redis.stores-own.svc}}
  secretRef: {name: my-redis}
  latencyBudget: 2s
---
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: p, namespace: stores-own}
spec:
  selector: {matchLabels: {app: web}}
  storeRef: {name: own}
  limits:
  - name: per-client
    key: {parts: [{header: {name: x-client}}]}
    rates: [{requests: 5, per: 1h}]
",
    );
    let message = wait_for("stores-own", "own", "Ready", "False RefNotPermitted").await;
    shop.wait_for("p", "Ready", "False RefNotPermitted").await;
    // The message's own command, as a user types it.
    let command = message.split('`').nth(1).expect("a command");
    let (ok, text) = run("sh", &["-c", command], "");
    assert!(ok, "{command}: {text}");
    wait_for("stores-own", "own", "Ready", "True Ready").await;
    shop.wait_for("p", "Ready", "True Ready").await;
    shop.wait_for("p", "StoreHealthy", "True Healthy").await;
    assert_eq!(admitted(&shop.address("web"), "alice", 7).await, 5);
    let keys = kubectl(
        "-n stores-own exec deployment/redis -- redis-cli -a own-password --no-auth-warning keys sluice:*",
    );
    assert!(keys.contains("sluice:stores-own/p/per-client:"), "{keys}");
    println!("{}", kubectl("-n stores-own get ratelimitstores.sluice.dev,ratelimitpolicies.sluice.dev"));
    println!("{}", kubectl("-n stores-own describe ratelimitstores.sluice.dev own"));
    // The other Secrets of the namespace stay unreadable.
    let account = format!("--as=system:serviceaccount:{SYSTEM}:sluice-operator");
    let (ok, _) = run("kubectl", &["-n", "stores-own", "auth", "can-i", "get", "secret/other", &account], "");
    assert!(!ok, "the operator may read one Secret only");
}
