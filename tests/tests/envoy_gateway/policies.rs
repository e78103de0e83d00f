//! Each kind of rule admits exactly what it says, through two Envoys. Limits are by the year, whose end no run meets.

use sluice_tests::node::apply;
use sluice_tests::wait::until;

use crate::gateway::{Gateway, Request, accepted, policy, route};

#[tokio::test(flavor = "multi_thread")]
async fn each_value_of_a_distinct_header_has_a_limit_of_its_own() {
    let gateway = Gateway::open().await;
    let rules = "[{clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 100, unit: Year}}]";
    gateway.limit("distinct", rules).await;
    for user in ["alice", "bob"] {
        gateway.expect_exactly(100, &Request::get("distinct", &[("x-user", user)])).await;
    }
    gateway.expect_no_limit(&Request::get("distinct", &[])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exact_header_and_an_inverted_one_select_clients() {
    let gateway = Gateway::open().await;
    let rules = "
  - clientSelectors: [{headers: [{name: x-user, value: one}, {name: x-org, value: acme, invert: true}]}]
    limit: {requests: 50, unit: Year}
  - clientSelectors: [{headers: [{name: x-user, type: RegularExpression, value: 'm[a-z]+'}]}]
    limit: {requests: 30, unit: Year}
";
    gateway.limit("exact", rules).await;
    gateway.expect_exactly(50, &Request::get("exact", &[("x-user", "one"), ("x-org", "other")])).await;
    gateway.expect_no_limit(&Request::get("exact", &[("x-user", "one"), ("x-org", "acme")])).await;
    gateway.expect_no_limit(&Request::get("exact", &[("x-user", "two"), ("x-org", "other")])).await;
    gateway.expect_exactly(30, &Request::get("exact", &[("x-user", "mia")])).await;
    // The rule counts all that match.
    let tally = gateway.ask_many(20, &Request::get("exact", &[("x-user", "max")])).await;
    assert_eq!(tally.count(429), 20, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn methods_paths_and_query_parameters_select_requests() {
    let gateway = Gateway::open().await;
    let rules = "
  - clientSelectors: [{methods: [{value: POST}, {value: PUT}], path: {type: PathPrefix, value: /api}}]
    limit: {requests: 40, unit: Year}
  - clientSelectors: [{queryParams: [{name: tenant, type: Distinct}]}]
    limit: {requests: 20, unit: Year}
  - clientSelectors: [{path: {type: Exact, value: /open, invert: true}, headers: [{name: x-path, value: 'yes'}]}]
    limit: {requests: 10, unit: Year}
";
    gateway.limit("selectors", rules).await;
    let post = Request {
        method: "POST",
        host: "selectors",
        path: "/api/orders",
        headers: &[("content-length", "0")],
    };
    gateway.expect_exactly(40, &post).await;
    // Both methods share the limit.
    assert_eq!(gateway.ask(0, &Request { method: "PUT", ..post }).await.status, 429);
    gateway.expect_no_limit(&Request { method: "DELETE", ..post }).await;
    gateway.expect_no_limit(&Request { path: "/other", ..post }).await;
    let query = Request { path: "/?tenant=a", ..Request::get("selectors", &[]) };
    gateway.expect_exactly(20, &query).await;
    gateway.expect_exactly(20, &Request { path: "/?tenant=b", ..query }).await;
    let inverted = Request { path: "/closed", ..Request::get("selectors", &[("x-path", "yes")]) };
    gateway.expect_exactly(10, &inverted).await;
    gateway.expect_no_limit(&Request { path: "/open", ..inverted }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_count_together_or_each_by_itself() {
    let gateway = Gateway::open().await;
    let rules = "
  - clientSelectors: [{sourceCIDR: {value: 192.0.2.0/24, type: Distinct}}]
    limit: {requests: 20, unit: Year}
  - clientSelectors: [{sourceCIDR: {value: 198.51.100.0/24}}]
    limit: {requests: 60, unit: Year}
  - clientSelectors: [{sourceCIDR: {value: 0.0.0.0/1, invert: true}, headers: [{name: x-upper, value: 'yes'}]}]
    limit: {requests: 10, unit: Year}
";
    gateway.limit("addresses", rules).await;
    for address in ["192.0.2.7", "192.0.2.8"] {
        gateway.expect_exactly(20, &Request::get("addresses", &[("x-forwarded-for", address)])).await;
    }
    gateway.expect_exactly(60, &Request::get("addresses", &[("x-forwarded-for", "198.51.100.1")])).await;
    let other =
        gateway.ask_many(20, &Request::get("addresses", &[("x-forwarded-for", "198.51.100.2")])).await;
    assert_eq!(other.count(429), 20, "{other:?}");
    gateway.expect_no_limit(&Request::get("addresses", &[("x-forwarded-for", "203.0.113.1")])).await;
    let upper = [("x-forwarded-for", "203.0.113.1"), ("x-upper", "yes")];
    gateway.expect_exactly(10, &Request::get("addresses", &upper)).await;
    gateway.expect_no_limit(&Request::get("addresses", &[("x-forwarded-for", "10.0.0.1"), upper[1]])).await;
}

/// ratelimit refuses these two rules, and with them all rules of all policies.
#[tokio::test(flavor = "multi_thread")]
async fn the_addresses_of_a_range_count_together_and_each_by_itself() {
    let gateway = Gateway::open().await;
    let rules = "
  - clientSelectors: [{sourceCIDR: {value: 192.0.2.0/24}}]
    limit: {requests: 50, unit: Year}
  - clientSelectors: [{sourceCIDR: {value: 192.0.2.0/24, type: Distinct}}]
    limit: {requests: 30, unit: Year}
";
    gateway.limit("range", rules).await;
    gateway.expect_exactly(30, &Request::get("range", &[("x-forwarded-for", "192.0.2.7")])).await;
    let tally = gateway.ask_many(60, &Request::get("range", &[("x-forwarded-for", "192.0.2.8")])).await;
    assert_eq!(tally.count(200), 20, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_rule_counts_the_requests_of_all_routes() {
    let gateway = Gateway::open().await;
    route("shared-a", &["shared-a.test"]);
    route("shared-b", &["shared-b.test"]);
    let rules = "
  - {limit: {requests: 80, unit: Year}, shared: true}
  - clientSelectors: [{headers: [{name: x-user, type: Distinct}]}]
    limit: {requests: 30, unit: Year}
";
    apply(&policy("shared", &["shared-a", "shared-b"], rules));
    accepted("shared").await;
    let mut charged = 0;
    for host in ["shared-a", "shared-b"] {
        charged += gateway.wait_for_limit(80, &Request::get(host, &[])).await;
    }
    let (a, b) = (Request::get("shared-a", &[]), Request::get("shared-b", &[]));
    let (a, b) = tokio::join!(gateway.ask_many(70, &a), gateway.ask_many(70, &b));
    println!("shared: {charged} before, {a:?}, {b:?}");
    assert_eq!(charged + a.count(200) + b.count(200), 80, "{a:?} {b:?}");
    assert!(a.count(200) > 0 && b.count(200) > 0, "{a:?} {b:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rule_in_shadow_mode_denies_nothing_beside_one_that_does() {
    let gateway = Gateway::open().await;
    let rules = "
  - clientSelectors: [{headers: [{name: x-user, type: Distinct}]}]
    limit: {requests: 5, unit: Year}
    shadowMode: true
  - clientSelectors: [{headers: [{name: x-org, type: Distinct}]}]
    limit: {requests: 40, unit: Year}
";
    gateway.limit("shadow", rules).await;
    gateway.expect_exactly(40, &Request::get("shadow", &[("x-org", "acme")])).await;
    let tally = gateway.ask_many(60, &Request::get("shadow", &[("x-user", "alice")])).await;
    assert_eq!(tally.count(200), 60, "{tally:?}");
    // The rule in shadow mode is used up, and the other one decides.
    let tally =
        gateway.ask_many(60, &Request::get("shadow", &[("x-user", "alice"), ("x-org", "other")])).await;
    assert_eq!((tally.count(200), tally.count(429)), (40, 20), "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_and_responses_cost_what_the_rule_says() {
    let gateway = Gateway::open().await;
    script(
        "costs",
        "handle:streamInfo():dynamicMetadata():set('io.test', 'tokens', tonumber(handle:headers():get('x-tokens')))",
    );
    let rules = "
  - clientSelectors: [{headers: [{name: x-heavy, type: Distinct}]}]
    limit: {requests: 100, unit: Year}
    cost: {request: {from: Number, number: 5}}
  - clientSelectors: [{headers: [{name: x-user, type: Distinct}]}]
    limit: {requests: 100, unit: Year}
    cost:
      request: {from: Number, number: 0}
      response: {from: Metadata, metadata: {namespace: io.test, key: tokens}}
";
    gateway.limit("costs", rules).await;
    let heavy = Request::get("costs", &[("x-heavy", "alice"), ("x-tokens", "0")]);
    let charged = gateway.wait_for_limit(100, &heavy).await;
    let tally = gateway.ask_many(60, &heavy).await;
    println!("costs: {charged} before, {tally:?}");
    assert_eq!(charged + tally.count(200), 20, "{tally:?}");

    // A response is charged when it has ended: a request costs nothing, and waits until the one before is charged.
    let left = async |expected: &str| {
        until(&format!("{expected} are left"), async || {
            let look = gateway.ask(0, &Request::get("costs", &[("x-user", "bob"), ("x-tokens", "0")])).await;
            (look.header("x-ratelimit-remaining") == Some(expected)).then_some(look.status)
        })
        .await
    };
    left("100").await;
    for (tokens, expected) in [("60", "40"), ("30", "10"), ("70", "0")] {
        let spent = gateway.ask(1, &Request::get("costs", &[("x-user", "bob"), ("x-tokens", tokens)])).await;
        assert_eq!(spent.status, 200, "{spent:?}");
        assert_eq!(left(expected).await, if expected == "0" { 429 } else { 200 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_sets_the_limit_of_a_request() {
    let gateway = Gateway::open().await;
    script(
        "metadata",
        "local n = handle:headers():get('x-quota')
         if n then
           handle:streamInfo():dynamicMetadata():set('io.test', 'quota', {requests_per_unit = tonumber(n), unit = 'YEAR'})
         end",
    );
    let rules = "
  - clientSelectors: [{headers: [{name: x-user, type: Distinct}]}]
    limit: {requests: 20, unit: Year, fromMetadata: {namespace: io.test, key: quota}}
";
    gateway.limit("metadata", rules).await;
    gateway.expect_exactly(20, &Request::get("metadata", &[("x-user", "small")])).await;
    gateway.expect_exactly(70, &Request::get("metadata", &[("x-user", "large"), ("x-quota", "70")])).await;
}

/// Lets Envoy run this for each request of a route, before it asks for limits.
fn script(route: &str, lua: &str) {
    apply(&format!(
        "
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyExtensionPolicy
metadata: {{name: {route}, namespace: default}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: HTTPRoute, name: {route}}}]
  lua:
  - type: Inline
    inline: |
      function envoy_on_request(handle)
        {}
      end
",
        lua.replace('\n', "\n        ")
    ));
}
