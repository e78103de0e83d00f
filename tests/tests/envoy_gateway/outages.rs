//! Certificates, Envoy Gateway, the service and Redis go and come back.

use sluice_tests::node::{Load, apply, kubectl, run};
use sluice_tests::wait::until;

use crate::gateway::{Gateway, Request, SYSTEM, policy, rollout, route, service_image, set_rules, upgrade};

fn rules(limit: u32) -> String {
    format!(
        "[{{clientSelectors: [{{headers: [{{name: x-client, type: Distinct}}]}}], limit: {{requests: {limit}, unit: Year}}}}]"
    )
}

fn scale(namespace: &str, deployment: &str, replicas: u32) {
    kubectl(&format!("-n {namespace} scale deployment/{deployment} --replicas={replicas}"));
    kubectl(&format!("-n {namespace} rollout status deployment/{deployment} --timeout=180s"));
}

async fn scale_to_nothing(namespace: &str, deployment: &str, label: &str) {
    scale(namespace, deployment, 0);
    until(&format!("{deployment} has ended"), async || {
        (!kubectl(&format!("-n {namespace} get pods -l {label} -o name")).contains("pod/")).then_some(())
    })
    .await;
}

fn secret(name: &str) -> String {
    kubectl(&format!("-n {SYSTEM} get secret {name} -o jsonpath={{.data.tls\\.crt}}"))
}

/// The name of the only Deployment of Envoys.
fn envoys() -> String {
    let query = "get deployment -l gateway.envoyproxy.io/owning-gateway-name=eg -o jsonpath={.items[0].metadata.name}";
    kubectl(&format!("-n {SYSTEM} {query}")).trim().to_owned()
}

/// Expects that exactly `limit` requests of a client are admitted and no request is lost, while something happens under load.
async fn expect_exactly_under_load(client: &str, limit: u32, something: impl AsyncFnOnce()) {
    let gateway = Gateway::open().await;
    // The Service's clients ask for its address, which is the host of no other route.
    let address =
        kubectl(&format!("-n {SYSTEM} get service {} -o jsonpath={{.spec.clusterIP}}:80", envoys()));
    route("everything", &[]);
    set_rules("everything", &rules(limit)).await;
    gateway.wait_for_limit(limit, &Request::get("any", &[("x-client", "probe")])).await;
    let load = Load::start_as(&address, client);
    something().await;
    load.expect_exactly(limit as usize).await;
}

fn restarts() -> String {
    kubectl(&format!(
        "-n {SYSTEM} get pods -l app.kubernetes.io/name=envoy-ratelimit -o jsonpath={{..restartCount}}"
    ))
}

#[tokio::test(flavor = "multi_thread")]
async fn new_certificates_let_no_request_past_the_limit() {
    expect_exactly_under_load("certificates", 4000, async || {
        let (before, restarts_before) = (secret("envoy-rate-limit"), restarts());
        upgrade(&service_image(), &["--set", "certgen.job.args={--overwrite}"]);
        assert_ne!(before, secret("envoy-rate-limit"));
        until("the service has taken the new certificate over", async || {
            let log = kubectl(&format!("-n {SYSTEM} logs deployment/envoy-ratelimit"));
            log.contains("the certificate of the gRPC port was replaced").then_some(())
        })
        .await;
        // Envoy Gateway and Envoy read the new authority when they start. The service is not restarted.
        for deployment in ["envoy-gateway", &envoys()] {
            kubectl(&format!("-n {SYSTEM} rollout restart deployment/{deployment}"));
            rollout(deployment);
        }
        assert_eq!(restarts(), restarts_before);
        // New connections, with the new certificates on both sides: an edit reaches the service.
        let gateway = Gateway::find().await;
        gateway.limit("certificates", &rules(50)).await;
        gateway.expect_exactly(50, &Request::get("certificates", &[("x-client", "alice")])).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_of_the_service_lets_no_request_past_the_limit() {
    expect_exactly_under_load("rollout", 1500, async || {
        kubectl(&format!("-n {SYSTEM} rollout restart deployment/envoy-ratelimit"));
        rollout("envoy-ratelimit");
        // The old one has ended.
        until("there is one service", async || {
            let pods =
                kubectl(&format!("-n {SYSTEM} get pods -l app.kubernetes.io/name=envoy-ratelimit -o name"));
            (pods.lines().count() == 1).then_some(())
        })
        .await;
    })
    .await;
}

/// Envoy Gateway counts its versions from one whenever it starts: the service must not take a new version for one that it has.
#[tokio::test(flavor = "multi_thread")]
async fn an_edit_while_envoy_gateway_was_away_is_in_force_after_it() {
    let gateway = Gateway::open().await;
    gateway.limit("away", &rules(20)).await;
    gateway.expect_exactly(20, &Request::get("away", &[("x-client", "before")])).await;
    for limit in 21..=24 {
        scale_to_nothing(SYSTEM, "envoy-gateway", "control-plane=envoy-gateway").await;
        // Limits stay in force.
        let client = format!("during-{limit}");
        gateway.expect_exactly(limit - 1, &Request::get("away", &[("x-client", &client)])).await;
        apply(&policy("away", &["away"], &rules(limit)));
        scale(SYSTEM, "envoy-gateway", 1);
        gateway.wait_for_limit(limit, &Request::get("away", &[("x-client", "probe")])).await;
        let client = format!("after-{limit}");
        gateway.expect_exactly(limit, &Request::get("away", &[("x-client", &client)])).await;
    }
}

/// A service that starts without its rules answers with errors, and Envoy lets requests pass, as with ratelimit.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_starts_without_envoy_gateway_waits_for_its_rules() {
    let gateway = Gateway::open().await;
    gateway.limit("restarted", &rules(20)).await;
    let request = Request::get("restarted", &[("x-client", "alice")]);
    gateway.expect_exactly(20, &request).await;
    scale_to_nothing(SYSTEM, "envoy-gateway", "control-plane=envoy-gateway").await;
    // The pod stays, with its address: without Envoy Gateway no Envoy would learn another one.
    let query = "get pods -l app.kubernetes.io/name=envoy-ratelimit -o jsonpath={..containerID}";
    let container = kubectl(&format!("-n {SYSTEM} {query}")).trim().replace("containerd://", "");
    let end = ["enter", "node1", "ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGTERM", &container];
    let (ok, text) = run("tests/node/node.sh", &end, "");
    assert!(ok, "{text}");
    until("a service without rules answers", async || {
        let response = gateway.ask(0, &request).await;
        (response.status == 200).then_some(())
    })
    .await;
    scale(SYSTEM, "envoy-gateway", 1);
    until("the service has its rules again", async || {
        let responses = [gateway.ask(0, &request).await.status, gateway.ask(1, &request).await.status];
        (responses == [429, 429]).then_some(())
    })
    .await;
    gateway.expect_exactly(20, &Request::get("restarted", &[("x-client", "bob")])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_the_service_goes_on_with_its_share() {
    let gateway = Gateway::open().await;
    gateway.limit("redis", &rules(100)).await;
    let (alice, bob) = ([("x-client", "alice")], [("x-client", "bob")]);
    let (alice, bob) = (Request::get("redis", &alice), Request::get("redis", &bob));
    gateway.expect_exactly(100, &alice).await;
    scale_to_nothing("redis-system", "redis", "app=redis").await;
    let without =
        (gateway.ask_many(160, &alice).await.count(200), gateway.ask_many(160, &bob).await.count(200));
    // The only replica has the whole limit as its share, and knows who has used it up.
    assert_eq!(without, (0, 100), "alice and bob without Redis");
    scale("redis-system", "redis", 1);
    until("the service counts in Redis again", async || {
        let keys = kubectl("-n redis-system exec deployment/redis -- redis-cli dbsize");
        gateway.ask(0, &Request::get("redis", &[("x-client", "probe")])).await;
        (keys.trim() != "0").then_some(())
    })
    .await;
    let after =
        (gateway.ask_many(160, &alice).await.count(200), gateway.ask_many(160, &bob).await.count(200));
    assert_eq!(after, (0, 0), "alice and bob with a new Redis");
    gateway.expect_exactly(100, &Request::get("redis", &[("x-client", "carol")])).await;
}
