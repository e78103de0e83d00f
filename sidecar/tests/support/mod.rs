//! Helpers of the sidecar's tests: an application that records its requests, a client of raw bytes, and
//! policies.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use sluice_config::store_access::{StoreAccess, StoreChoice, StoreChoices};
use sluice_config::{KeySecret, PolicyHash, PreparedPolicy};
use sluice_sidecar::{Options, Route, Sidecar};
use sluice_store::{Clock, RedisOptions};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

pub(crate) mod frames;
pub(crate) mod operator;

/// Fails a test that hangs. Nothing is measured against it.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// An application that echoes bodies and records its requests.
pub(crate) struct Application {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Arc<Mutex<Vec<http::request::Parts>>>,
}

impl Application {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = seen.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let record = record.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let (parts, body) = request.into_parts();
                    let trailers = parts.uri.path() == "/trailers";
                    record.lock().unwrap().push(parts);
                    let body: BoxBody<Bytes, hyper::Error> = if trailers {
                        let mut trailers = http::HeaderMap::new();
                        trailers.insert("x-sum", "42".parse().unwrap());
                        body.with_trailers(async move { Some(Ok(trailers)) }).boxed()
                    } else {
                        body.boxed()
                    };
                    let mut response = Response::new(body);
                    response.headers_mut().insert("x-application", "yes".parse().unwrap());
                    if trailers {
                        response.headers_mut().insert("trailer", "x-sum".parse().unwrap());
                    }
                    async move { Ok::<_, Infallible>(response) }
                });
                tokio::spawn(async move {
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, seen }
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(crate) fn last(&self) -> http::request::Parts {
        self.seen.lock().unwrap().last().unwrap().clone()
    }
}

/// Returns a limit in JSON: `requests` per minute, with the header `x-api-key` as key. `extra` holds further
/// members, with a leading comma.
pub(crate) fn limit(name: &str, requests: u64, extra: &str) -> String {
    let mode = if extra.contains("\"mode\"") { "" } else { r#""mode":"Enforce","# };
    let missing = if extra.contains("onMissing") { "" } else { r#""onMissing":"Shared","# };
    format!(
        r#"{{"name":"{name}",{mode}{missing}"key":[{{"header":{{"name":"x-api-key"}}}}],
        "kind":{{"rates":{{"base":[{{"requests":{requests},"periodMillis":60000,"algorithm":{{"fixedWindow":"Clock"}}}}]}}}}{extra}}}"#
    )
}

/// Expressions that limits may name.
const EXPRESSIONS: &str = r#"{"is internal":{"root":{"compare":["equal",[{"toInt":{"field":{"header":"x-internal"}}},{"int":1}]]}}}"#;

/// Returns a policy in JSON.
pub(crate) fn policy_json(name: &str, on_store_failure: &str, limits: &[String]) -> String {
    format!(
        r#"{{"namespace":"shop","name":"{name}","mode":"Enforce","onStoreFailure":"{on_store_failure}","consistency":"Strict","ambiguousPaths":"Match","limits":[{}],"expressions":{EXPRESSIONS}}}"#,
        limits.join(",")
    )
}

pub(crate) fn prepare(json: &str) -> Arc<PreparedPolicy> {
    let prepared = PreparedPolicy::from_json(json).unwrap();
    assert_eq!(prepared.hash, PolicyHash::of(json));
    Arc::new(prepared)
}

/// Returns a policy with these limits and `onStoreFailure: Allow`.
pub(crate) fn policy(limits: &[String]) -> Arc<PreparedPolicy> {
    prepare(&policy_json("checkout", "Allow", limits))
}

/// Starts a sidecar before this application. Its clock does not move.
pub(crate) fn sidecar(upstream: SocketAddr) -> (Sidecar, Clock) {
    let clock = Clock::manual(1_700_000_000_000 / 60_000 * 60_000);
    let route =
        Route { listen: "127.0.0.1:0".parse().unwrap(), upstream: upstream.to_string().parse().unwrap() };
    let mut options = Options::new(vec![route]);
    options.admin = Some("127.0.0.1:0".parse().unwrap());
    options.clock = clock.clone();
    options.debug_headers = true;
    (Sidecar::start(options).unwrap(), clock)
}

/// Starts a sidecar with options of the test and no policies.
pub(crate) fn sidecar_tuned(upstream: SocketAddr, tune: impl FnOnce(&mut Options)) -> Sidecar {
    let route =
        Route { listen: "127.0.0.1:0".parse().unwrap(), upstream: upstream.to_string().parse().unwrap() };
    let mut options = Options::new(vec![route]);
    options.debug_headers = true;
    tune(&mut options);
    let sidecar = Sidecar::start(options).unwrap();
    publish(&sidecar, &StoreChoice::Memory, &[]);
    sidecar
}

/// Opens an HTTP/2 connection. The handle completes when the connection ends.
pub(crate) async fn http2(
    address: SocketAddr,
) -> (http2::SendRequest<Full<Bytes>>, JoinHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    (sender, tokio::spawn(connection))
}

/// Calls a gRPC method over a connection of its own, with this content type.
pub(crate) async fn grpc_call(
    address: SocketAddr,
    content_type: &str,
) -> http::Response<hyper::body::Incoming> {
    let call = http::Request::post("http://a/s/M").header("content-type", content_type);
    let (mut sender, _) = http2(address).await;
    sender.send_request(call.body(Full::default()).unwrap()).await.unwrap()
}

/// Starts a sidecar with these policies and a memory store. Its clock does not move.
pub(crate) fn sidecar_with(upstream: SocketAddr, policies: &[Arc<PreparedPolicy>]) -> Sidecar {
    let (sidecar, _) = sidecar(upstream);
    publish(&sidecar, &StoreChoice::Memory, policies);
    sidecar
}

/// Returns the choice of a Redis as the store.
pub(crate) fn redis_at(url: &str) -> StoreChoice {
    // Generous, so that a slow machine does not exceed it.
    let latency_budget = Duration::from_secs(10);
    let redis = RedisOptions { latency_budget, ..RedisOptions::from_url(url).unwrap() };
    StoreChoice::Access(Box::new(StoreAccess { redis, key_secret: KeySecret::new([0; 16]) }))
}

pub(crate) fn publish(sidecar: &Sidecar, store: &StoreChoice, policies: &[Arc<PreparedPolicy>]) {
    let named: Vec<_> = policies.iter().map(|p| (format!("uid-{}", p.name), p.clone())).collect();
    assert_eq!(sidecar.publisher().publish(&StoreChoices::only(store.clone()), &named), []);
}

/// A response as it was received. Trailers are headers with the prefix `trailer `.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl HttpResponse {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

/// A client that sends raw bytes and reads responses.
pub(crate) struct Client(pub BufReader<TcpStream>);

impl Client {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::new(stream))
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.get_mut().write_all(bytes.as_ref()).await.unwrap();
    }

    pub(crate) async fn get(&mut self, headers: &str) -> HttpResponse {
        self.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{headers}\r\n")).await;
        self.response().await
    }

    pub(crate) async fn response(&mut self) -> HttpResponse {
        self.response_to("GET").await
    }

    /// Reads the response to a request of this method.
    pub(crate) async fn response_to(&mut self, method: &str) -> HttpResponse {
        tokio::time::timeout(TEST_TIMEOUT, self.read_response(method)).await.expect("no response in time")
    }

    pub(crate) async fn line(&mut self) -> String {
        let mut line = Vec::new();
        tokio::time::timeout(TEST_TIMEOUT, self.0.read_until(b'\n', &mut line))
            .await
            .expect("no line in time")
            .unwrap();
        String::from_utf8(line).unwrap().trim_end().to_owned()
    }

    async fn read_response(&mut self, method: &str) -> HttpResponse {
        let status_line = self.line().await;
        let status =
            status_line.split(' ').nth(1).unwrap_or_else(|| panic!("{status_line:?}")).parse().unwrap();
        let mut headers = BTreeMap::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_lowercase(), value.to_owned());
        }
        let mut body = Vec::new();
        let chunked = headers.get("transfer-encoding").is_some_and(|te| te.ends_with("chunked"));
        if method != "HEAD" && chunked {
            loop {
                let size = usize::from_str_radix(&self.line().await, 16).unwrap();
                let from = body.len();
                body.resize(from + size, 0);
                self.0.read_exact(&mut body[from..]).await.unwrap();
                if size == 0 {
                    loop {
                        let line = self.line().await;
                        let Some((name, value)) = line.split_once(": ") else { break };
                        headers.insert(format!("trailer {name}"), value.to_owned());
                    }
                    break;
                }
                self.line().await;
            }
        } else if method != "HEAD"
            && let Some(length) = headers.get("content-length")
        {
            body.resize(length.parse().unwrap(), 0);
            self.0.read_exact(&mut body).await.unwrap();
        }
        HttpResponse { status, headers, body: String::from_utf8(body).unwrap() }
    }

    /// Waits for the end of the connection, and discards what is received before.
    pub(crate) async fn closed(mut self) {
        let mut rest = Vec::new();
        let end = tokio::time::timeout(TEST_TIMEOUT, self.0.read_to_end(&mut rest))
            .await
            .expect("the connection is still open");
        // A reset ends the connection too.
        let _ = end;
    }
}

/// Sends a request on a new connection.
pub(crate) async fn get(address: SocketAddr, headers: &str) -> HttpResponse {
    Client::connect(address).await.get(headers).await
}

/// Requests a page of an admin port.
pub(crate) async fn page(address: SocketAddr, path: &str) -> HttpResponse {
    let mut client = Client::connect(address).await;
    client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")).await;
    client.response().await
}

/// Returns the value of a metric, found by the beginning of its line.
pub(crate) fn metric(text: &str, name: &str) -> u64 {
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()).map_or(0, |value| value.parse().unwrap())
}

/// Waits until the sidecar has ended so many connections for a reason. A connection is counted just after its end.
pub(crate) async fn ended(sidecar: &Sidecar, reason: &str, connections: u64) {
    let name = format!("sluice_ended_connections_total{{reason=\"{reason}\"}}");
    let counted = async {
        while metric(&sidecar.metrics(), &name) < connections {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let counted = tokio::time::timeout(TEST_TIMEOUT, counted).await;
    assert!(counted.is_ok(), "{}", sidecar.metrics());
}

/// Starts an application that responds with bodies of this size.
pub(crate) async fn responding(size: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let body = Bytes::from(vec![b'a'; size]);
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let body = body.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                // hyper sends bodies of responses to HEAD over HTTP/2.
                let is_head = request.method() == http::Method::HEAD;
                let body = if is_head { Full::default() } else { Full::new(body.clone()) };
                async move {
                    // An answer before the end of a body would hide what is wrong with the rest.
                    let _ = request.into_body().collect().await;
                    Ok::<_, Infallible>(Response::new(body))
                }
            });
            tokio::spawn(async move {
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}
