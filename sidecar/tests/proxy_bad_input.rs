//! Invalid requests, sent as raw bytes: the proxy refuses them, does not panic, and forwards nothing of them.

use std::time::Duration;

use sluice_sidecar::Sidecar;

use crate::support::*;

/// Sends raw bytes to a new sidecar. Returns the response and the application.
async fn sent(bytes: &[u8]) -> (HttpResponse, Application, &'static str) {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 100, "")])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send(bytes).await;
    let response = client.response().await;
    client.closed().await;
    // The sidecar still serves.
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    (response, application, refusal(&sidecar).await)
}

/// Waits until a request is counted as refused, and returns the reason. What the parser refuses is counted just after its response.
async fn refusal(sidecar: &Sidecar) -> &'static str {
    let counted = async {
        loop {
            let metrics = sidecar.metrics();
            let name = |reason: &str| format!("sluice_refused_requests_total{{reason=\"{reason}\"}}");
            if let Some(reason) = REASONS.iter().find(|reason| metric(&metrics, &name(reason)) > 0) {
                return *reason;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), counted).await.expect("the refusal is counted")
}

/// The reasons for which a request is refused.
const REASONS: [&str; 14] = [
    "length",
    "coding",
    "host",
    "target",
    "path_length",
    "path",
    "limits",
    "connect",
    "body",
    "method",
    "version",
    "header",
    "head_size",
    "malformed",
];

async fn refused(bytes: impl AsRef<[u8]>, status: u16) -> HttpResponse {
    refused_for(bytes, status).await.0
}

/// Returns the response to a request that is refused, and the reason under which it is counted.
async fn refused_for(bytes: impl AsRef<[u8]>, status: u16) -> (HttpResponse, &'static str) {
    let (response, application, reason) = sent(bytes.as_ref()).await;
    assert_eq!(response.status, status, "{response:?}");
    assert_eq!(application.count(), 1, "only the request after it reached the application");
    (response, reason)
}

#[tokio::test]
async fn what_the_parser_refuses_is_counted_by_its_reason() {
    let head = |line: &str, fields: &str| format!("{line}\r\nhost: a\r\n{fields}\r\n");
    let get = "GET / HTTP/1.1";
    for (request, status, expected) in [
        (head("G T / HTTP/1.1", ""), 400, "version"),
        (head("G\u{1}T / HTTP/1.1", ""), 400, "method"),
        (head("GET / HTTP/3.0", ""), 400, "version"),
        (head("GET http://a/<b> HTTP/1.1", ""), 400, "target"),
        (head(get, "x y: 1\r\n"), 400, "header"),
        (head(get, "x: \u{1}\r\n"), 400, "header"),
        (head(get, "content-length: 5, 5\r\n"), 400, "length"),
        (head(get, "content-length: 5\r\ncontent-length: 6\r\n"), 400, "length"),
        (head(get, "transfer-encoding: gzip\r\n"), 400, "coding"),
        (head("POST / HTTP/1.0", "transfer-encoding: chunked\r\n"), 400, "coding"),
        (head(get, &format!("x: {}\r\n", "x".repeat(100_000))), 431, "head_size"),
        (head(get, &"x: y\r\n".repeat(101)), 431, "head_size"),
        (head(&format!("GET /{} HTTP/1.1", "x".repeat(70_000)), ""), 431, "head_size"),
    ] {
        let (_, reason) = refused_for(&request, status).await;
        assert_eq!(reason, expected, "{request:.80}");
    }
}

#[tokio::test]
async fn a_stream_that_h2_resets_as_malformed_is_counted() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let stream = tokio::net::TcpStream::connect(sidecar.addresses()[0]).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    // h2 lets a client send a length that the body contradicts.
    let request = http::Request::post("http://a/").header("content-length", "5").body(()).unwrap();
    let (response, mut body) = sender.send_request(request, false).unwrap();
    body.send_data(bytes::Bytes::from_static(b"much longer than that"), true).unwrap();
    drop(response.await);
    assert_eq!(refusal(&sidecar).await, "malformed");
}

#[tokio::test]
async fn a_content_length_beside_a_transfer_encoding_is_refused_and_ends_the_connection() {
    for headers in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "transfer-encoding: Chunked\r\nx: y\r\ncontent-length: 0\r\n",
    ] {
        let hidden = "0\r\n\r\nGET /hidden HTTP/1.1\r\nhost: a\r\n\r\n";
        let request = format!("POST / HTTP/1.1\r\nhost: a\r\n{headers}\r\n{hidden}");
        let response = refused(request, 400).await;
        assert_eq!(response.header("connection"), "close");
        assert!(response.json()["detail"].as_str().unwrap().contains("ambiguous"));
    }
}

#[tokio::test]
async fn an_ambiguous_request_is_found_after_valid_ones_on_the_same_connection() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let body = "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n";
    let valid = format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    client.send(valid.repeat(3)).await;
    for _ in 0..3 {
        assert_eq!(client.response().await.body, body, "a body is not read as a head");
    }
    client
        .send("POST / HTTP/1.1\r\nhost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await;
    assert_eq!(client.response().await.status, 400);
    client.closed().await;
    assert_eq!(application.count(), 3);
}

#[tokio::test]
async fn contradictory_or_malformed_lengths_are_refused() {
    for length in ["5\r\ncontent-length: 6", "-1", "5x", "5, 5", "99999999999999999999999", "+5"] {
        refused(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\nhello"), 400).await;
    }
}

#[tokio::test]
async fn transfer_codings_other_than_chunked_are_not_implemented() {
    for coding in ["gzip, chunked", "chunked, chunked", "chunked\r\ntransfer-encoding: chunked"] {
        let request = format!("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: {coding}\r\n\r\n0\r\n\r\n");
        refused(request, 501).await;
    }
    refused("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\n", 400).await;
    refused("POST / HTTP/1.0\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400).await;
}

#[tokio::test]
async fn a_request_without_exactly_one_valid_host_is_refused() {
    for hosts in ["", "host: a\r\nhost: a\r\n", "host: a\r\nHOST: b\r\n", "host: a b\r\n", "host: u@a\r\n"] {
        let response = refused(format!("GET / HTTP/1.1\r\n{hosts}\r\n"), 400).await;
        assert!(response.json()["detail"].as_str().unwrap().contains("Host"));
    }
}

#[tokio::test]
async fn tunnels_and_invalid_targets_are_refused() {
    refused("CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n", 501).await;
    for target in ["a:443", "*", "http://u@a/", "a", "?a=b", "ftp://a/x", "ws://a/x", "http://a?x"] {
        refused(format!("GET {target} HTTP/1.1\r\nhost: a\r\n\r\n"), 400).await;
    }
}

#[tokio::test]
async fn oversized_heads_are_refused() {
    let many: String = (0..101).map(|n| format!("x-{n}: y\r\n")).collect();
    refused(format!("GET / HTTP/1.1\r\nhost: a\r\n{many}\r\n"), 431).await;
    let huge = "x".repeat(100_000);
    refused(format!("GET / HTTP/1.1\r\nhost: a\r\nx: {huge}\r\n\r\n"), 431).await;
}

#[tokio::test]
async fn garbage_is_refused() {
    for garbage in [
        "GET / HTTP/3.0\r\nhost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\n bad: fold\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : a\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nx: \u{0}\r\n\r\n",
        "GET /\u{7f} HTTP/1.1\r\nhost: a\r\n\r\n",
        "PRI * HTTP/1.1\r\nhost: a\r\nx y\r\n\r\n",
    ] {
        refused(garbage, 400).await;
    }
}

#[tokio::test]
async fn a_broken_chunk_counts_for_its_own_client_and_is_no_upstream_error() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 3, "")])]);
    let address = sidecar.addresses()[0];
    for broken in
        ["zz\r\nhello\r\n", "5\r\nhelloworld\r\n", "-5\r\n", "5;a\nb\r\nhello\r\n", "ffffffffffffffffff\r\n"]
    {
        let mut client = Client::connect(address).await;
        let head = "POST / HTTP/1.1\r\nhost: a\r\nx-api-key: mallory\r\ntransfer-encoding: chunked\r\n\r\n";
        client.send(format!("{head}{broken}")).await;
        let response = client.response().await;
        // Each counts for the client that sent it, until its limit is reached.
        assert!(response.status == 400 || response.status == 429, "{broken:?}: {response:?}");
        client.closed().await;
    }
    let metrics = sidecar.metrics();
    assert_eq!(metric(&metrics, "sluice_refused_requests_total{reason=\"body\"}"), 3);
    assert_eq!(metric(&metrics, "sluice_upstream_errors_total{reason=\"closed\"}"), 0);
    assert_eq!(get(address, "x-api-key: alice\r\n").await.header("x-ratelimit-remaining"), "2");
}

#[tokio::test]
async fn a_client_that_disconnects_within_a_request_affects_no_other() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let address = sidecar.addresses()[0];
    for part in [
        "",
        "P",
        "PRI * HTTP/2.0",
        "POST / HT",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nhalf",
    ] {
        let mut client = Client::connect(address).await;
        client.send(part).await;
        drop(client);
    }
    assert_eq!(get(address, "").await.status, 200);
}

#[tokio::test]
async fn a_path_that_is_too_long_to_be_compared_is_refused() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 100, "")])]);
    // The query does not count. The more ways there are to read a path, the shorter it has to be.
    for (path, status) in [
        ("/".repeat(8192) + "?" + &"a".repeat(8192), 200),
        ("/".repeat(8193), 414),
        ("/..".repeat(2730), 200),
        ("/..;%2f\\%".repeat(99), 200),
        ("/..;%2f\\%".repeat(100), 414),
    ] {
        let mut client = Client::connect(sidecar.addresses()[0]).await;
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        assert_eq!(client.response().await.status, status);
    }
}
