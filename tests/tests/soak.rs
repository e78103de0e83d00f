//! A soak test: half an hour in which the configuration changes every second, clients leave at random points and Redis
//! is killed every minute. `make soak` runs it. SLUICE_SOAK_SECONDS sets another duration.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rand::Rng as _;
use serde_json::json;
use sluice_limiter::Record;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const CLIENTS: usize = 24;
/// Keys that are in use at the same time. Every minute brings new ones.
const KEYS: u64 = 40;
/// Requests that a key has. In a minute, a key sends more.
const REQUESTS: u64 = 150;
/// Largest growth of a sidecar's resident memory, in MiB, from the end of the warm-up to the end.
const GROWTH: u64 = 8;
/// Name of the header that marks the requests of clients that leave.
const LEAVES: &str = "x-leaves";

fn duration() -> Duration {
    let seconds = std::env::var("SLUICE_SOAK_SECONDS");
    Duration::from_secs(seconds.map_or(1_800, |text| text.parse().expect("a number of seconds")))
}

fn spec(version: u64) -> serde_json::Value {
    let client = json!({"parts": [{"header": {"name": "x-client"}}]});
    let per_client = json!({
        "name": "per-client", "key": client, "algorithm": {"fixedWindow": {}},
        // The window ends with the year.
        "rates": [{"requests": REQUESTS + version % 5, "per": "8784h"}],
    });
    let watched =
        json!({"name": "watched", "mode": "Shadow", "rates": [{"requests": 1 + version, "per": "1m"}]});
    let limits = if version.is_multiple_of(2) { vec![per_client] } else { vec![per_client, watched] };
    json!({
        "selector": {"matchLabels": {"app": "a"}},
        "onStoreFailure": "Deny",
        "limits": limits,
        "concurrency": [{"name": "slots", "key": client, "max": 6, "abandonedFor": "2s"}],
    })
}

/// Requests by their outcome.
#[derive(Debug, Default)]
struct Tally {
    /// Requests of clients that wait for the response.
    sent: AtomicU64,
    admitted: AtomicU64,
    denied: AtomicU64,
    /// Requests that were denied because the store did not answer.
    failed: AtomicU64,
    other: AtomicU64,
    /// Requests of clients that leave before the response has ended.
    left: AtomicU64,
    /// Requests that the application received from clients that wait, and from others.
    received: AtomicU64,
    received_from_leavers: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Starts an application: `/slow` takes up to 60 ms, and `/large` answers with a mebibyte.
async fn application(tally: Arc<Tally>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let large = Bytes::from(vec![b'x'; 1 << 20]);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tally, large) = (tally.clone(), large.clone());
            let service = service_fn(move |request: Request<Incoming>| {
                let (tally, large) = (tally.clone(), large.clone());
                async move {
                    let leaves = request.headers().contains_key(LEAVES);
                    add(if leaves { &tally.received_from_leavers } else { &tally.received });
                    let path = request.uri().path().to_owned();
                    let _ = request.into_body().collect().await;
                    if path == "/slow" {
                        let millis = rand::rng().random_range(0..60);
                        tokio::time::sleep(Duration::from_millis(millis)).await;
                    }
                    let body = if path == "/large" { large } else { Bytes::from_static(b"ok") };
                    Ok::<_, Infallible>(Response::new(Full::new(body)))
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    address
}

/// Returns a key of the current minute.
fn key(began: Instant) -> String {
    format!("{}-{}", began.elapsed().as_secs() / 60, rand::rng().random_range(0..KEYS))
}

fn path() -> &'static str {
    ["/", "/", "/", "/slow", "/large"][rand::rng().random_range(0..5)]
}

/// Sends one request over HTTP/1 and reads the whole response.
async fn stay(address: &str, key: &str, tally: &Tally) {
    add(&tally.sent);
    let response = sluice_tests::client::get(address, path(), &[("x-client", key)]).await;
    add(match response.status {
        200 => &tally.admitted,
        429 if response.header("x-sluice-store-failure").is_some() => &tally.failed,
        429 => &tally.denied,
        _ => {
            eprintln!("an unexpected response: {response:?}");
            &tally.other
        }
    });
}

/// Sends a part of a request over HTTP/1, or a whole one, and leaves at a random point.
async fn leave(address: &str, key: &str, tally: &Tally) -> std::io::Result<()> {
    add(&tally.left);
    let mut stream = TcpStream::connect(address).await?;
    let head = format!("{} HTTP/1.1\r\nhost: a\r\nx-client: {key}\r\n{LEAVES}: 1\r\n", path());
    let (kind, wait) = {
        let mut rng = rand::rng();
        (rng.random_range(0..4), Duration::from_millis(rng.random_range(0..50)))
    };
    match kind {
        // Within the head.
        0 => stream.write_all(format!("GET {}", &head[..head.len() / 2]).as_bytes()).await?,
        // Within the body.
        1 => stream.write_all(format!("POST {head}content-length: 100000\r\n\r\nabc").as_bytes()).await?,
        // Before the response, or within it.
        2 => stream.write_all(format!("GET {head}\r\n").as_bytes()).await?,
        _ => {
            stream.write_all(format!("GET {head}\r\n").as_bytes()).await?;
            let mut some = [0; 100];
            let _ = stream.read(&mut some).await?;
        }
    }
    tokio::time::sleep(wait).await;
    if kind == 3 {
        // Closing with unread data resets the connection.
        return Ok(());
    }
    stream.shutdown().await
}

/// Sends requests over one HTTP/2 connection, and resets half of them at random points.
async fn reset_streams(
    address: &str,
    key: &str,
    tally: &Tally,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(address).await?;
    let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(connection);
    for _ in 0..4 {
        add(&tally.left);
        let request = Request::get(format!("http://a{}", path())).header("x-client", key).header(LEAVES, "1");
        let response = sender.send_request(request.body(Full::<Bytes>::default())?);
        let wait = Duration::from_millis(rand::rng().random_range(0..30));
        let _ = tokio::time::timeout(wait, response).await;
    }
    drop(sender);
    driver.abort();
    Ok(())
}

async fn run_client(addresses: Arc<Vec<String>>, tally: Arc<Tally>, began: Instant, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let (address, action, pause) = {
            let mut rng = rand::rng();
            let address = addresses[rng.random_range(0..addresses.len())].clone();
            (address, rng.random_range(0..10), Duration::from_millis(rng.random_range(0..40)))
        };
        let key = key(began);
        match action {
            0..7 => stay(&address, &key, &tally).await,
            7..9 => drop(leave(&address, &key, &tally).await),
            _ => drop(reset_streams(&address, &key, &tally).await),
        }
        tokio::time::sleep(pause).await;
    }
}

/// Returns the requests that Redis has counted.
async fn counted(redis: &Redis) -> u64 {
    let mut connection = redis.connection().await.unwrap();
    let mut sum = 0;
    for key in redis.keys().await.into_iter().filter(|key| key.contains("/p/per-client:")) {
        let value: Vec<u8> = redis::cmd("GET").arg(&key).query_async(&mut connection).await.unwrap();
        sum += Record::decode_all(&value).unwrap().iter().map(|record| record.current).sum::<u64>();
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half an hour: make soak"]
async fn soak() {
    let total = duration();
    let plane = ControlPlane::shared().await;
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let operator = Operator::start(plane, "soak-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "soak").await;
    namespace.apply("p", spec(0)).await.unwrap();
    let tally = Arc::new(Tally::default());
    let upstream = application(tally.clone()).await;
    let mut sidecars = Vec::new();
    for name in ["one", "two"] {
        let pod = namespace.pod(name, true, json!({"app": "a"})).await;
        sidecars.push(
            Sidecar::start_with(&namespace, &pod, &operator, &upstream, "KILL", &["--workers=2"]).await,
        );
    }
    namespace.wait_for("p", "Ready", "True Ready").await;
    namespace.wait_for("p", "StoreHealthy", "True Healthy").await;

    let addresses = Arc::new(sidecars.iter().map(|sidecar| sidecar.address.clone()).collect::<Vec<_>>());
    let (began, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(run_client(addresses.clone(), tally.clone(), began, stop.clone()));
    }
    let (mut version, mut kills) = (0, 0);
    let kill_every = (total / 5).min(Duration::from_secs(60));
    let mut resident = vec![Vec::new(); sidecars.len()];
    let mut seconds = tokio::time::interval(Duration::from_secs(1));
    while began.elapsed() < total {
        seconds.tick().await;
        version += 1;
        namespace.apply("p", spec(version)).await.unwrap();
        // The last one is long before the end.
        if began.elapsed() / (kills + 1) >= kill_every && began.elapsed() + kill_every / 2 < total {
            kills += 1;
            redis.restart().await;
        }
        for (sidecar, samples) in sidecars.iter().zip(&mut resident) {
            samples.push(sidecar.process.resident_kib() / 1024);
        }
    }
    stop.store(true, Ordering::Relaxed);
    while clients.join_next().await.is_some() {}

    for sidecar in &sidecars {
        until("no request and no slot is held", async || {
            let mut held = sidecar
                .metric(&format!(
                    "sluice_concurrency_held{{policy_namespace=\"{}\",policy=\"p\",limit=\"slots\"}}",
                    namespace.name
                ))
                .await;
            held += sidecar.metric("sluice_requests_in_flight").await
                + sidecar.metric("sluice_abandoned_requests").await;
            (held == 0).then_some(())
        })
        .await;
    }
    // A sidecar that kept a slot would renew its lease for ever.
    until("no slot is leased in Redis", async || {
        redis.keys().await.iter().all(|key| !key.contains("/p/slots:")).then_some(())
    })
    .await;
    namespace.wait_for("p", "Ready", "True Ready").await;

    let counted = counted(&redis).await;
    println!("{} edits, {kills} kills of Redis, {counted} counted in Redis, {tally:#?}", version);
    let mut growth = Vec::new();
    for samples in &resident {
        let sixth = samples.len() / 6;
        let peak = |samples: &[u64]| samples.iter().copied().max().unwrap_or_default();
        let (early, late) = (peak(&samples[sixth..2 * sixth]), peak(&samples[5 * sixth..]));
        println!("resident memory: {early} MiB in the second sixth, {late} MiB in the last");
        growth.push(late.saturating_sub(early));
    }

    let Tally { sent, admitted, denied, failed, other, left, received, received_from_leavers } = &*tally;
    assert_eq!(get(sent), get(admitted) + get(denied) + get(failed), "{tally:#?}");
    assert_eq!((get(other), get(received)), (0, get(admitted)), "{tally:#?}");
    assert!(get(denied) > 0 && get(failed) > 0 && get(received_from_leavers) > 0, "{tally:#?}");
    // A request may be counted although it does not reach the application: its client has left, or the reply of Redis
    // was lost.
    let reached = get(received) + get(received_from_leavers);
    let lost = get(failed) + get(left) - get(received_from_leavers);
    assert!(
        (reached..=reached + lost).contains(&counted),
        "{counted} counted, {reached} reached, {tally:#?}"
    );
    assert!(growth.iter().all(|&mib| mib <= GROWTH), "{resident:?}");
}
