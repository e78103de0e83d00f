//! Charges that outcomes correct, in a real Redis that several pods share and that is killed meanwhile.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use sluice_config::PreparedPolicy;
use sluice_config::message::Replica;
use sluice_config::store_access::StoreChoice;
use sluice_sidecar::Sidecar;
use tokio::net::TcpListener;

use super::{YEAR, until_healthy};
use crate::server::{Redis, eventually};
use crate::support::*;

const PODS: u32 = 8;
const CLIENTS: usize = 200;

/// The largest cost of a response, which each request reserves.
const RESERVE: u64 = 10;

/// Returns a policy that admits this number a year of all clients together. `counts` tells what counts.
fn yearly(most: u64, counts: &str) -> Arc<PreparedPolicy> {
    prepare(&format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Deny","consistency":"Strict","ambiguousPaths":"Match",
        "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared","kind":{{"rates":{{
            "base":[{{"requests":{most},"periodMillis":{YEAR},"algorithm":{{"fixedWindow":"Clock"}}}}],{counts}}}}}}}]}}"#
    ))
}

/// Returns a policy for failures.
fn policy(most: u64) -> Arc<PreparedPolicy> {
    yearly(most, r#""countWhen":{"statusCodes":["401"]}"#)
}

/// Returns a policy for units. Responses say what they cost.
fn policy_with_cost(most: u64) -> Arc<PreparedPolicy> {
    yearly(most, &format!(r#""cost":{{"response":{{"header":"x-cost","reserve":{RESERVE}}}}}"#))
}

/// The application of a storm.
#[derive(Debug, Default)]
struct Seen {
    /// Number of requests whose logins have failed.
    failures: AtomicU64,
    /// Number of units that all requests have cost.
    cost: AtomicU64,
}

/// Starts an application that checks logins, and returns its address and what it has seen. It reads the body first.
async fn logins() -> (std::net::SocketAddr, Arc<Seen>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Seen::default());
    let counted = seen.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let seen = counted.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let seen = seen.clone();
                async move {
                    let fails = request.headers().contains_key("fail");
                    request.into_body().collect().await?;
                    seen.failures.fetch_add(u64::from(fails), Relaxed);
                    // 0, 1, ... and the whole reserve.
                    let cost = rand::rng().random_range(0..=RESERVE);
                    seen.cost.fetch_add(cost, Relaxed);
                    // Other requests run meanwhile.
                    tokio::task::yield_now().await;
                    let mut response = Response::new(Full::new(Bytes::from(vec![b'a'; 20_000])));
                    response.headers_mut().insert("x-cost", cost.into());
                    if fails {
                        *response.status_mut() = StatusCode::UNAUTHORIZED;
                    }
                    Ok::<_, hyper::Error>(response)
                }
            });
            tokio::spawn(async move {
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    (address, seen)
}

/// The part of requests that end early, and of those that fail.
#[derive(Clone, Copy)]
struct Traffic {
    aborted: u32,
    failing: u32,
}

/// Sends requests until told to stop. Some of them end at some stage.
async fn send(address: std::net::SocketAddr, traffic: Traffic, seed: u64, stop: Arc<AtomicBool>) {
    let mut random = StdRng::seed_from_u64(seed);
    while !stop.load(Relaxed) {
        let head = if random.random_range(0..100) < traffic.failing { "fail: 1\r\n" } else { "" };
        let request = format!("GET / HTTP/1.1\r\nhost: a\r\n{head}\r\n");
        let mut client = Client::connect(address).await;
        if random.random_range(0..100) >= traffic.aborted {
            client.send(&request).await;
            client.response().await;
            continue;
        }
        // Before the end of the request, in its body, before the response, and in its head and body.
        match random.random_range(0..4) {
            0 => client.send(&request[..random.random_range(1..request.len())]).await,
            1 => {
                let part = "a".repeat(random.random_range(0..1_000));
                let head = format!("POST / HTTP/1.1\r\nhost: a\r\n{head}content-length: 1000\r\n\r\n");
                client.send(head + &part).await;
                if random.random() {
                    // It has arrived, and the application waits for the rest.
                    tokio::task::yield_now().await;
                }
            }
            2 => client.send(&request).await,
            _ => {
                client.send(&request).await;
                for _ in 0..random.random_range(1..8) {
                    client.line().await;
                }
            }
        }
    }
}

/// Eight pods with one Redis, and 200 clients.
struct Storm {
    pods: Vec<Sidecar>,
    redis: Redis,
    seen: Arc<Seen>,
    most: u64,
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Storm {
    async fn start(most: u64, traffic: Traffic) -> Self {
        Self::start_with(policy(most), most, traffic).await
    }

    async fn start_with(policy: Arc<PreparedPolicy>, most: u64, traffic: Traffic) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let redis =
            Redis::start_restartable(&["--dir", path, "--appendonly", "yes", "--appendfsync", "always"]);
        let (application, seen) = logins().await;
        let policies = [policy];
        let mut pods = Vec::new();
        for index in 0..PODS {
            let (pod, _) = sidecar(application);
            let replica = ("uid-p".to_owned(), Replica { index, count: PODS });
            pod.publisher().set_replicas(&BTreeMap::from([replica]));
            publish(&pod, &redis_at(&redis.url()), &policies);
            until_healthy(&pod, true).await;
            pods.push(pod);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let client = |n: usize| {
            let address = pods[n % pods.len()].addresses()[0];
            tokio::spawn(send(address, traffic, n as u64, stop.clone()))
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self { pods, redis, seen, most, stop, clients, _directory: directory }
    }

    fn failures(&self) -> u64 {
        self.seen.failures.load(Relaxed)
    }

    fn settlements(&self, outcome: &str) -> u64 {
        self.sum("settlements", outcome)
    }

    fn admitted(&self) -> u64 {
        self.sum("decisions", "admitted")
    }

    fn sum(&self, family: &str, outcome: &str) -> u64 {
        let name = format!(
            r#"sluice_{family}_total{{policy_namespace="shop",policy="p",limit="l",outcome="{outcome}"}}"#
        );
        self.pods.iter().map(|pod| metric(&pod.metrics(), &name)).sum()
    }

    /// Waits until this number of requests more is admitted.
    async fn admit(&self, more: u64) {
        let until = self.admitted() + more;
        eventually("requests are admitted", || async { self.admitted() >= until }).await;
    }

    async fn restart_redis(&mut self) {
        self.redis.restart();
        for pod in &self.pods {
            until_healthy(pod, true).await;
        }
    }

    /// Returns how many requests the store counts. Checks may fail before, because a pod notices only at one that Redis has
    /// died.
    async fn in_store(&self) -> u64 {
        let counted = Cell::new(0);
        eventually("the store answers", || async {
            let response = get(self.pods[0].addresses()[0], "").await;
            let left = response.headers.get("ratelimit").and_then(|value| value.split(";r=").nth(1));
            let Some(left) = left.and_then(|rest| rest.split(';').next()) else {
                assert!(response.headers.contains_key("x-sluice-store-failure"), "{response:?}");
                return false;
            };
            // The request itself is charged before it is refunded.
            counted.set(self.most - left.parse::<u64>().unwrap() - u64::from(response.status == 200));
            true
        })
        .await;
        counted.get()
    }

    /// Stops the clients, and waits until everything is settled.
    async fn end(&mut self) {
        self.stop.store(true, Relaxed);
        for client in self.clients.drain(..) {
            client.await.unwrap();
        }
        eventually("all admitted requests are settled", || async {
            self.settlements("counted") + self.settlements("uncounted") == self.admitted()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exactly_five_failures_pass_all_pods_and_successes_are_free() {
    let mut storm = Storm::start(5, Traffic { aborted: 0, failing: 2 }).await;
    eventually("five failures have passed", || async { storm.failures() == 5 }).await;
    storm.end().await;
    assert_eq!((storm.failures(), storm.settlements("counted")), (5, 5));
    eventually("the limit is used up", || async { storm.in_store().await == 5 }).await;
    assert_eq!(get(storm.pods[3].addresses()[0], "fail: 1\r\n").await.status, 429);
    assert!(storm.settlements("uncounted") > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaks_when_clients_leave_at_every_stage() {
    let mut storm = Storm::start(100_000, Traffic { aborted: 40, failing: 10 }).await;
    storm.admit(5_000).await;
    storm.end().await;
    let counted = storm.settlements("counted");
    // The client of a success may have left before its outcome, which then counts too.
    assert!(storm.failures() <= counted && counted < storm.admitted(), "{counted}");
    assert_eq!(storm.settlements("lost"), 0);
    eventually("the store counts what the outcomes are", || async { storm.in_store().await == counted })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_never_exceed_the_limit_while_redis_dies() {
    const MOST: u64 = 10_000;
    const DEATHS: u64 = 3;
    let mut storm = Storm::start(MOST, Traffic { aborted: 20, failing: 60 }).await;
    for _ in 0..DEATHS {
        storm.admit(300).await;
        storm.restart_redis().await;
    }
    eventually("the limit is used up", || async { storm.in_store().await == MOST }).await;
    storm.end().await;
    let (counted, left) = (storm.settlements("counted"), MOST - storm.in_store().await);
    assert!(
        storm.failures() <= counted && counted <= MOST,
        "{} failures, {counted} counted",
        storm.failures()
    );
    // Each client has at most one request on its way when Redis dies, and one settlement.
    let on_their_way = DEATHS * CLIENTS as u64 * 2;
    assert!(counted + left + on_their_way >= MOST, "{counted} counted, {left} left");
}

/// Redis dies meanwhile, and clients leave at every stage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_within_the_reserve_never_exceed_the_limit() {
    const MOST: u64 = 10_000;
    let traffic = Traffic { aborted: 20, failing: 0 };
    let mut storm = Storm::start_with(policy_with_cost(MOST), MOST, traffic).await;
    storm.admit(300).await;
    storm.restart_redis().await;
    // Too little is left for one more reserve.
    eventually("the limit is used up", || async { storm.sum("decisions", "denied") > 100 }).await;
    let cost = storm.seen.cost.load(Relaxed);
    println!("{} admitted requests have cost {cost} of {MOST}", storm.admitted());
    assert!((MOST / 2..=MOST).contains(&cost), "{cost}");
    storm.end().await;
    assert!(storm.seen.cost.load(Relaxed) <= MOST);
}

/// Starts an application whose responses have this cost.
async fn expensive(cost: u64) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(move |_: Request<Incoming>| async move {
                let response = Response::builder().header("x-cost", cost);
                Ok::<_, std::convert::Infallible>(response.body(Full::<Bytes>::default()).unwrap())
            });
            tokio::spawn(async move {
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn a_cost_is_charged_although_nothing_of_the_request_is_in_the_store() {
    let redis = Redis::start(&[]);
    let application = expensive(15_000).await;
    for (n, algorithm) in [
        r#"{"slidingWindowCounter":{"subWindows":1,"bound":"Estimate"}}"#,
        r#"{"fixedWindow":"FirstRequest"}"#,
        r#"{"tokenBucket":{"burst":20000}}"#,
    ]
    .into_iter()
    .enumerate()
    {
        for store in [StoreChoice::Memory, redis_at(&redis.url())] {
            let policy = prepare(&format!(
                r#"{{"namespace":"shop","name":"p{n}","mode":"Enforce","onStoreFailure":"Deny","consistency":"Strict","ambiguousPaths":"Match",
                "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared","kind":{{"rates":{{
                    "base":[{{"requests":20000,"periodMillis":{YEAR},"algorithm":{algorithm}}}],
                    "cost":{{"response":{{"header":"x-cost","reserve":0}}}}}}}}}}]}}"#
            ));
            let (sidecar, _) = sidecar(application);
            publish(&sidecar, &store, &[policy]);
            until_healthy(&sidecar, true).await;
            // Each request is admitted for nothing, and costs more than half of the limit in the end.
            assert_eq!(get(sidecar.addresses()[0], "").await.status, 200, "{algorithm}");
            eventually("the limit is used up", || async {
                get(sidecar.addresses()[0], "").await.status == 429
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_sidecar_that_ends_settles_its_requests_first() {
    let redis = Redis::start(&[]);
    let (application, _) = logins().await;
    let start = async || {
        let (pod, _) = sidecar(application);
        publish(&pod, &redis_at(&redis.url()), &[policy(100)]);
        until_healthy(&pod, true).await;
        pod
    };
    let first = start().await;
    for _ in 0..50 {
        assert_eq!(get(first.addresses()[0], "").await.status, 200);
    }
    first.shutdown(std::time::Duration::ZERO, std::time::Duration::from_secs(30)).await;
    let second = start().await;
    let response = get(second.addresses()[0], "").await;
    assert!(
        response.header("ratelimit").starts_with("\"l\";r=99;"),
        "the request itself is counted: {response:?}"
    );
}
