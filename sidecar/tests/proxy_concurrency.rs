//! Concurrency limits in the proxy, with counters in memory: which requests are admitted, and when a slot is
//! free again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sluice_config::store_access::StoreChoice;
use sluice_sidecar::Sidecar;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::support::*;

/// Returns a limit in JSON: `max` concurrent requests for each `x-api-key`.
fn concurrent(name: &str, max: u64, mode: &str) -> String {
    format!(
        r#"{{"name":"{name}","mode":"{mode}","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],
        "kind":{{"slots":{{"max":{max},"leaseMillis":30000,"abandonedForMillis":30000}}}}}}"#
    )
}

/// Returns an adaptive limit in JSON.
fn adaptive(initial: u32, mode: &str) -> String {
    format!(
        r#"{{"name":"a","mode":"{mode}","onMissing":"Shared","kind":{{"adaptive":{{
        "gradient2":{{"minimum":1,"initial":{initial},"maximum":9}},"abandonedForMillis":30000}}}}}}"#
    )
}

/// An application that holds each request until it is notified, and then responds according to the path:
/// `/body` sends its head before it waits, `/break` closes the connection, `/upgrade` changes the protocol
/// until either side closes.
struct HoldingApplication {
    address: SocketAddr,
    /// Number of requests that it holds.
    held: Arc<AtomicUsize>,
    finish: Arc<Notify>,
}

impl HoldingApplication {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (held, finish) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let this = Self { address, held: held.clone(), finish: finish.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (held, finish) = (held.clone(), finish.clone());
                tokio::spawn(async move {
                    let mut stream = BufReader::new(stream);
                    loop {
                        let mut path = String::new();
                        loop {
                            let mut line = String::new();
                            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                                return;
                            }
                            if path.is_empty() {
                                path = line.split(' ').nth(1).unwrap().to_owned();
                            } else if line == "\r\n" {
                                break;
                            }
                        }
                        let head: &[u8] = match path.as_str() {
                            "/body" => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n",
                            "/upgrade" => {
                                b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n"
                            }
                            _ => b"",
                        };
                        stream.get_mut().write_all(head).await.unwrap();
                        held.fetch_add(1, Ordering::Relaxed);
                        let mut byte = [0; 1];
                        tokio::select! {
                            () = finish.notified() => {}
                            _ = stream.read(&mut byte) => {}
                        }
                        held.fetch_sub(1, Ordering::Relaxed);
                        let rest: &[u8] = match path.as_str() {
                            "/body" => b"ok",
                            "/break" | "/upgrade" => return,
                            _ => b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
                        };
                        if stream.get_mut().write_all(rest).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        this
    }

    /// Finishes the requests that it holds.
    async fn finish_all(&self) {
        let finish = async {
            while self.held.load(Ordering::Relaxed) > 0 {
                self.finish.notify_waiters();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), finish).await.expect("a request is never finished");
    }

    /// Waits until it holds this number of requests.
    async fn until_held(&self, expected: usize) {
        let look = async {
            while self.held.load(Ordering::Relaxed) != expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), look)
            .await
            .expect("the application never held this number");
    }
}

/// Sends a request without reading its response.
async fn send_request(sidecar: &Sidecar, path: &str) -> Client {
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let upgrade = if path == "/upgrade" { "connection: upgrade\r\nupgrade: x\r\n" } else { "" };
    client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{upgrade}\r\n")).await;
    client
}

/// Returns the value of a metric. `rest` is the value of the label `limit` and all that follows it.
fn value(sidecar: &Sidecar, name: &str, rest: &str) -> u64 {
    metric(
        &sidecar.metrics(),
        &format!("sluice_{name}{{policy_namespace=\"shop\",policy=\"checkout\",limit={rest}}}"),
    )
}

/// Waits until no slot is held.
async fn until_free(sidecar: &Sidecar) {
    let look = async {
        while value(sidecar, "concurrency_held", "\"l\"") > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), look).await.expect("a slot is never returned");
}

/// Sends requests until one is admitted and held by the application: slots return to the store a moment after
/// a request has ended.
async fn until_admitted(sidecar: &Sidecar, application: &HoldingApplication, path: &str) -> Client {
    let look = async {
        let decided =
            |outcome: &str| value(sidecar, "decisions_total", &format!("\"l\",outcome=\"{outcome}\""));
        loop {
            let (admitted, denied) = (decided("admitted"), decided("denied"));
            let client = send_request(sidecar, path).await;
            while denied == decided("denied") {
                if decided("admitted") > admitted {
                    return client;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let client = tokio::time::timeout(Duration::from_secs(60), look).await.expect("no slot becomes free");
    application.until_held(1).await;
    client
}

#[tokio::test]
async fn a_slot_is_free_again_however_a_request_ends() {
    let application = HoldingApplication::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[concurrent("l", 1, "Enforce")])]);
    for path in ["/", "/body", "/break"] {
        for client_leaves in [false, true] {
            let mut client = until_admitted(&sidecar, &application, path).await;
            let denied = get(sidecar.addresses()[0], "").await;
            assert_eq!((denied.status, denied.header("retry-after")), (429, "1"), "{path}: {}", denied.body);
            assert_eq!(denied.header("ratelimit-policy"), "\"l\";q=1;qu=\"concurrent-requests\"");
            assert_eq!(denied.header("ratelimit"), "\"l\";r=0");
            assert_eq!(denied.header("x-ratelimit-reset"), "");
            assert!(denied.body.contains("Limit l admits 1 concurrent request."), "{}", denied.body);
            if client_leaves {
                drop(client);
                application.finish_all().await;
            } else {
                // The sidecar repeats a request whose connection broke, so each attempt is finished.
                let finish = async {
                    loop {
                        application.finish.notify_waiters();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                tokio::select! {
                    response = client.response() => {
                        assert_eq!(response.status, if path == "/break" { 502 } else { 200 });
                    }
                    () = finish => {}
                }
            }
            until_free(&sidecar).await;
            application.until_held(0).await;
        }
    }
    let other = tokio::spawn(get(sidecar.addresses()[0], "x-api-key: b\r\n"));
    application.until_held(1).await;
    let concurrent = until_admitted_beside(&sidecar, &application).await;
    application.finish.notify_waiters();
    assert_eq!(other.await.unwrap().status, 200, "another client has slots of its own");
    drop(concurrent);
}

/// Sends a request that is admitted while the application holds another one.
async fn until_admitted_beside(sidecar: &Sidecar, application: &HoldingApplication) -> Client {
    let client = send_request(sidecar, "/").await;
    application.until_held(2).await;
    client
}

#[tokio::test]
async fn an_upgraded_connection_holds_its_slot_until_it_ends() {
    let application = HoldingApplication::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[concurrent("l", 1, "Enforce")])]);
    let mut client = until_admitted(&sidecar, &application, "/upgrade").await;
    assert_eq!(client.line().await, "HTTP/1.1 101 Switching Protocols");
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 429);
    assert_eq!(value(&sidecar, "concurrency_held", "\"l\""), 1);
    drop(client);
    until_free(&sidecar).await;
    drop(until_admitted(&sidecar, &application, "/").await);
}

#[tokio::test]
async fn a_request_denied_by_a_rate_takes_no_slot_and_one_without_a_slot_no_quota() {
    let application = HoldingApplication::start().await;
    let limits = [limit("rate", 2, ""), concurrent("l", 1, "Enforce")];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let first = until_admitted(&sidecar, &application, "/").await;
    for _ in 0..3 {
        let denied = get(sidecar.addresses()[0], "").await;
        assert_eq!(
            (denied.status, denied.json()["violated-policies"].to_string().as_str()),
            (429, "[\"l\"]")
        );
    }
    drop(first);
    application.finish_all().await;
    until_free(&sidecar).await;
    drop(until_admitted(&sidecar, &application, "/").await);
    application.finish_all().await;
    until_free(&sidecar).await;
    application.until_held(0).await;
    for _ in 0..3 {
        let denied = get(sidecar.addresses()[0], "").await;
        assert_eq!(denied.json()["violated-policies"].to_string(), "[\"rate\"]", "two of two are used");
    }
    assert_eq!(value(&sidecar, "concurrency_held", "\"l\""), 0);
}

#[tokio::test]
async fn a_shadow_limit_counts_and_denies_nothing() {
    let application = HoldingApplication::start().await;
    let limits = [concurrent("l", 1, "Shadow"), adaptive(1, "Shadow")];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let mut clients = Vec::new();
    for n in 1..=3 {
        clients.push(send_request(&sidecar, "/").await);
        application.until_held(n).await;
    }
    for limit in ["\"l\"", "\"a\""] {
        let outcome = |outcome: &str| format!("{limit},outcome=\"{outcome}\"");
        assert_eq!(value(&sidecar, "decisions_total", &outcome("shadow_denied")), 2);
        assert_eq!(value(&sidecar, "decisions_total", &outcome("admitted")), 1);
    }
    assert_eq!(value(&sidecar, "concurrency_held", "\"l\""), 1);
    application.finish.notify_waiters();
    for client in &mut clients {
        assert_eq!(client.response().await.status, 200);
    }
    until_free(&sidecar).await;
}

#[tokio::test]
async fn a_shed_request_is_charged_nothing() {
    let application = HoldingApplication::start().await;
    let limits = [limit("rate", 3, ""), adaptive(2, "Enforce")];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let mut clients = Vec::new();
    for n in 1..=2 {
        clients.push(send_request(&sidecar, "/").await);
        application.until_held(n).await;
    }
    for _ in 0..5 {
        let shed = get(sidecar.addresses()[0], "").await;
        assert_eq!((shed.status, shed.header("retry-after")), (503, "1"), "{}", shed.body);
        assert!(shed.body.contains("temporary-reduced-capacity"), "{}", shed.body);
        let grpc = grpc_call(sidecar.addresses()[0], "application/grpc").await;
        assert_eq!((grpc.status().as_u16(), &grpc.headers()["grpc-status"]), (200, &"14".parse().unwrap()));
    }
    assert_eq!(value(&sidecar, "decisions_total", "\"a\",outcome=\"shed\""), 10);
    assert_eq!(value(&sidecar, "adaptive_in_flight", "\"a\""), 2);
    assert_eq!(value(&sidecar, "adaptive_limit", "\"a\""), 2);
    application.finish.notify_waiters();
    for client in &mut clients {
        assert_eq!(client.response().await.header("x-ratelimit-limit"), "3");
    }
    let last = finish_one(&sidecar, &application).await;
    assert_eq!((last.status, last.header("x-ratelimit-remaining")), (200, "0"));
    let denied = get(sidecar.addresses()[0], "").await;
    assert_eq!(denied.status, 429, "three were charged");
    assert_eq!(value(&sidecar, "adaptive_in_flight", "\"a\""), 0, "a denial returns the permit");
}

/// Sends a request and lets the application respond to it.
async fn finish_one(sidecar: &Sidecar, application: &HoldingApplication) -> HttpResponse {
    let response = tokio::spawn(get(sidecar.addresses()[0], ""));
    application.until_held(1).await;
    application.finish.notify_one();
    response.await.unwrap()
}

#[tokio::test]
async fn an_edit_keeps_the_counts_of_requests_in_flight() {
    let application = HoldingApplication::start().await;
    let sidecar = sidecar_with(
        application.address,
        &[policy(&[concurrent("l", 1, "Enforce"), adaptive(9, "Enforce")])],
    );
    let first = until_admitted(&sidecar, &application, "/").await;
    publish(
        &sidecar,
        &StoreChoice::Memory,
        &[policy(&[concurrent("l", 2, "Enforce"), adaptive(2, "Enforce")])],
    );
    let second = until_admitted_beside(&sidecar, &application).await;
    assert_eq!(value(&sidecar, "concurrency_held", "\"l\""), 2);
    assert_eq!(value(&sidecar, "adaptive_in_flight", "\"a\""), 2);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 503, "the permit comes first");
    drop((first, second));
    application.finish_all().await;
    until_free(&sidecar).await;
    assert_eq!(value(&sidecar, "adaptive_in_flight", "\"a\""), 0);
}

#[tokio::test]
async fn a_request_rejected_by_a_full_delay_queue_returns_its_slot_once() {
    const WAITING: u64 = 1000;
    let application = Application::start().await;
    let leaky = r#"{"name":"leaky","mode":"Enforce","onMissing":"Shared","kind":{"rates":{"base":[{"requests":1,
        "periodMillis":1000,"algorithm":{"leakyBucket":{"maxWaitMillis":3600000}}}]}}}"#;
    let concurrent = concurrent("l", WAITING + 1, "Enforce");
    let sidecar = sidecar_with(application.address, &[policy(&[leaky.to_owned(), concurrent.clone()])]);
    let address = sidecar.addresses()[0];
    assert_eq!(get(address, "").await.status, 200);
    until_free(&sidecar).await;
    let request = || http::Request::get("http://a/").body(http_body_util::Full::default()).unwrap();
    let mut senders = Vec::new();
    for _ in 0..5 {
        senders.push(http2(address).await.0);
    }
    let requests: Vec<_> =
        (0..WAITING as usize).map(|n| tokio::spawn(senders[n % 5].clone().send_request(request()))).collect();
    let all_wait = async {
        while value(&sidecar, "concurrency_held", "\"l\"") < WAITING {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_wait).await.expect("not all of them are delayed");
    let queue_full = async {
        for _ in 0..5 {
            // Until the slot of the request before is returned, none is free.
            while !get(address, "").await.body.contains("are already waiting in its delay queue") {}
        }
    };
    tokio::time::timeout(Duration::from_secs(60), queue_full).await.expect("the queue is never full");
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[concurrent])]);
    let last = async {
        loop {
            let response = get(address, "").await;
            if response.status == 200 {
                return response;
            }
        }
    };
    let last = tokio::time::timeout(Duration::from_secs(60), last).await.expect("no slot becomes free");
    // The delay of some requests may have ended meanwhile, so they no longer hold slots.
    let ended = application.count() as u64 - 2;
    let remaining: u64 = last.header("x-ratelimit-remaining").parse().unwrap();
    assert!(remaining <= ended, "{remaining} slots are free, and {ended} requests have ended");
    requests.iter().for_each(tokio::task::JoinHandle::abort);
}
