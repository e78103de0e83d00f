//! Policies change, and those that cannot be used leave the ones before in force.

use std::time::Instant;

use sluice_tests::node::{apply, kubectl, try_apply};
use sluice_tests::wait::until;

use crate::gateway::{Gateway, Request, SYSTEM, accepted, policy, set_rules};

fn rules(limit: u32) -> String {
    format!(
        "[{{clientSelectors: [{{headers: [{{name: x-user, type: Distinct}}]}}], limit: {{requests: {limit}, unit: Year}}}}]"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edit_is_in_force_soon_after_it_is_accepted() {
    let gateway = Gateway::open().await;
    gateway.limit("edited", &rules(1000)).await;
    gateway.wait_for_limit(1000, &Request::get("edited", &[("x-user", "probe")])).await;
    for limit in 1001..=1010 {
        apply(&policy("edited", &["edited"], &rules(limit)));
        let applied = Instant::now();
        let request = Request::get("edited", &[("x-user", "probe")]);
        let in_force = async {
            gateway.wait_for_limit(limit, &request).await;
            Instant::now()
        };
        let (accepted, in_force) = tokio::join!(accepted("edited"), in_force);
        println!(
            "edit {limit}: accepted after {:?}, in force after {:?}, both after kubectl",
            accepted - applied,
            in_force - applied
        );
    }
    gateway.expect_exactly(1010, &Request::get("edited", &[("x-user", "alice")])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_the_api_server_refuses_leaves_the_one_before() {
    let gateway = Gateway::open().await;
    gateway.limit("refused", &rules(30)).await;
    let decade = policy("refused", &["refused"], "[{limit: {requests: 5, unit: Decade}}]");
    assert!(!try_apply(&decade).0, "there is no such unit");
    gateway.expect_exactly(30, &Request::get("refused", &[("x-user", "alice")])).await;
}

/// Envoy Gateway answers 500 in place of a route whose policy it refuses.
#[tokio::test(flavor = "multi_thread")]
async fn a_policy_that_envoy_gateway_refuses_denies_its_route_and_leaves_the_others() {
    let gateway = Gateway::open().await;
    gateway.limit("invalid", &rules(30)).await;
    gateway.limit("valid", &rules(20)).await;
    let request = Request::get("invalid", &[("x-user", "alice")]);
    gateway.expect_exactly(30, &request).await;
    let invalid = "
  - clientSelectors: [{headers: [{name: x-user, type: RegularExpression, value: '['}]}]
    limit: {requests: 5, unit: Year}
";
    apply(&policy("invalid", &["invalid"], invalid));
    until("the route answers 500", async || (gateway.ask(0, &request).await.status == 500).then_some(()))
        .await;
    gateway.expect_exactly(20, &Request::get("valid", &[("x-user", "alice")])).await;
    set_rules("invalid", &rules(30)).await;
    // What was counted before still counts.
    until("the limit is in force again", async || {
        (gateway.ask(0, &request).await.status == 429).then_some(())
    })
    .await;
}

/// Envoy Gateway accepts a rule with more conditions than the service takes levels.
#[tokio::test(flavor = "multi_thread")]
async fn rules_that_the_service_refuses_leave_those_before() {
    let gateway = Gateway::open().await;
    gateway.limit("deep", &rules(30)).await;
    gateway.limit("bystander", &rules(20)).await;
    gateway.expect_exactly(30, &Request::get("deep", &[("x-user", "alice")])).await;
    gateway.expect_exactly(20, &Request::get("bystander", &[("x-user", "alice")])).await;
    let headers: Vec<_> = (0..70).map(|n| format!("{{name: x-{n}, type: Distinct}}")).collect();
    let deep = format!(
        "[{{clientSelectors: [{{headers: [{}]}}], limit: {{requests: 5, unit: Year}}}}]",
        headers.join(", ")
    );
    let refusals =
        || kubectl(&format!("-n {SYSTEM} logs deployment/envoy-ratelimit")).matches("are refused").count();
    let before = refusals();
    set_rules("deep", &deep).await;
    until("the service has refused the rules", async || (refusals() > before).then_some(())).await;
    // Those of other policies stay, and so does what they have counted.
    let tally = gateway.ask_many(20, &Request::get("bystander", &[("x-user", "alice")])).await;
    assert_eq!(tally.count(429), 20, "{tally:?}");
    gateway.expect_exactly(20, &Request::get("bystander", &[("x-user", "bob")])).await;

    // The policy is mended, and edits reach the service again.
    set_rules("deep", &rules(31)).await;
    set_rules("bystander", &rules(21)).await;
    gateway.expect_exactly(31, &Request::get("deep", &[("x-user", "carol")])).await;
    gateway.expect_exactly(21, &Request::get("bystander", &[("x-user", "carol")])).await;
    assert_eq!(refusals(), before + 1, "Envoy Gateway sends them again and again, and the log says it once");
}
