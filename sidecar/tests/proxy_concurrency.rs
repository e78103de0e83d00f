//! Limits of requests at a time in the proxy, with counters in memory: who is let in, and when a place is free again.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sluice_sidecar::{Sidecar, StoreChoice};
use support::*;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// A limit in JSON: so many at a time for each `x-api-key`.
fn at_a_time(name: &str, max: u64, mode: &str) -> String {
    format!(
        r#"{{"name":"{name}","mode":"{mode}","onMissing":"Shared","key":[{{"header":"x-api-key"}}],
        "rates":[{{"requests":{max},"periodMillis":30000,"algorithm":"concurrency"}}]}}"#
    )
}

fn adaptive(initial: u32, mode: &str) -> String {
    format!(
        r#"{{"name":"a","mode":"{mode}","onMissing":"Shared","rates":[{{"requests":9,"periodMillis":1,"algorithm":
        {{"adaptive":{{"minimum":1,"initial":{initial},"maximum":9,
        "kind":{{"gradient2":{{"tolerancePercent":3,"queuePercent":5}}}}}}}}}}]}}"#
    )
}

/// An application that answers when it is told to, by the path: `/body` sends its head at once, `/break` closes instead,
/// `/upgrade` changes the protocol and goes on until either side closes.
struct Slow {
    address: SocketAddr,
    busy: Arc<AtomicUsize>,
    go: Arc<Notify>,
}

impl Slow {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (busy, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
        let this = Self { address, busy: busy.clone(), go: go.clone() };
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (busy, go) = (busy.clone(), go.clone());
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
                        busy.fetch_add(1, Ordering::Relaxed);
                        let mut gone = [0; 1];
                        tokio::select! {
                            () = go.notified() => {}
                            _ = stream.read(&mut gone) => {}
                        }
                        busy.fetch_sub(1, Ordering::Relaxed);
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

    async fn busy(&self, expected: usize) {
        let look = async {
            while self.busy.load(Ordering::Relaxed) != expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), look).await.expect("so many are at the application");
    }
}

async fn ask(sidecar: &Sidecar, path: &str) -> Client {
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let upgrade = if path == "/upgrade" { "connection: upgrade\r\nupgrade: x\r\n" } else { "" };
    client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{upgrade}\r\n")).await;
    client
}

fn value(sidecar: &Sidecar, name: &str, rest: &str) -> u64 {
    metric(&sidecar.metrics(), &format!("sluice_{name}{{policy=\"shop/checkout\",limit={rest}}}"))
}

/// Until nothing is held.
async fn free(sidecar: &Sidecar) {
    let look = async {
        while value(sidecar, "concurrency_held", "\"l\"") > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), look).await.expect("every place is given back");
}

/// Until a request is let in, and is at the application: what has ended is told to the store a moment later.
async fn let_in(sidecar: &Sidecar, application: &Slow, path: &str) -> Client {
    let look = async {
        let decided =
            |outcome: &str| value(sidecar, "decisions_total", &format!("\"l\",outcome=\"{outcome}\""));
        loop {
            let (admitted, denied) = (decided("admitted"), decided("denied"));
            let client = ask(sidecar, path).await;
            while denied == decided("denied") {
                if decided("admitted") > admitted {
                    return client;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    };
    let client = tokio::time::timeout(Duration::from_secs(60), look).await.expect("a place is free");
    application.busy(1).await;
    client
}

#[tokio::test]
async fn a_place_is_free_again_however_a_request_ends() {
    let application = Slow::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[at_a_time("l", 1, "Enforce")])]);
    for path in ["/", "/body", "/break"] {
        for client_leaves in [false, true] {
            let mut client = let_in(&sidecar, &application, path).await;
            let denied = get(sidecar.addresses()[0], "").await;
            assert_eq!((denied.status, denied.header("retry-after")), (429, "1"), "{path}: {}", denied.body);
            assert_eq!(denied.header("ratelimit-policy"), "\"l\";q=1;qu=\"concurrent-requests\"");
            assert_eq!(denied.header("ratelimit"), "\"l\";r=0");
            assert_eq!(denied.header("x-ratelimit-reset"), "");
            assert!(denied.body.contains("Limit l admits 1 concurrent requests."), "{}", denied.body);
            if client_leaves {
                drop(client);
            } else {
                // What broke off is asked for once more where it may be.
                let go = async {
                    loop {
                        application.go.notify_waiters();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                tokio::select! {
                    answer = client.answer() => {
                        assert_eq!(answer.status, if path == "/break" { 502 } else { 200 });
                    }
                    () = go => {}
                }
            }
            free(&sidecar).await;
            application.busy(0).await;
        }
    }
    let other = tokio::spawn(get(sidecar.addresses()[0], "x-api-key: b\r\n"));
    application.busy(1).await;
    let mine = let_in_beside(&sidecar, &application).await;
    application.go.notify_waiters();
    assert_eq!(other.await.unwrap().status, 200, "another client has places of its own");
    drop(mine);
}

/// As [`let_in`], while another request is at the application.
async fn let_in_beside(sidecar: &Sidecar, application: &Slow) -> Client {
    let client = ask(sidecar, "/").await;
    application.busy(2).await;
    client
}

#[tokio::test]
async fn an_upgraded_connection_holds_its_place_until_it_ends() {
    let application = Slow::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[at_a_time("l", 1, "Enforce")])]);
    let mut client = let_in(&sidecar, &application, "/upgrade").await;
    assert_eq!(client.line().await, "HTTP/1.1 101 Switching Protocols");
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 429);
    assert_eq!(value(&sidecar, "concurrency_held", "\"l\""), 1);
    drop(client);
    free(&sidecar).await;
    drop(let_in(&sidecar, &application, "/").await);
}

#[tokio::test]
async fn a_rate_that_denies_takes_no_place_and_a_place_that_is_not_there_no_quota() {
    let application = Slow::start().await;
    let limits = [limit("rate", 2, ""), at_a_time("l", 1, "Enforce")];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let first = let_in(&sidecar, &application, "/").await;
    for _ in 0..3 {
        let denied = get(sidecar.addresses()[0], "").await;
        assert_eq!(
            (denied.status, denied.json()["violated-policies"].to_string().as_str()),
            (429, "[\"l\"]")
        );
    }
    drop(first);
    free(&sidecar).await;
    drop(let_in(&sidecar, &application, "/").await);
    free(&sidecar).await;
    application.busy(0).await;
    for _ in 0..3 {
        let denied = get(sidecar.addresses()[0], "").await;
        assert_eq!(denied.json()["violated-policies"].to_string(), "[\"rate\"]", "two of two are used");
    }
    assert_eq!(value(&sidecar, "concurrency_held", "\"l\""), 0);
}

#[tokio::test]
async fn a_shadow_limit_counts_and_lets_everybody_in() {
    let application = Slow::start().await;
    let limits = [at_a_time("l", 1, "Shadow"), adaptive(1, "Shadow")];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let mut clients = Vec::new();
    for n in 1..=3 {
        clients.push(ask(&sidecar, "/").await);
        application.busy(n).await;
    }
    for limit in ["\"l\"", "\"a\""] {
        let outcome = |outcome: &str| format!("{limit},outcome=\"{outcome}\"");
        assert_eq!(value(&sidecar, "decisions_total", &outcome("shadow_denied")), 2);
        assert_eq!(value(&sidecar, "decisions_total", &outcome("admitted")), 1);
    }
    assert_eq!(value(&sidecar, "concurrency_held", "\"l\""), 1);
    application.go.notify_waiters();
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
    free(&sidecar).await;
}

#[tokio::test]
async fn what_an_adaptive_limit_sheds_is_charged_nothing() {
    let application = Slow::start().await;
    let limits = [limit("rate", 3, ""), adaptive(2, "Enforce")];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let mut clients = Vec::new();
    for n in 1..=2 {
        clients.push(ask(&sidecar, "/").await);
        application.busy(n).await;
    }
    for _ in 0..5 {
        let shed = get(sidecar.addresses()[0], "").await;
        assert_eq!((shed.status, shed.header("retry-after")), (503, "1"), "{}", shed.body);
        assert!(shed.body.contains("temporary-reduced-capacity"), "{}", shed.body);
        let grpc = get(sidecar.addresses()[0], "content-type: application/grpc\r\n").await;
        assert_eq!((grpc.status, grpc.header("grpc-status")), (200, "14"));
    }
    assert_eq!(value(&sidecar, "decisions_total", "\"a\",outcome=\"shed\""), 10);
    assert_eq!(value(&sidecar, "adaptive_in_flight", "\"a\""), 2);
    assert_eq!(value(&sidecar, "adaptive_limit", "\"a\""), 2);
    application.go.notify_waiters();
    for client in &mut clients {
        assert_eq!(client.answer().await.header("x-ratelimit-limit"), "3");
    }
    let last = let_one(&sidecar, &application).await;
    assert_eq!((last.status, last.header("x-ratelimit-remaining")), (200, "0"));
    let denied = get(sidecar.addresses()[0], "").await;
    assert_eq!(denied.status, 429, "three were charged");
    assert_eq!(value(&sidecar, "adaptive_in_flight", "\"a\""), 0, "a denial gives the permit back");
}

async fn let_one(sidecar: &Sidecar, application: &Slow) -> CheckResponse {
    let answer = tokio::spawn(get(sidecar.addresses()[0], ""));
    application.busy(1).await;
    application.go.notify_one();
    answer.await.unwrap()
}

#[tokio::test]
async fn an_edit_keeps_who_is_in_flight() {
    let application = Slow::start().await;
    let sidecar =
        sidecar_with(application.address, &[policy(&[at_a_time("l", 1, "Enforce"), adaptive(9, "Enforce")])]);
    let first = let_in(&sidecar, &application, "/").await;
    publish(
        &sidecar,
        &StoreChoice::Memory,
        &[policy(&[at_a_time("l", 2, "Enforce"), adaptive(2, "Enforce")])],
    );
    let second = let_in_beside(&sidecar, &application).await;
    assert_eq!(value(&sidecar, "concurrency_held", "\"l\""), 2);
    assert_eq!(value(&sidecar, "adaptive_in_flight", "\"a\""), 2);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 503, "the permit comes first");
    drop((first, second));
    free(&sidecar).await;
    application.busy(0).await;
    assert_eq!(value(&sidecar, "adaptive_in_flight", "\"a\""), 0);
}

#[tokio::test]
async fn who_is_rejected_because_too_many_wait_gives_back_one_place_and_not_two() {
    const WAITING: u64 = 1000;
    let application = Application::start().await;
    let leaky = r#"{"name":"leaky","mode":"Enforce","onMissing":"Shared","rates":[{"requests":1,"periodMillis":1000,
        "algorithm":{"leakyBucket":{"maxWaitMillis":3600000}}}]}"#;
    let at_a_time = at_a_time("l", WAITING + 1, "Enforce");
    let sidecar = sidecar_with(application.address, &[policy(&[leaky.to_owned(), at_a_time.clone()])]);
    let address = sidecar.addresses()[0];
    assert_eq!(get(address, "").await.status, 200);
    free(&sidecar).await;
    let request = || http::Request::get("http://a/").body(http_body_util::Full::default()).unwrap();
    let mut senders = Vec::new();
    for _ in 0..5 {
        senders.push(http2(address).await.0);
    }
    let asked: Vec<_> =
        (0..WAITING as usize).map(|n| tokio::spawn(senders[n % 5].clone().send_request(request()))).collect();
    let all_wait = async {
        while value(&sidecar, "concurrency_held", "\"l\"") < WAITING {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_wait).await.expect("all of them wait");
    let crowd = async {
        for _ in 0..5 {
            // Until the place of the one before is given back there is none.
            while !get(address, "").await.body.contains("are already waiting in its delay queue") {}
        }
    };
    tokio::time::timeout(Duration::from_secs(60), crowd).await.expect("too many wait");
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[at_a_time])]);
    let last = async {
        loop {
            let answer = get(address, "").await;
            if answer.status == 200 {
                return answer;
            }
        }
    };
    let last = tokio::time::timeout(Duration::from_secs(60), last).await.expect("a place is free");
    // Some who waited may have had their turn meanwhile, and no longer hold a place.
    let ended = application.count() as u64 - 2;
    let remaining: u64 = last.header("x-ratelimit-remaining").parse().unwrap();
    assert!(remaining <= ended, "{remaining} places are free, and {ended} have ended");
    asked.iter().for_each(tokio::task::JoinHandle::abort);
}
