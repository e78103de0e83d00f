//! The clients in clients that ask, in front of `sluice serve`, of nobody, and of scripted responses.

use serde_json::{Value, json};
use sluice_tests::driver::Driver;
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const POLICY: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  enforcedBy: [Service]
  limits:
    - name: per-customer
      rates: [{requests: 5, per: 1m}]
      key: {parts: [{header: {name: x-customer}}]}
    - name: tokens
      rates: [{requests: 10000, per: 1h}]
      algorithm: {fixedWindow: {}}
      cost: {response: {reserve: 1000, reported: {}}}
      key: {parts: [{header: {name: x-customer}}]}
  concurrency:
    - name: jobs
      max: 2
      key: {parts: [{header: {name: x-customer}}]}
";

/// Asks `sluice serve`, an address without a listener, and a listener that never answers.
async fn asks_sluice(driver: &Driver) {
    let sluice = Sluice::start().await;
    let silence = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let silent = format!("http://{}", silence.local_addr().unwrap());
    let printed = driver.run(&[&sluice.url, &nobody, &silent]).await;
    let expected = [
        "allow true true 4",
        "allow true true 3",
        "allow true true 2",
        "allow true true 1",
        "allow true true 0",
        // It is told to try again.
        "allow false true 0 true",
        // 16 at once, of 1,000 each.
        "reserved 10 ids 10 without 6",
        "settled 10",
        "settled again 0",
        // 10 of 400 leave room for 6 of 1,000.
        "reserved 6",
        // 420 of 1,000.
        "left 9580",
        // What the policy reserves.
        "default 9000",
        "jobs true true false",
        "settled true",
        "job true",
        "problem 404 /policy",
        "problem 422 /key",
        "problem 404 /id",
    ];
    let unanswered = ["nobody true false true", "nobody false false true"].map(|line| [line; 2]).concat();
    assert_eq!(printed, [&expected[..], &unanswered, &unanswered].concat());
}

/// Asks scripted responses, of which each closes its connection.
async fn asks_a_script(driver: &Driver) {
    let limit = json!({"policy": "shop/checkout", "limit": "per-customer", "allowed": true, "remaining": 3});
    let settle = json!({"id": "some", "cost": 400});
    let script = [
        // A settlement is sent until it is answered.
        ("one", settle.clone(), Some((503, json!({"status": 503, "detail": "the store did not answer"})))),
        ("one", settle.clone(), None),
        ("one", settle, Some((200, json!({"settled": true, "limits": []})))),
        // The token is another one by now.
        ("two", json!({"cost": 2}), Some((200, json!({"allowed": true, "limits": [limit]})))),
        // No answer of Sluice.
        ("two", json!({"cost": null}), Some((502, json!("bad gateway")))),
        (
            "two",
            json!({"cost": 7, "reserve": {"expiresAfterSeconds": 600}}),
            Some((401, json!({"status": 401, "detail": "the token has expired"}))),
        ),
    ];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = async {
        for (n, (token, expected, response)) in script.into_iter().enumerate() {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (head, body) = receive(&mut stream).await;
            let path = if n < 3 { "settle" } else { "check" };
            assert!(head.starts_with(&format!("post /prefix/v1/{path} http/1.1\r\n")), "{n}: {head}");
            assert!(head.contains(&format!("\r\nauthorization: bearer {token}\r\n")), "{n}: {head}");
            assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{n}: {head}");
            for (field, value) in expected.as_object().unwrap() {
                assert_eq!(&body[field], value, "{n}: {body}");
            }
            if let Some((status, answer)) = response {
                let answer = answer.to_string();
                // Nothing says that the connection is not kept.
                let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", answer.len());
                stream.write_all((head + &answer).as_bytes()).await.unwrap();
            }
        }
    };
    let arguments = [&*url];
    let (printed, ()) = tokio::join!(driver.run(&arguments), server);
    assert_eq!(printed, ["settled true", "allow true", "allow false", "problem 401 None"]);
}

async fn asks(driver: &Driver) {
    tokio::join!(asks_sluice(driver), asks_a_script(driver));
}

/// Returns the head of a request in lower case, and its body.
async fn receive(stream: &mut TcpStream) -> (String, Value) {
    let mut received = Vec::new();
    loop {
        assert!(stream.read_buf(&mut received).await.unwrap() > 0, "the request is not whole");
        let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { continue };
        if let Ok(body) = serde_json::from_slice(&received[end + 4..]) {
            let head = String::from_utf8(received[..end + 4].to_vec()).unwrap();
            return (head.to_lowercase(), body);
        }
    }
}

/// A running `sluice serve`.
struct Sluice {
    url: String,
    _process: Process,
    _directory: TempDir,
}

impl Sluice {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let policy = directory.path().join("policy.yaml");
        std::fs::write(&policy, POLICY).unwrap();
        let http = free_port();
        let policy = policy.display().to_string();
        let listen = format!("127.0.0.1:{http}");
        let arguments = ["serve", "--policy", &policy, "--http", &listen].map(str::to_owned);
        let ports = ["--grpc=127.0.0.1:0", "--admin=127.0.0.1:0"].map(str::to_owned);
        let log = directory.path().join("log");
        let process =
            Process::start(&binary("sluice"), &[&arguments[..], &ports].concat(), &[], &log, "TERM");
        until("sluice listens", async || TcpStream::connect(&listen).await.ok()).await;
        until("sluice has the policy", async || process.output().contains("policies applied").then_some(()))
            .await;
        Self { url: format!("http://{listen}"), _process: process, _directory: directory }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_in_python_asks() {
    asks(&Driver::python("ask", "ask")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_in_go_asks() {
    asks(&Driver::go("ask", "ask").await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_in_typescript_asks() {
    asks(&Driver::typescript("ask", "ask").await).await;
}
