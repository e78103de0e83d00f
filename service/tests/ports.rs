//! The ports of callers: both speak HTTP and gRPC, answer in the form of their caller, and leave room to others.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use sluice_service::ConnectionAge;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tonic::transport::Channel;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::support::checks::{Checked, send};
use crate::support::{Caller, of, question, words};

fn user(name: &str) -> Value {
    json!({"policy": "shop/checkout", "limit": "per-customer", "key": [name]})
}

/// Connects from an address of this machine.
async fn connect(source: Ipv4Addr, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    socket.connect(address).await.unwrap()
}

/// Reads an answer of HTTP/1 with a length. Returns its head.
async fn head_of(stream: &mut TcpStream) -> String {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).await.unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap().parse().unwrap();
    stream.read_exact(&mut vec![0; length]).await.unwrap();
    head
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ports_speak_http_and_grpc() {
    let running = Checked::start(|_| {}).await;
    for (n, address) in [running.service.grpc(), running.address()].into_iter().enumerate() {
        let body = user("alice").to_string();
        let (status, _, answer) = send(address, "/v1/check", &body, "application/json").await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((status, &answer["limits"][0]["remaining"]), (200, &json!(4 - n)));
        let mut caller = Caller::to(address).await;
        let answer = caller.ask(question("nothing", &[of(&[("user", "a")])])).await.unwrap();
        assert_eq!(words(&answer), "ok: ok");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_there_is_not_is_said_in_the_form_of_the_caller() {
    let running = Checked::start(|_| {}).await;
    for address in [running.service.grpc(), running.address()] {
        let (status, head, body) = send(address, "/v2/check", "{}", "application/json").await;
        assert_eq!(status, 404, "{body}");
        assert!(head.to_ascii_lowercase().contains("application/problem+json"), "{head}");
        let channel = Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.unwrap();
        let codec = ProstCodec::<(), ()>::default();
        let path = "/envoy.service.ratelimit.v4.RateLimitService/ShouldRateLimit".parse().unwrap();
        let refused = grpc.unary(Request::new(()), path, codec).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
        assert!(refused.message().contains("envoy.service.ratelimit.v3"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_in_json_are_not_for_web_pages() {
    let running = Checked::start(|_| {}).await;
    let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}"#;
    for (header, status) in [
        ("accept: */*", "200"),
        ("sec-fetch-site: none", "200"),
        ("sec-fetch-site: cross-site", "403"),
        ("sec-fetch-site: same-origin", "403"),
        ("origin: https://evil.example", "403"),
        ("origin: null", "403"),
    ] {
        let mut stream = TcpStream::connect(running.address()).await.unwrap();
        let head = format!(
            "POST /json HTTP/1.1\r\nhost: a\r\n{header}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + body).as_bytes()).await.unwrap();
        let answer = head_of(&mut stream).await;
        assert!(answer.starts_with(&format!("http/1.1 {status} ")), "{header}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_connection_is_announced_before_it_comes() {
    let age = ConnectionAge { max: Some(Duration::from_secs(3)), grace: None };
    let running = Checked::start(|options| options.age = age).await;
    let mut stream = TcpStream::connect(running.address()).await.unwrap();
    loop {
        stream.write_all(b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        if head_of(&mut stream).await.contains("\r\nconnection: close\r\n") {
            break;
        }
    }
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0, "and it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn long_bodies_and_heads_of_one_peer_leave_room_for_those_of_another() {
    let running = Checked::start(|_| {}).await;
    let (flood, other) = (Ipv4Addr::new(127, 9, 1, 1), Ipv4Addr::new(127, 9, 1, 2));
    let address = running.address();
    let mut held = Vec::new();
    for _ in 0..64 {
        let mut stream = connect(flood, address).await;
        let head = "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 1048576\r\n\r\n";
        // Its connection may have ended for the others.
        let _ = stream.write_all(head.as_bytes()).await;
        let _ = stream.write_all(&vec![b' '; 1_000_000]).await;
        held.push(stream);
    }
    let body = format!("{}{}", user("alice"), " ".repeat(1_000_000));
    let mut stream = connect(other, address).await;
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.unwrap();
    let answer = head_of(&mut stream).await;
    assert!(answer.starts_with("http/1.1 200 "), "{answer}");
    let metrics = running.service.metrics();
    let ended = metrics
        .lines()
        .find(|line| line.starts_with("sluice_port_connections_ended_total{reason=\"memory\"}"));
    assert!(ended.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_of_one_peer_keep_no_other_out() {
    let running = Checked::start(|options| options.max_connections = 100).await;
    let (flood, other) = (Ipv4Addr::new(127, 9, 2, 1), Ipv4Addr::new(127, 9, 2, 2));
    for address in [running.service.grpc(), running.address()] {
        let mut idle = Vec::new();
        for n in 0..300 {
            let mut stream = connect(flood, address).await;
            // With preface and SETTINGS, it has spoken.
            let begun =
                if n % 2 == 0 { &b""[..] } else { b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0" };
            let _ = stream.write_all(begun).await;
            idle.push(stream);
        }
        for _ in 0..50 {
            let mut stream = connect(other, address).await;
            stream.write_all(b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let answer = head_of(&mut stream).await;
            assert!(answer.starts_with("http/1.1 200 "), "{answer}");
            idle.push(stream);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_bodies_of_many_checks_are_all_decided() {
    let running = Checked::start(|_| {}).await;
    let body = json!({"checks": vec![json!({"policy": "shop/llm", "limit": "per-user", "key": ["u"], "peek": true}); 100]});
    let answers = join_all((0..60).map(|_| running.post("/v1/check", &body))).await;
    for (status, answer) in answers {
        let results = answer["results"].as_array().unwrap();
        assert_eq!((status, results.len()), (200, 100));
        assert!(
            results.iter().all(|one| one["allowed"] == true && one.get("storeFailure").is_none()),
            "{answer}"
        );
    }
    let metrics = running.service.metrics();
    assert!(metrics.contains("sluice_questions_late_total 0\n"), "{metrics}");
    assert!(metrics.contains("sluice_questions_waiting 0\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_the_drain_delay_are_answered() {
    let running = Checked::start(|options| options.admin = Some("127.0.0.1:0".parse().unwrap())).await;
    let (grpc, http, admin) = (running.service.grpc(), running.address(), running.service.pages()[0]);
    let draining = tokio::spawn(running.service.shutdown(Duration::from_secs(600), Duration::ZERO));
    // Until the pod has left its endpoints.
    loop {
        let mut stream = TcpStream::connect(admin).await.unwrap();
        stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        if head_of(&mut stream).await.starts_with("http/1.1 503 ") {
            break;
        }
    }
    for _ in 0..20 {
        for address in [grpc, http] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            assert!(head_of(&mut stream).await.starts_with("http/1.1 200 "));
            let mut caller = Caller::to(address).await;
            let answer = caller.ask(question("nothing", &[of(&[("user", "a")])])).await.unwrap();
            assert_eq!(words(&answer), "ok: ok");
        }
    }
    draining.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_nobody_reads_are_bounded_together() {
    let running = Checked::start(|_| {}).await;
    let mut held = Vec::new();
    // A window of zero, and as many questions as there may be at a time.
    for _ in 0..40 {
        let (client, connection) = h2::client::Builder::new()
            .initial_window_size(0)
            .handshake::<_, bytes::Bytes>(connect(Ipv4Addr::new(127, 9, 3, 1), running.address()).await)
            .await
            .unwrap();
        let connection = tokio::spawn(connection);
        let Ok(mut client) = client.ready().await else { continue };
        for _ in 0..100 {
            let request = http::Request::get("http://a/v1/openapi.json").body(()).unwrap();
            let Ok((response, _)) = client.send_request(request, true) else { break };
            held.push(tokio::spawn(response));
            match client.ready().await {
                Ok(ready) => client = ready,
                Err(_) => break,
            }
        }
        drop(connection);
    }
    let mut responses = Vec::new();
    for response in held {
        responses.extend(response.await.unwrap());
    }
    let refused = responses.iter().filter(|response| response.status() == 503).count();
    let metrics = running.service.metrics();
    assert!(
        refused > 0 || !metrics.contains("sluice_port_connections_ended_total{reason=\"memory\"} 0\n"),
        "{metrics}"
    );
    let mut stream = connect(Ipv4Addr::new(127, 9, 3, 2), running.address()).await;
    stream.write_all(b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    assert!(head_of(&mut stream).await.starts_with("http/1.1 200 "), "another peer reads its answer");
}
