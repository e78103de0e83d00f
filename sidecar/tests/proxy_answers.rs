//! Responses to denied requests, as `onLimit` describes them.

use std::net::SocketAddr;

use http::uri::PathAndQuery;
use serde_json::json;
use sluice_config::store_access::StoreChoice;
use tonic_types::StatusExt as _;

use crate::support::*;

/// Time of the sidecars' clock, which does not move, in seconds since the Unix epoch.
const NOW: u64 = 1_700_000_000 / 60 * 60;

/// Starts a sidecar with a limit of one request per minute and client.
async fn start(reject: &str) -> (Application, sluice_sidecar::Sidecar) {
    let application = Application::start().await;
    let limits = [limit("per-client", 1, &format!(",\"onLimit\":{{\"reject\":{reject}}}"))];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    (application, sidecar)
}

/// Returns the response to the second request of a client, which is denied.
async fn denied(sidecar: &sluice_sidecar::Sidecar) -> HttpResponse {
    let address = sidecar.addresses()[0];
    assert_eq!(get(address, "x-api-key: alice\r\n").await.status, 200);
    get(address, "x-api-key: alice\r\n").await
}

#[tokio::test]
async fn status_and_headers_are_those_of_the_limit() {
    let reject = r#"{"statusCode":503,"headers":[{"name":"access-control-allow-origin","value":"*"},{"name":"x-docs","value":"/limits"}]}"#;
    let (_application, sidecar) = start(reject).await;
    let denied = denied(&sidecar).await;
    assert_eq!(denied.status, 503);
    assert_eq!(denied.header("access-control-allow-origin"), "*");
    assert_eq!((denied.header("x-docs"), denied.header("cache-control")), ("/limits", "no-store"));
    assert_eq!((denied.json()["status"].as_u64(), denied.header("retry-after")), (Some(503), "60"));
}

#[tokio::test]
async fn an_envelope_has_code_message_and_time_of_renewal() {
    for (format, renewal) in
        [("DeltaSeconds", 60), ("EpochSeconds", NOW + 60), ("EpochMillis", (NOW + 60) * 1000)]
    {
        let reject = format!(r#"{{"body":{{"envelope":{{"code":"slow_down"}}}},"resetFormat":"{format}"}}"#);
        let (_application, sidecar) = start(&reject).await;
        let address = sidecar.addresses()[0];
        let admitted = get(address, "x-api-key: bob\r\n").await;
        assert_eq!(admitted.header("x-ratelimit-reset"), renewal.to_string());
        assert_eq!(admitted.header("ratelimit"), "\"per-client\";r=0;t=60", "always in seconds until then");
        let denied = denied(&sidecar).await;
        assert_eq!(denied.header("content-type"), "application/json");
        assert_eq!(denied.header("x-ratelimit-reset"), renewal.to_string());
        let message = "Limit per-client admits 1 request per minute. Try again in 1 minute.";
        let context = json!({"renewal": renewal});
        let expected = json!({"error": {"code": "slow_down", "message": message, "context": context}});
        assert_eq!(denied.json(), expected);
    }
}

#[tokio::test]
async fn a_template_is_filled_in_and_its_values_are_escaped() {
    let text = "{\"m\":\"${message}\",\"l\":\"${limit}\",\"p\":\"${namespace}/${policy}\",\"n\":${requests},\
                \"s\":${period},\"w\":${retryAfter},\"at\":${renewal}}";
    let body = json!({"template": {"contentType": "application/json", "text": text}});
    let reject = json!({"body": body, "resetFormat": "EpochSeconds"}).to_string();
    let application = Application::start().await;
    let named = limit("a\\\"<b", 1, &format!(",\"onLimit\":{{\"reject\":{reject}}}"));
    let sidecar = sidecar_with(application.address, &[policy(&[named])]);
    let denied = denied(&sidecar).await;
    let expected = json!({
        "m": "Limit a\"<b admits 1 request per minute. Try again in 1 minute.", "l": "a\"<b", "p": "shop/checkout",
        "n": 1, "s": 60, "w": 60, "at": NOW + 60,
    });
    assert_eq!((denied.header("content-type"), denied.json()), ("application/json", expected));

    let body = json!({"template": {"contentType": "text/html", "text": "<b>${limit}</b>"}});
    let named = limit("a\\\"<b", 0, &format!(",\"onLimit\":{}", json!({"reject": {"body": body}})));
    let sidecar = sidecar_with(application.address, &[policy(&[named])]);
    assert_eq!(get(sidecar.addresses()[0], "").await.body, "<b>a&quot;&lt;b</b>");
}

#[tokio::test]
async fn jitter_only_prolongs_the_wait() {
    let (_application, sidecar) = start(r#"{"jitterPercent":50}"#).await;
    let mut waits = std::collections::BTreeSet::new();
    assert_eq!(get(sidecar.addresses()[0], "x-api-key: alice\r\n").await.status, 200);
    for _ in 0..60 {
        let denied = get(sidecar.addresses()[0], "x-api-key: alice\r\n").await;
        waits.insert(denied.header("retry-after").parse::<u64>().unwrap());
    }
    assert!(*waits.first().unwrap() >= 60 && *waits.last().unwrap() <= 90 && waits.len() > 3, "{waits:?}");
}

#[tokio::test]
async fn of_several_limits_that_deny_the_one_with_the_longest_wait_describes_the_response() {
    let application = Application::start().await;
    let short = limit("short", 0, r#","onLimit":{"reject":{"statusCode":503}}"#)
        .replace("\"requests\":0", "\"requests\":1");
    let long = limit("long", 1, r#","onLimit":{"reject":{"statusCode":403}}"#).replace("60000", "3600000");
    let sidecar = sidecar_with(application.address, &[policy(&[short, long])]);
    let denied = denied(&sidecar).await;
    assert_eq!((denied.status, &denied.json()["violated-policies"]), (403, &json!(["short", "long"])));
}

#[tokio::test]
async fn limits_on_concurrent_requests_answer_in_their_own_form() {
    let application = Application::start().await;
    let reject = |status: &str| {
        let body = r#""body":{"envelope":{"code":"busy"}},"resetFormat":"EpochSeconds""#;
        format!(
            r#""onLimit":{{"reject":{{{status}"headers":[{{"name":"x-docs","value":"/busy"}}],{body}}}}}"#
        )
    };
    let slots = r#"{"slots":{"max":1,"leaseMillis":30000,"abandonedForMillis":30000}}"#;
    let adaptive =
        r#"{"adaptive":{"aimd":{"minimum":1,"maximum":1,"timeout":"1s"},"abandonedForMillis":30000}}"#;
    for (kind, status, expected) in [
        (slots, "", 429),
        (slots, "\"statusCode\":420,", 420),
        (adaptive, "", 503),
        (adaptive, "\"statusCode\":529,", 529),
    ] {
        let limit = format!(
            r#"{{"name":"c","mode":"Enforce","onMissing":"Shared",{},"kind":{kind}}}"#,
            reject(status)
        );
        let sidecar = sidecar_with(application.address, &[policy(&[limit])]);
        let address = sidecar.addresses()[0];
        // The application echoes the body, which does not end.
        let mut held = Client::connect(address).await;
        held.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n").await;
        assert_eq!(held.line().await, "HTTP/1.1 200 OK");
        let denied = get(address, "").await;
        assert_eq!(
            (denied.status, denied.header("x-docs"), denied.header("retry-after")),
            (expected, "/busy", "1")
        );
        let error = &denied.json()["error"];
        assert_eq!(error["code"], "busy", "{error}");
        assert!(error["context"]["renewal"].as_u64().is_some_and(|at| at > NOW), "{error}");
    }
}

#[tokio::test]
async fn a_limit_that_denies_while_its_store_does_not_answer_does_so_in_its_own_form() {
    let application = Application::start().await;
    let reject = r#","onLimit":{"reject":{"statusCode":503,"body":{"template":{"contentType":"text/plain","text":"${limit}: ${message}"}}}}"#;
    let json = policy_json("checkout", "Deny", &[limit("l", 1, reject)]);
    let (sidecar, _) = sidecar(application.address);
    publish(&sidecar, &StoreChoice::Unconfigured, &[prepare(&json)]);
    let denied = get(sidecar.addresses()[0], "").await;
    assert_eq!((denied.status, denied.header("retry-after")), (503, "1"));
    let expected = "l: The rate limits cannot be checked now (unconfigured), and a policy rejects requests in that case.";
    assert_eq!(denied.body, expected);
}

#[tokio::test]
async fn a_policy_chooses_the_headers_that_report_its_limits() {
    let application = Application::start().await;
    for (chosen, rate_limit, x_rate_limit) in [
        ("", true, true),
        ("\"RateLimit\"", true, false),
        ("\"XRateLimit\"", false, true),
        ("", false, false),
    ] {
        let mut json = policy_json("checkout", "Allow", &[limit("l", 1, "")]);
        if !(rate_limit && x_rate_limit) {
            json = json.replace("\"limits\"", &format!("\"statusHeaders\":[{chosen}],\"limits\""));
        }
        let sidecar = sidecar_with(application.address, &[prepare(&json)]);
        let denied = denied(&sidecar).await;
        let has = |name: &str| !denied.header(name).is_empty();
        assert_eq!((has("ratelimit"), has("ratelimit-policy")), (rate_limit, rate_limit));
        assert_eq!((has("x-ratelimit-limit"), has("x-ratelimit-reset")), (x_rate_limit, x_rate_limit));
        assert_eq!(denied.header("retry-after"), "60", "in any case");
        assert_eq!(has("x-ratelimit-retry-after"), x_rate_limit);
        // Where headers keep the numbers from clients, bodies do too.
        let rule =
            if rate_limit || x_rate_limit { "admits 1 request per minute" } else { "denies this request" };
        assert_eq!(denied.json()["detail"], format!("Limit l {rule}. Try again in 1 minute."));
    }
}

/// Returns status, X-RateLimit-Limit, -Remaining, -Reset, RateLimit and Retry-After of a response.
fn numbers(response: &HttpResponse) -> (u16, [String; 5]) {
    let names =
        ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit", "retry-after"];
    (response.status, names.map(|name| response.header(name).to_owned()))
}

fn expect(response: &HttpResponse, status: u16, expected: [&str; 5]) {
    assert_eq!(numbers(response), (status, expected.map(str::to_owned)));
}

#[tokio::test]
async fn a_denial_describes_the_limit_that_denied_for_the_longest_time() {
    let application = Application::start().await;
    let with = |limits: &[String]| sidecar_with(application.address, &[policy(limits)]);
    let rate = |name: &str, requests: u64, millis: u64, rest: &str| {
        limit(name, requests, rest).replace("60000", &millis.to_string())
    };
    // The first has least left, and the second one denies.
    let sidecar = with(&[rate("few", 3, 60_000, ""), rate("one", 1, 3_600_000, "")]);
    let denied = denied(&sidecar).await;
    let left = (3600 - NOW % 3600).to_string();
    let both = format!(r#""few";r=2;t=60, "one";r=0;t={left}"#);
    expect(&denied, 429, ["1", "0", &left, &both, &left]);
    // Two deny: Retry-After is that of the longer one, and so is what the headers describe.
    let sidecar = with(&[rate("short", 1, 60_000, ""), rate("long", 1, 3_600_000, "")]);
    assert_eq!(self::denied(&sidecar).await.header("x-ratelimit-reset"), left);
}

#[tokio::test]
async fn during_a_block_the_longer_wait_of_another_limit_is_described() {
    let application = Application::start().await;
    let blocking = limit("blocking", 1, r#","onLimit":{"block":{"after":1,"within":"1m","for":"2m"}}"#);
    let hour = limit("hour", 1, "").replace("60000", "3600000");
    let sidecar = sidecar_with(application.address, &[policy(&[blocking, hour])]);
    let denied = denied(&sidecar).await;
    let left = (3600 - NOW % 3600).to_string();
    assert_eq!((denied.header("retry-after"), denied.header("x-ratelimit-reset")), (&*left, &*left));
}

#[tokio::test]
async fn nothing_remains_to_a_request_that_comes_too_early() {
    let application = Application::start().await;
    let spaced = limit("l", 99, "")
        .replace(r#"{"fixedWindow":"Clock"}"#, r#"{"slidingWindowLog":{"minIntervalMillis":5000}}"#);
    assert!(spaced.contains("minInterval"), "{spaced}");
    let sidecar = sidecar_with(application.address, &[policy(&[spaced])]);
    let denied = denied(&sidecar).await;
    expect(&denied, 429, ["99", "0", "5", r#""l";r=0;t=5"#, "5"]);
}

#[tokio::test]
async fn a_limit_that_admits_nothing_names_no_time_to_come_again() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 0, "")])]);
    let denied = get(sidecar.addresses()[0], "x-api-key: alice\r\n").await;
    expect(&denied, 429, ["0", "0", "", r#""l";r=0"#, ""]);
}

async fn options(address: SocketAddr, headers: &str) -> u16 {
    let mut client = Client::connect(address).await;
    client.send(format!("OPTIONS / HTTP/1.1\r\nhost: a\r\n{headers}\r\n")).await;
    client.response().await.status
}

#[tokio::test]
async fn a_preflight_is_not_counted_by_rates_that_do_not_name_its_method() {
    let application = Application::start().await;
    let preflight = "origin: https://a.example\r\naccess-control-request-method: POST\r\n";
    let status = async |limit: String, headers: &str| {
        let sidecar = sidecar_with(application.address, &[policy(&[limit])]);
        options(sidecar.addresses()[0], headers).await
    };
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 1, "")])]);
    let address = sidecar.addresses()[0];
    assert_eq!(options(address, "").await, 200, "uses up the limit");
    let with_body = format!("{preflight}content-length: 0\r\ntransfer-encoding: chunked\r\n");
    for other in ["", "origin: https://a.example\r\n", "access-control-request-method: POST\r\n"] {
        assert_eq!(options(address, other).await, 429, "{other}");
    }
    assert_eq!(options(address, preflight).await, 200);
    assert_eq!(options(address, &with_body.replace("content-length: 0\r\n", "")).await, 429, "it has a body");

    // Whoever names the method, or bounds more than a rate, means all requests.
    let named = r#","matches":[{"methods":["OPTIONS"]}]"#;
    assert_eq!(status(limit("l", 0, named), preflight).await, 429);
    assert_eq!(status(limit("l", 0, ""), preflight).await, 429);
    let tiers = r#"}],"tiers":[{"name":"t","matches":[{}],"allowance":"deny"}]}}"#;
    let denied = limit("l", 1, "").replace("}]}}", tiers);
    assert_eq!(status(denied, preflight).await, 429);
}

/// Sends a call with the client of tonic, and returns its status.
async fn call(address: SocketAddr) -> tonic::Status {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let mut client = tonic::client::Grpc::new(endpoint.connect().await.expect("the sidecar listens"));
    client.ready().await.expect("the connection is ready");
    let path = PathAndQuery::from_static("/shop.Checkout/Pay");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    client.unary(tonic::Request::new(()), path, codec).await.expect_err("the call is denied")
}

#[tokio::test]
async fn a_grpc_client_reads_when_to_try_again_and_which_limit_denied_the_call() {
    let application = Application::start().await;
    let without_key =
        |requests| limit("payments", requests, "").replace("\"key\":[{\"header\":\"x-api-key\"}],", "");
    let sidecar = sidecar_with(application.address, &[policy(&[without_key(1)])]);
    let address = sidecar.addresses()[0];
    assert_eq!(get(address, "").await.status, 200, "uses up the limit");
    let status = call(address).await;
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    let message = "Limit payments admits 1 request per minute. Try again in 1 minute.";
    assert_eq!(status.message(), message);
    let details = status.get_error_details();
    let retry = details.retry_info().and_then(|info| info.retry_delay);
    assert_eq!(retry, Some(std::time::Duration::from_secs(60)));
    let violations = &details.quota_failure().unwrap().violations;
    assert_eq!(violations.len(), 1);
    assert_eq!(violations[0].subject, "payments");
    assert_eq!(violations[0].description, "Limit payments admits 1 request per minute.");

    let sidecar = sidecar_with(application.address, &[policy(&[without_key(0)])]);
    let details = call(sidecar.addresses()[0]).await.get_error_details();
    assert!(details.retry_info().is_none(), "waiting does not help");
    assert_eq!(details.quota_failure().unwrap().violations.len(), 1);
}
