//! Charges that the outcome of a request corrects: by its status, by a cost in its response, and by the length of its body.

mod application;

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Full};
use sluice_config::PreparedPolicy;
use sluice_sidecar::Sidecar;
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::support::*;

/// Returns a policy of one limit of 100 in a long time. `of_rates` holds further members of its rates, with a leading comma.
fn policy_of(mode: &str, of_rates: &str) -> Arc<PreparedPolicy> {
    let rate = r#"{"requests":100,"periodMillis":31622400000,"algorithm":{"fixedWindow":"Clock"}}"#;
    let limit = format!(
        r#"{{"name":"l","mode":"{mode}","onMissing":"Shared","kind":{{"rates":{{"base":[{rate}]{of_rates}}}}}}}"#
    );
    prepare(&policy_json("p", "Deny", &[limit]))
}

/// A sidecar with one limit, in front of the application.
struct Setup {
    sidecar: Sidecar,
    /// The charge for a request before its response.
    charge: u64,
}

impl Setup {
    async fn new(of_rates: &str, charge: u64) -> Self {
        Self { sidecar: sidecar_with(application::start().await, &[policy_of("Enforce", of_rates)]), charge }
    }

    /// Sends a request and returns the response.
    async fn send(&self, headers: &str) -> HttpResponse {
        get(self.sidecar.addresses()[0], headers).await
    }

    /// Waits until so much of the limit is used. A request with a status that does not count shows it.
    async fn used(&self, expected: u64) {
        let begun = Instant::now();
        loop {
            let seen = self.send("answer-status: 404\r\n").await;
            let left: u64 = seen
                .header("ratelimit")
                .split(";r=")
                .nth(1)
                .unwrap()
                .split(';')
                .next()
                .unwrap()
                .parse()
                .unwrap();
            // The request itself is charged before it is refunded.
            if left + self.charge + expected == 100 {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{left} left, and {expected} should be used");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn settlements(&self, outcome: &str) -> u64 {
        metric(
            &self.sidecar.metrics(),
            &format!(
                r#"sluice_settlements_total{{policy_namespace="shop",policy="p",limit="l",outcome="{outcome}"}}"#
            ),
        )
    }
}

const IN_FLIGHT: &str = "sluice_requests_in_flight";
const OK: &str = r#","countWhen":{"statusCodes":["2xx"]}"#;

/// Returns the members of rates with a cost in the response. Only requests with a successful status count.
fn cost(source: &str, reserve: u64) -> String {
    format!(r#","cost":{{"response":{{{source},"reserve":{reserve}}}}}{OK}"#)
}

#[tokio::test]
async fn only_the_outcomes_that_a_limit_names_count() {
    let setup = Setup::new(r#","countWhen":{"statusCodes":["401","5xx"]}"#, 1).await;
    for status in [200, 301, 403, 404, 429] {
        assert_eq!(setup.send(&format!("answer-status: {status}\r\n")).await.status, status);
    }
    setup.used(0).await;
    for status in [401, 500, 503] {
        setup.send(&format!("answer-status: {status}\r\n")).await;
    }
    setup.used(3).await;
    assert_eq!(setup.settlements("counted"), 3);
}

#[tokio::test]
async fn exactly_as_many_failures_pass_as_the_limit_admits_and_successes_are_free() {
    let setup = Setup::new(r#","countWhen":{"statusCodes":["401"]}"#, 1).await;
    for _ in 0..99 {
        assert_eq!(setup.send("answer-status: 401\r\n").await.status, 401);
    }
    for _ in 0..50 {
        // A success is charged until it is refunded.
        until(async || setup.send("").await.status == 200).await;
    }
    until(async || setup.send("answer-status: 401\r\n").await.status == 401).await;
    for _ in 0..3 {
        assert_eq!(setup.send("").await.status, 429);
        assert_eq!(setup.send("answer-status: 401\r\n").await.status, 429);
    }
    assert_eq!(setup.settlements("counted"), 100);
}

async fn until(mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_client_that_leaves_does_not_evade_the_count() {
    let setup = Setup::new(r#","countWhen":{"statusCodes":["401"]}"#, 1).await;
    for n in 1..=4 {
        let mut client = Client::connect(setup.sidecar.addresses()[0]).await;
        client.send("GET / HTTP/1.1\r\nhost: a\r\nanswer-never: 1\r\n\r\n").await;
        let admitted =
            r#"sluice_decisions_total{policy_namespace="shop",policy="p",limit="l",outcome="admitted"}"#;
        until(async || metric(&setup.sidecar.metrics(), admitted) == n).await;
        drop(client);
    }
    setup.used(4).await;
}

#[tokio::test]
async fn an_application_that_cannot_be_reached_is_a_502() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let of_rates = r#","countWhen":{"statusCodes":["401"]}"#;
    let sidecar = sidecar_with(free, &[policy_of("Enforce", of_rates)]);
    for _ in 0..150 {
        until(async || get(sidecar.addresses()[0], "").await.status == 502).await;
    }
    let of_rates = r#","countWhen":{"statusCodes":["502"]}"#;
    let sidecar = sidecar_with(free, &[policy_of("Enforce", of_rates)]);
    for n in 0..101 {
        assert_eq!(get(sidecar.addresses()[0], "").await.status, if n < 100 { 502 } else { 429 });
    }
}

#[tokio::test]
async fn a_header_of_the_response_is_the_cost() {
    let setup = Setup::new(&cost(r#""header":"x-cost""#, 10), 10).await;
    setup.send("answer-x-cost: 25\r\n").await;
    setup.used(25).await;
    setup.send("answer-x-cost: 0\r\n").await;
    setup.used(25).await;
    assert_eq!(setup.settlements("missing"), 0);
    setup.send("").await;
    setup.send("answer-x-cost: lots\r\n").await;
    setup.used(45).await;
    assert_eq!(setup.settlements("missing"), 2);
    // More than is left: a debt.
    setup.send("answer-x-cost: 300\r\n").await;
    until(async || setup.send("answer-status: 404\r\n").await.status == 429).await;
}

#[tokio::test]
async fn a_field_of_json_is_the_cost_also_in_a_stream() {
    let setup = Setup::new(&cost(r#""jsonField":"usage.total_tokens""#, 10), 10).await;
    let response =
        setup.send("answer-body: {\"usage\":{\"total_to|kens\":2|0}}\r\naccept-encoding: gzip\r\n").await;
    assert_eq!(response.body, r#"{"usage":{"total_tokens":20}}"#);
    setup.used(20).await;
    let events = "answer-content-type: text/event-stream\r\nanswer-body: data: {\"usage\":null}";
    // Line breaks cannot stand in a header. One line with a carriage return neither; so the events have one line each.
    setup.send(&format!("{events}|\r\n")).await;
    setup.used(30).await;
    setup.send("answer-content-encoding: gzip\r\nanswer-body: {\"usage\":{\"total_tokens\":5}}\r\n").await;
    setup.used(40).await;
    assert_eq!(setup.settlements("missing"), 2);
}

#[tokio::test]
async fn the_application_is_asked_for_json_that_can_be_read() {
    let application = Application::start().await;
    let of_rates = r#","cost":{"response":{"jsonField":"n","reserve":1}}"#;
    let sidecar = sidecar_with(application.address, &[policy_of("Enforce", of_rates)]);
    get(sidecar.addresses()[0], "accept-encoding: gzip, br\r\naccept-encoding: zstd\r\n").await;
    let seen = application.last();
    let encodings: Vec<_> = seen.headers.get_all("accept-encoding").iter().collect();
    assert_eq!(encodings, [&HeaderValue::from_static("identity")]);
}

#[tokio::test]
async fn the_length_of_bodies_is_the_cost() {
    let setup = Setup::new(&cost(r#""bodyBytes":{}"#, 10), 10).await;
    setup.send("answer-body: 0123456789|01234\r\n").await;
    setup.used(15).await;
    setup.send("").await;
    setup.used(15).await;
}

#[tokio::test]
async fn a_response_that_ends_early_costs_its_reserve_or_what_was_seen() {
    let setup = Setup::new(&cost(r#""bodyBytes":{}"#, 10), 10).await;
    for (body, used) in [("01", 10), ("0123456789|0123456789", 30)] {
        let mut client = Client::connect(setup.sidecar.addresses()[0]).await;
        client
            .send(format!("GET / HTTP/1.1\r\nhost: a\r\nanswer-stall: 1\r\nanswer-body: {body}\r\n\r\n"))
            .await;
        while !client.line().await.is_empty() {}
        for _ in body.split('|') {
            client.line().await;
            client.line().await;
        }
        drop(client);
        setup.used(used).await;
    }
}

#[tokio::test]
async fn a_trailer_of_grpc_is_the_cost_and_its_status_the_outcome() {
    let of_rates = r#","cost":{"response":{"grpcTrailer":"x-cost","reserve":5}},"countWhen":{"grpcStatuses":["OK","UNAUTHENTICATED"]}"#;
    let setup = Setup::new(of_rates, 5).await;
    let (mut sender, _) = http2(setup.sidecar.addresses()[0]).await;
    let mut call = async |trailers: &[(&'static str, &'static str)]| {
        let mut call = Request::post("http://a/s/M").header("answer-content-type", "application/grpc");
        for (name, value) in trailers {
            call = call.header(*name, *value);
        }
        let response = sender.send_request(call.body(Full::default()).unwrap()).await.unwrap();
        response.into_body().collect().await.unwrap();
    };
    call(&[("answer-trailer-grpc-status", "0"), ("answer-trailer-x-cost", "20"), ("answer-body", "abc")])
        .await;
    setup.used(20).await;
    call(&[("answer-trailer-grpc-status", "5"), ("answer-trailer-x-cost", "20")]).await;
    setup.used(20).await;
    call(&[("answer-trailer-grpc-status", "16")]).await;
    setup.used(25).await;
    // A call without a message has its status in the head.
    call(&[("answer-grpc-status", "16"), ("answer-x-cost", "7")]).await;
    setup.used(32).await;
    call(&[("answer-grpc-status", "5")]).await;
    setup.used(32).await;
    // Without a status the outcome is unknown.
    call(&[("answer-body", "abc")]).await;
    setup.used(37).await;
}

#[tokio::test]
async fn a_request_costs_the_length_of_its_body() {
    let setup = Setup::new(&format!(r#","cost":{{"request":{{"bodyBytes":{{}}}}}}{OK}"#), 0).await;
    let post = async |head: &str, body: &str| {
        let mut client = Client::connect(setup.sidecar.addresses()[0]).await;
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{head}\r\n{body}")).await;
        client.response().await
    };
    assert_eq!(post("content-length: 30\r\n", &"a".repeat(30)).await.status, 200);
    setup.used(30).await;
    assert_eq!(
        post("transfer-encoding: chunked\r\n", "a\r\n0123456789\r\n5\r\n01234\r\n0\r\n\r\n").await.status,
        200
    );
    setup.used(45).await;
    assert_eq!(post("content-length: 56\r\n", &"a".repeat(56)).await.status, 429);
    assert_eq!(post("content-length: 30\r\nanswer-status: 404\r\n", &"a".repeat(30)).await.status, 404);
    assert_eq!(
        post("transfer-encoding: chunked\r\nanswer-status: 404\r\n", "5\r\n01234\r\n0\r\n\r\n").await.status,
        404
    );
    setup.used(45).await;
    // A client that leaves pays for what it sent.
    let mut client = Client::connect(setup.sidecar.addresses()[0]).await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\n01234\r\n").await;
    until(async || metric(&setup.sidecar.metrics(), IN_FLIGHT) > 0).await;
    drop(client);
    setup.used(50).await;
    // Whatever length it has promised.
    let mut client = Client::connect(setup.sidecar.addresses()[0]).await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 40\r\n\r\n01234").await;
    setup.used(90).await;
    drop(client);
    setup.used(55).await;
}

#[tokio::test]
async fn a_limit_in_shadow_mode_settles_too() {
    let of_rates = r#","countWhen":{"statusCodes":["401"]}"#;
    let sidecar = sidecar_with(application::start().await, &[policy_of("Shadow", of_rates)]);
    for n in 0..300 {
        let status = if n % 3 == 0 { "answer-status: 401\r\n" } else { "" };
        get(sidecar.addresses()[0], status).await;
    }
    let of = |family: &str, outcome: &str| {
        metric(
            &sidecar.metrics(),
            &format!(
                r#"sluice_{family}_total{{policy_namespace="shop",policy="p",limit="l",outcome="{outcome}"}}"#
            ),
        )
    };
    until(async || {
        of("settlements", "counted") + of("settlements", "uncounted") == of("decisions", "admitted")
    })
    .await;
    assert_eq!(of("decisions", "admitted") + of("decisions", "shadow_denied"), 300);
    assert!(of("settlements", "counted") <= 100);
}
