//! Callers and clients of pages that are early, slow, silent or hostile.

use std::time::Duration;

use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_service::messages::RateLimitRequest;
use sluice_service::run::Loader;
use sluice_service::{Options, Service};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;

use crate::support::{Caller, RULES, configs, of, question, start, start_with, words};

const SHOP: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: {unit: minute, requests_per_unit: 3}
";

/// Sends a request of HTTP/1, and returns the answer.
async fn http(address: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    http(address, &format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).await
}

async fn post(address: std::net::SocketAddr, body: &str) -> String {
    let length = body.len();
    let head =
        format!("POST /json HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    http(address, &(head + body)).await
}

fn options() -> Options {
    let mut options = Options::new("127.0.0.1:0".parse().unwrap());
    options.http = Some("127.0.0.1:0".parse().unwrap());
    options.admin = Some("127.0.0.1:0".parse().unwrap());
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_wait_for_the_first_rules_and_the_service_is_not_healthy_until_then() {
    let service = Service::start(options()).await.unwrap();
    let [http, admin] = service.pages() else { panic!("{:?}", service.pages()) };
    assert!(get(*http, "/healthcheck").await.starts_with("HTTP/1.1 500 "));
    assert!(get(*admin, "/readyz").await.starts_with("HTTP/1.1 503 "));
    assert!(get(*admin, "/livez").await.starts_with("HTTP/1.1 200 "));
    let url = format!("http://{}", service.grpc());
    let asked = tokio::spawn(async move {
        let channel = tonic::transport::Channel::from_shared(url).unwrap().connect().await.unwrap();
        Caller::over(channel).words("shop", &[of(&[("user", "a")])]).await
    });
    let publication = service.publication(StoreChoices::only(StoreChoice::Memory));
    let loader = Loader { publication, compile: RULES, replicas: 1 };
    loader.load(&configs(&["domain: shop\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 0}, value: x}]"])).unwrap();
    assert_eq!(asked.await.unwrap(), "ok: ok");
    assert!(get(*http, "/healthcheck").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_told_so_answers_with_an_error_until_there_are_rules() {
    let mut options = options();
    options.answers_without_rules = true;
    options.is_unhealthy_without_domains = true;
    let service = Service::start(options).await.unwrap();
    let url = format!("http://{}", service.grpc());
    let channel = tonic::transport::Channel::from_shared(url).unwrap().connect().await.unwrap();
    let refused = Caller::over(channel).ask(question("shop", &[of(&[("user", "a")])])).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Unknown, "no rate limit configuration loaded"));
    let loader = Loader {
        publication: service.publication(StoreChoices::only(StoreChoice::Memory)),
        compile: RULES,
        replicas: 1,
    };
    loader.load(&[]).unwrap();
    assert!(get(service.pages()[0], "/healthcheck").await.starts_with("HTTP/1.1 500 "), "no domain");
    loader.load(&configs(&[SHOP])).unwrap();
    assert!(get(service.pages()[0], "/healthcheck").await.starts_with("HTTP/1.1 200 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_read_as_protobuf_writes_it() {
    let running = start_with(
        |all| {
            all.http = options().http;
            all.rls.metadata = true;
        },
        RULES,
        &[SHOP],
    )
    .await;
    let http = running.service.pages()[0];
    let answer = post(
        http,
        r#"{"domain": "shop", "hitsAddend": "1", "descriptors": [{"entries": [{"key": "user", "value": "a"}], "limit": null, "isNegativeHits": null}]}"#,
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains(r#""limitRemaining":2"#), "{answer}");
    assert!(
        answer.contains(r#""dynamicMetadata":{"#) && answer.contains(r#""quotaModeEnabled":false"#),
        "{answer}"
    );
    assert!(answer.contains(r#""hitsAddend":1,"#) || answer.contains(r#""hitsAddend":1}"#), "{answer}");
    let own = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "k"}], "limit": {"requestsPerUnit": 7, "unit": 3}}]}"#;
    assert!(post(http, own).await.contains(r#""limitRemaining":6"#));
    for (question, expected) in [
        (
            r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "k"}], "limit": {"unit": "AEON"}}]}"#,
            "descriptors[0].limit.unit: unrecognized enum value 'AEON'",
        ),
        (r#"{"domain": "shop", "hitsAddend": 5000000000}"#, "hitsAddend: out of range"),
        (r#"{"domain": "shop", "descriptor": []}"#, "unrecognized field name 'descriptor'"),
        (r#"{"domain": "shop"} {}"#, "trailing characters"),
        ("{", "EOF while parsing"),
    ] {
        let answer = post(http, question).await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains(expected), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_of_calls_may_be_as_large_as_gateways_accept_them() {
    let running = start(SHOP).await;
    let url = format!("http://{}", running.service.grpc());
    let channel = tonic::transport::Channel::from_shared(url)
        .unwrap()
        .http2_max_header_list_size(1 << 20)
        .connect()
        .await
        .unwrap();
    let mut grpc = tonic::client::Grpc::new(channel);
    for kilobytes in [17, 60, 200] {
        grpc.ready().await.unwrap();
        let mut request = tonic::Request::new(question("shop", &[of(&[("user", "a")])]));
        request
            .metadata_mut()
            .insert("tracestate", format!("a={}", "x".repeat(kilobytes << 10)).parse().unwrap());
        let path = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit".parse().unwrap();
        let codec =
            tonic_prost::ProstCodec::<RateLimitRequest, sluice_service::messages::RateLimitResponse>::default(
            );
        let answer = grpc.unary(request, path, codec).await;
        assert!(answer.is_ok(), "{kilobytes} KiB: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn absurd_questions_have_an_error_and_leave_the_connection() {
    let running = start(SHOP).await;
    let mut caller = Caller::connect(&running).await;
    let many = vec![of(&[("user", "a")]); 1025];
    let refused = caller.ask(question("shop", &many)).await.unwrap_err();
    assert_eq!(refused.message(), "a question has at most 1024 descriptors");
    let long = "x".repeat(5 << 20);
    let refused = caller.ask(question("shop", &[of(&[("user", &long)])])).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange, "{refused}");
    let long = "x".repeat(3 << 20);
    assert_eq!(caller.words("shop", &[of(&[("user", &long)])]).await, "ok: ok 2/3");
    assert_eq!(caller.words("shop", &[of(&[("user", "a")])]).await, "ok: ok 2/3", "nothing was charged");
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_silent_connections_leave_room_for_gateways() {
    let running = start_with(|options| options.max_connections = 4, RULES, &[SHOP]).await;
    let address = running.service.grpc();
    for garbage in [
        &b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"[..],
        &[0; 64],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n garbage after it",
    ] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer));
        assert!(ended.await.is_ok(), "the connection ends: {garbage:?}");
    }
    // As many as there are places. Their time to begin is over after a while.
    let mut silent = Vec::new();
    for bytes in [&b""[..], b"PRI", b"P", b"PRI * HTTP/2.0\r\n"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        silent.push(stream);
    }
    let mut caller = Caller::connect(&running).await;
    let asked = caller.ask_within(question("shop", &[of(&[("user", "a")])]), Duration::from_secs(120));
    assert_eq!(words(&asked.await.unwrap()), "ok: ok 2/3");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_clients_of_a_page_make_room_for_a_probe() {
    let running = start_with(|all| all.admin = options().admin, RULES, &[SHOP]).await;
    let admin = running.service.pages()[0];
    let mut idle = Vec::new();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(admin).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\n").await.unwrap();
        idle.push(stream);
    }
    assert!(get(admin, "/livez").await.starts_with("HTTP/1.1 200 "));
}
