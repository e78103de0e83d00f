//! One value of Envoy Gateway's chart changes, and the service answers in place of ratelimit.

use sluice_tests::node::{apply, kubectl, run};

use crate::gateway::{Gateway, Request, SYSTEM, service_image, upgrade, wait_for_image};

const RULES: &str = "
  - clientSelectors: [{headers: [{name: x-user, type: Distinct}]}]
    limit: {requests: 40, unit: Year}
";

#[tokio::test(flavor = "multi_thread")]
async fn one_helm_value_makes_the_service_answer_instead_of_ratelimit() {
    upgrade("sluice.local/ratelimit:test", &[]);
    apply(include_str!("gateway.yaml"));
    wait_for_image("sluice.local/ratelimit:test").await;
    let gateway = Gateway::find().await;
    gateway.limit("replacement", RULES).await;
    gateway.wait_for_limit(40, &Request::get("replacement", &[("x-user", "ratelimit")])).await;
    let denied =
        gateway.ask_many(80, &Request::get("replacement", &[("x-user", "ratelimit")])).await.count(429);
    assert!(denied > 0, "ratelimit answers");

    upgrade(&service_image(), &[]);
    wait_for_image(&service_image()).await;
    gateway.expect_exactly(40, &Request::get("replacement", &[("x-user", "service")])).await;
    let log = kubectl(&format!("-n {SYSTEM} logs deployment/envoy-ratelimit"));
    assert!(log.contains("the configuration is in force"), "{log}");
    let query =
        "get pods -l app.kubernetes.io/name=envoy-ratelimit -o jsonpath={.items[0].status.podIP}:8081";
    let service = kubectl(&format!("-n {SYSTEM} {query}"));
    let (ok, text) = run("openssl", &["s_client", "-brief", "-tls1_2", "-connect", service.trim()], "");
    assert!(!ok && text.contains("alert"), "a caller without a certificate is refused: {text}");
    // The keys in Redis are those of the service.
    let keys = kubectl("-n redis-system exec deployment/redis -- redis-cli --scan --pattern sluice:*");
    assert!(keys.contains("sluice:"), "{keys}");
}
