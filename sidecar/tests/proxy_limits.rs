//! Effects of limits on requests, and the responses that clients get.

use http::StatusCode;
use sluice_config::store_access::{StoreChoice, StoreChoices};

use crate::support::*;

#[tokio::test]
async fn a_request_beyond_the_limit_is_denied_with_the_reason_and_the_time_to_wait() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("per-client", 2, "")])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let first = client.get("x-api-key: alice\r\n").await;
    assert_eq!((first.status, first.header("x-application")), (200, "yes"));
    assert_eq!(first.header("ratelimit-policy"), "\"per-client\";q=2;w=60");
    assert_eq!(first.header("ratelimit"), "\"per-client\";r=1;t=60");
    assert_eq!(first.header("x-ratelimit-limit"), "2");
    assert_eq!(first.header("x-ratelimit-remaining"), "1");
    assert_eq!(first.header("x-ratelimit-reset"), "60");
    assert_eq!(first.header("retry-after"), "");
    assert_eq!(client.get("x-api-key: alice\r\n").await.status, 200);
    let denied = client.get("x-api-key: alice\r\n").await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.header("retry-after"), "60");
    assert_eq!(denied.header("x-ratelimit-retry-after"), "60");
    assert_eq!(denied.header("ratelimit"), "\"per-client\";r=0;t=60");
    assert_eq!(denied.header("content-type"), "application/problem+json");
    assert_eq!(
        denied.json(),
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "detail": "Limit per-client admits 2 requests per minute. Try again in 1 minute.",
            "violated-policies": ["per-client"],
        })
    );
    assert_eq!(application.count(), 2);
    assert_eq!(client.get("x-api-key: bob\r\n").await.status, 200, "another client is not affected");
    client.send("HEAD / HTTP/1.1\r\nhost: a\r\nx-api-key: alice\r\n\r\n").await;
    assert_eq!(client.response_to("HEAD").await.status, 429);
    assert_eq!(client.get("x-api-key: bob\r\n").await.status, 200, "the response to HEAD had no body");
    let metrics = sidecar.metrics();
    let decisions =
        "sluice_decisions_total{policy_namespace=\"shop\",policy=\"checkout\",limit=\"per-client\",outcome=";
    assert_eq!(metric(&metrics, &format!("{decisions}\"admitted\"")), 4);
    assert_eq!(metric(&metrics, &format!("{decisions}\"denied\"")), 2);
    assert!(!metrics.contains("alice"));
}

#[tokio::test]
async fn a_denied_request_with_a_body_leaves_the_connection_usable() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 0, "")])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for _ in 0..3 {
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n").await;
        client.send(vec![b'x'; 100_000]).await;
        assert_eq!(client.response().await.status, 429);
    }
    client.send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n").await;
    let denied = client.response().await;
    assert_eq!((denied.status, denied.header("connection")), (429, "close"), "no 100 before the 429");
    client.closed().await;
    assert_eq!(application.count(), 0);
}

#[tokio::test]
async fn no_retry_after_is_sent_when_waiting_does_not_help() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("never", 0, "")])]);
    let denied = get(sidecar.addresses()[0], "x-api-key: a\r\n").await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, ""));
    assert!(denied.body.contains("Waiting does not help"), "{}", denied.body);
}

#[tokio::test]
async fn a_request_denied_by_one_policy_is_not_charged_by_another() {
    let application = Application::start().await;
    let wide = prepare(&policy_json("wide", "Allow", &[limit("l", 10, "")]));
    let narrow = prepare(&policy_json("narrow", "Allow", &[limit("l", 1, "")]));
    let sidecar = sidecar_with(application.address, &[wide.clone(), narrow]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let first = client.get("x-api-key: a\r\n").await;
    assert_eq!(first.header("ratelimit"), "\"wide/l\";r=9;t=60, \"narrow/l\";r=0;t=60");
    assert_eq!(first.header("x-ratelimit-limit"), "1", "the tightest limit");
    for _ in 0..3 {
        let denied = client.get("x-api-key: a\r\n").await;
        assert_eq!(denied.status, 429);
        assert_eq!(denied.json()["violated-policies"], serde_json::json!(["narrow/l"]));
    }
    publish(&sidecar, &StoreChoice::Memory, &[wide]);
    assert_eq!(client.get("x-api-key: a\r\n").await.header("x-ratelimit-remaining"), "8");
}

#[tokio::test]
async fn several_rates_of_one_limit_have_different_names() {
    let application = Application::start().await;
    let rates = r#"[{"requests":5,"periodMillis":1500,"algorithm":{"slidingWindowCounter":{"subWindows":1,"bound":"Estimate"}}},
        {"requests":9,"periodMillis":3600000,"algorithm":{"fixedWindow":"Clock"}}]"#;
    let json = policy_json("checkout", "Allow", &[limit("l", 1, "")]);
    let (before, after) = json.split_once(r#""base":["#).unwrap();
    let json = format!("{before}\"base\":{rates}{}", after.split_once(']').unwrap().1);
    let sidecar = sidecar_with(application.address, &[prepare(&json)]);
    let response = get(sidecar.addresses()[0], "").await;
    assert_eq!(response.header("ratelimit-policy"), "\"l/1s500ms\";q=5, \"l/1h\";q=9;w=3600");
}

#[tokio::test]
async fn a_shadow_limit_denies_nothing_and_enforced_limits_still_count() {
    let application = Application::start().await;
    let limits = [limit("real", 3, ""), limit("shadow", 1, r#","mode":"Shadow""#)];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let mut statuses = Vec::new();
    for _ in 0..5 {
        let response = client.get("x-api-key: a\r\n").await;
        assert!(!response.header("ratelimit").contains("shadow"));
        statuses.push(response.status);
    }
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    let metrics = sidecar.metrics();
    let of = |limit: &str, outcome: &str| {
        let name = format!(
            "sluice_decisions_total{{policy_namespace=\"shop\",policy=\"checkout\",limit=\"{limit}\",outcome=\"{outcome}\"}}"
        );
        metric(&metrics, &name)
    };
    assert_eq!((of("real", "admitted"), of("real", "denied")), (3, 2));
    assert_eq!((of("shadow", "admitted"), of("shadow", "shadow_denied")), (1, 4));
}

#[tokio::test]
async fn on_store_failure_decides_without_a_store_and_the_response_names_the_fault() {
    let application = Application::start().await;
    let (sidecar, _) = sidecar(application.address);
    let address = sidecar.addresses()[0];
    let with = |on_failure| prepare(&policy_json("checkout", on_failure, &[limit("l", 1, "")]));
    publish(&sidecar, &StoreChoice::Unconfigured, &[with("Allow")]);
    for _ in 0..3 {
        let response = get(address, "x-api-key: a\r\n").await;
        assert_eq!((response.status, response.header("x-sluice-store-failure")), (200, "unconfigured"));
        assert_eq!(response.header("ratelimit"), "");
    }
    publish(&sidecar, &StoreChoice::Unconfigured, &[with("Deny")]);
    let response = get(address, "x-api-key: a\r\n").await;
    assert_eq!((response.status, response.header("x-sluice-store-failure")), (429, "unconfigured"));
    assert_eq!(response.header("retry-after"), "1");
    assert!(response.json()["detail"].as_str().unwrap().contains("cannot be checked"));
    let name = |outcome| {
        format!(
            "sluice_fallback_total{{policy_namespace=\"shop\",policy=\"checkout\",limit=\"l\",outcome=\"{outcome}\"}}"
        )
    };
    assert_eq!(metric(&sidecar.metrics(), &name("admitted")), 3);
    assert_eq!(metric(&sidecar.metrics(), &name("denied")), 1);
    publish(&sidecar, &StoreChoice::Memory, &[with("Deny")]);
    assert_eq!(get(address, "x-api-key: a\r\n").await.status, 200);
}

#[tokio::test]
async fn the_response_names_an_unreachable_store() {
    let application = Application::start().await;
    let (sidecar, _) = sidecar(application.address);
    // A free port, without a listener.
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let choice = redis_at(&format!("redis://{gone}"));
    publish(&sidecar, &choice, &[prepare(&policy_json("checkout", "Deny", &[limit("l", 1, "")]))]);
    let response = get(sidecar.addresses()[0], "x-api-key: a\r\n").await;
    assert_eq!((response.status, response.header("x-sluice-store-failure")), (429, "unreachable"));
    assert_eq!(metric(&sidecar.metrics(), "sluice_store_circuit_open"), 1);
}

#[tokio::test]
async fn a_request_without_its_key_never_reaches_another_clients_counter() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 1, "")])]);
    let address = sidecar.addresses()[0];
    let long = format!("x-api-key: {}\r\n", "k".repeat(20_000));
    let unusual: [&[u8]; 6] = [
        b"",
        b"x-api-key: \xff\xfe\x80\r\n",
        long.as_bytes(),
        b"x-api-key: alice\xc3\r\n",
        b"x-api-key:  alice \t\r\n",
        b"x-api-key: Alice\r\n",
    ];
    let mut statuses = Vec::new();
    for headers in unusual {
        let mut client = Client::connect(address).await;
        client.send(b"GET / HTTP/1.1\r\nhost: a\r\n").await;
        client.send(headers).await;
        client.send(b"\r\n").await;
        statuses.push(client.response().await.status);
    }
    assert_eq!(statuses, [200; 6], "six clients, one request each");
    assert_eq!(
        get(address, "x-api-key: alice\r\n").await.status,
        429,
        "white space around a value is ignored"
    );
    assert_eq!(get(address, "x-api-key:\r\n").await.status, 429, "an empty key counts as a missing one");
    let twice = get(address, "x-api-key: bob\r\nx-api-key: carol\r\n").await;
    assert_eq!(twice.status, 429, "and so do two keys");
    assert_eq!(get(address, "x-api-key: bob\r\n").await.status, 200);
}

#[tokio::test]
async fn a_denial_of_a_request_without_a_key_does_not_repeat_its_headers() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 5, r#","onMissing":"Deny""#)])]);
    let response = get(sidecar.addresses()[0], "x-api-key: s3cret\r\nx-api-key: s3cret2\r\n").await;
    assert_eq!((response.status, response.header("retry-after")), (429, ""));
    assert!(
        response.body.contains("identify their client") && !response.body.contains("s3cret"),
        "{}",
        response.body
    );
    assert_eq!(application.count(), 0);
}

#[tokio::test]
async fn a_new_snapshot_keeps_counters_and_connections() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 2, "")])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    assert_eq!(client.get("x-api-key: a\r\n").await.header("x-ratelimit-remaining"), "1");
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limit("l", 4, "")])]);
    assert_eq!(client.get("x-api-key: a\r\n").await.header("x-ratelimit-remaining"), "2");
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limit("l", 1, "")])]);
    assert_eq!(client.get("x-api-key: a\r\n").await.status, 429);
    publish(&sidecar, &StoreChoice::Memory, &[]);
    let free = client.get("x-api-key: a\r\n").await;
    assert_eq!((free.status, free.header("ratelimit")), (200, ""));
}

#[tokio::test]
async fn policies_that_do_not_fit_together_are_nacked_and_the_others_apply() {
    let application = Application::start().await;
    let (sidecar, _) = sidecar(application.address);
    let many = |name: &str, count: usize| {
        let limits: Vec<_> = (0..count).map(|n| limit(&format!("{name}-{n}"), 100, "")).collect();
        ("uid-".to_owned() + name, prepare(&policy_json(name, "Allow", &limits)))
    };
    let nacked = sidecar.publisher().publish(
        &StoreChoices::only(StoreChoice::Memory),
        &[many("a", 30), many("b", 3), many("c", 2), many("a", 1)],
    );
    let names: Vec<_> = nacked.iter().map(|(uid, reason)| (uid.as_str(), reason.0.as_str())).collect();
    assert_eq!(names.len(), 2);
    assert!(names[0].0 == "uid-b" && names[0].1.contains("more than 32 limits"), "{names:?}");
    assert!(names[1].0 == "uid-a", "{names:?}");
    let response = get(sidecar.addresses()[0], "").await;
    assert_eq!(response.header("ratelimit").split(", ").count(), 32);
}

#[tokio::test]
async fn a_denied_grpc_call_gets_its_status_in_the_headers() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 0, "")])]);
    let address = sidecar.addresses()[0];
    for content_type in ["application/grpc", "Application/grpc+proto", "application/grpc; charset=utf-8"] {
        let response = grpc_call(address, content_type).await;
        let header = |name| response.headers()[name].to_str().unwrap();
        assert_eq!((response.status().as_u16(), header("grpc-status")), (200, "8"), "{content_type}");
        assert!(header("grpc-message").starts_with("Limit l admits 0 requests per minute."));
        assert_eq!(header("content-type"), "application/grpc");
        assert!(http_body::Body::is_end_stream(response.body()));
    }
}

/// A gRPC status has the HTTP status 200, so a client that only says that it speaks gRPC could pretend success.
#[tokio::test]
async fn only_a_post_over_http_2_with_the_content_type_of_grpc_gets_a_grpc_status() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 0, "")])]);
    let address = sidecar.addresses()[0];
    let mut client = Client::connect(address).await;
    for method in ["POST", "GET"] {
        let head = format!("{method} /s/M HTTP/1.1\r\nhost: a\r\ncontent-type: application/grpc\r\n\r\n");
        client.send(&head).await;
        assert_eq!(client.response().await.status, 429);
    }
    for content_type in ["application/grpc-web", "application/grpcx", "text/application/grpc", ""] {
        assert_eq!(grpc_call(address, content_type).await.status(), 429, "{content_type}");
    }
    let (mut sender, _) = http2(address).await;
    let get = http::Request::get("http://a/s/M").header("content-type", "application/grpc");
    let response = sender.send_request(get.body(Default::default()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 429);
}

/// Returns a policy with one limit of 0 requests, for what matches.
fn deny_all(matches: &str, ambiguous_paths: &str) -> std::sync::Arc<sluice_config::PreparedPolicy> {
    prepare(&format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Deny","consistency":"Strict",
        "ambiguousPaths":"{ambiguous_paths}","limits":[{{"name":"l","mode":"Enforce","matches":[{matches}],
        "onMissing":"Shared","kind":{{"rates":{{"base":[{{"requests":0,"periodMillis":60000,
        "algorithm":{{"fixedWindow":"Clock"}}}}]}}}}}}]}}"#
    ))
}

#[tokio::test]
async fn a_host_is_limited_over_http_1_and_http_2_and_a_request_that_names_two_is_refused() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[deny_all(r#"{"hosts":["shop.example"]}"#, "Match")]);
    let address = sidecar.addresses()[0];
    let mut client = Client::connect(address).await;
    for (target, host, status) in [
        ("/", "shop.example", 429),
        ("/", "SHOP.example.:80", 429),
        ("/", "other.example", 200),
        // The target decides (RFC 9112, 3.2.2).
        ("http://shop.example/", "other.example", 429),
        ("http://other.example/", "shop.example", 200),
    ] {
        client.send(&format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n")).await;
        assert_eq!(client.response().await.status, status, "{target} {host}");
    }
    let (mut sender, _) = http2(address).await;
    for (authority, hosts, status) in [
        ("shop.example", &[][..], 429),
        ("Shop.Example:8080", &[], 429),
        ("other.example", &[], 200),
        ("shop.example", &["shop.example"], 429),
        ("other.example", &["shop.example"], 400),
        ("shop.example", &["other.example"], 400),
        ("other.example", &["other.example", "shop.example"], 400),
        ("x@shop.example", &[], 400),
    ] {
        let mut request = http::Request::get(format!("http://{authority}/"));
        for host in hosts {
            request = request.header("host", *host);
        }
        let response = sender.send_request(request.body(Default::default()).unwrap()).await.unwrap();
        assert_eq!(response.status(), status, "{authority} {hosts:?}");
    }
}

#[tokio::test]
async fn a_limit_on_get_counts_head_too() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[deny_all(r#"{"methods":["GET"]}"#, "Match")]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.response_to("HEAD").await.status, 429);
}

#[tokio::test]
async fn a_policy_may_refuse_paths_that_applications_understand_in_different_ways() {
    let application = Application::start().await;
    let matches = r#"{"path":{"exact":"/limited"}}"#;
    let sidecar = sidecar_with(application.address, &[deny_all(matches, "Reject")]);
    for (path, status) in [
        ("/a%2fb", 400),
        ("/a/../b", 400),
        ("/a\\b", 400),
        ("/a%5Cb", 400),
        ("/a/%2E%2e/limited", 400),
        ("/Limited/", 429),
        ("/a/b", 200),
        ("/a//b", 200),
    ] {
        let mut client = Client::connect(sidecar.addresses()[0]).await;
        client.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        let response = client.response().await;
        assert_eq!(response.status, status, "{path}: {}", response.body);
    }
}
