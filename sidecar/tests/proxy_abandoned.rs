//! Requests whose clients leave while the application works on them: they count until it has finished.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use sluice_config::store_access::StoreChoice;
use sluice_sidecar::Sidecar;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::support::*;

/// Longest time that anything here may take on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// An application that finishes every request that it has begun, whether anybody waits for it or not.
#[derive(Clone)]
struct StubbornApplication(Arc<State>);

struct State {
    received: AtomicUsize,
    working: AtomicUsize,
    peak: AtomicUsize,
    /// A permit finishes a request.
    finish: Semaphore,
    /// Time after which a request is finished in any case.
    work: Duration,
}

impl StubbornApplication {
    async fn start(work: Duration) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let counters = [(); 3].map(|()| AtomicUsize::new(0));
        let [received, working, peak] = counters;
        let this = Self(Arc::new(State { received, working, peak, finish: Semaphore::new(0), work }));
        let application = this.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let application = application.clone();
                let service =
                    service_fn(move |request: Request<Incoming>| application.clone().respond(request));
                tokio::spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
                });
            }
        });
        (this, address)
    }

    /// Works on the request in a task that does not end with the connection.
    async fn respond(self, mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let is_upgrade = request.uri().path() == "/upgrade";
        let upgraded = hyper::upgrade::on(&mut request);
        self.0.received.fetch_add(1, SeqCst);
        self.0.peak.fetch_max(self.0.working.fetch_add(1, SeqCst) + 1, SeqCst);
        let work = tokio::spawn(async move {
            // The connection stays open for as long as the work lasts.
            let _upgraded = if is_upgrade { upgraded.await.ok() } else { None };
            let state = &self.0;
            if let Ok(Ok(permit)) = timeout(state.work, state.finish.acquire()).await {
                permit.forget();
            }
            state.working.fetch_sub(1, SeqCst);
        });
        let mut response = Response::new(Full::from("done"));
        if is_upgrade {
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            response.headers_mut().insert("connection", "upgrade".parse().unwrap());
            response.headers_mut().insert("upgrade", "x".parse().unwrap());
            *response.body_mut() = Full::default();
        } else {
            let _ = work.await;
        }
        Ok(response)
    }

    async fn until_received(&self, expected: usize) {
        until("the application receives the request", || self.0.received.load(SeqCst) >= expected).await;
    }
}

async fn until(condition: &str, holds: impl Fn() -> bool) {
    let look = async {
        while !holds() {
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(BOUND, look).await.unwrap_or_else(|_| panic!("gave up waiting until {condition}"));
}

/// Returns a limit in JSON that is shared by all pods.
fn concurrent(max: u64, abandoned_for: Duration) -> String {
    let millis = abandoned_for.as_millis();
    format!(
        r#"{{"name":"l","mode":"Enforce","onMissing":"Shared",
        "kind":{{"slots":{{"max":{max},"leaseMillis":30000,"abandonedForMillis":{millis}}}}}}}"#
    )
}

/// Returns an adaptive limit in JSON.
fn adaptive(limit: u64) -> String {
    format!(
        r#"{{"name":"l","mode":"Enforce","onMissing":"Shared","kind":{{"adaptive":{{
        "gradient2":{{"minimum":{limit},"maximum":{limit}}},"abandonedForMillis":3600000}}}}}}"#
    )
}

fn metric_of(sidecar: &Sidecar, name: &str) -> u64 {
    metric(
        &sidecar.metrics(),
        &format!("sluice_{name}{{policy_namespace=\"shop\",policy=\"checkout\",limit=\"l\"}}"),
    )
}

/// How a client sends a request and leaves.
#[derive(Debug, Clone, Copy)]
enum Leaving {
    /// Closes the connection when the application has the request.
    Http1,
    /// Closes the connection in the middle of the body.
    Http1Body,
    /// Sends an invalid chunk.
    Http1Chunk,
    /// Resets the stream.
    Http2,
    /// Resets the stream in the middle of the body.
    Http2Body,
    /// Resets the connection after the upgrade.
    Upgrade,
}

/// Sends a request, and leaves as soon as the application has received it or the sidecar has denied it. Reports
/// whether it was denied.
async fn send_and_leave(address: SocketAddr, application: &StubbornApplication, leaving: Leaving) -> bool {
    let before = application.0.received.load(SeqCst);
    let received = application.until_received(before + 1);
    let head = match leaving {
        Leaving::Http1 => "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        Leaving::Http1Body => "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf",
        Leaving::Http1Chunk => {
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n"
        }
        Leaving::Upgrade => "GET /upgrade HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        Leaving::Http2 | Leaving::Http2Body => {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
            let (mut sender, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            let first = futures::stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from("half")))]);
            let body = match leaving {
                Leaving::Http2Body => {
                    StreamBody::new(futures::StreamExt::chain(first, futures::stream::pending()))
                        .boxed_unsync()
                }
                _ => Full::default().boxed_unsync(),
            };
            let response = sender.send_request(Request::post("http://a/").body(body).unwrap());
            return tokio::select! {
                response = response => response.unwrap().status() == 429,
                () = received => false,
            };
        }
    };
    let mut client = Client::connect(address).await;
    if matches!(leaving, Leaving::Upgrade) {
        client.0.get_ref().set_zero_linger().unwrap();
    }
    client.send(head).await;
    tokio::select! {
        denied = client.line() => denied.contains("429"),
        () = received => {
            if matches!(leaving, Leaving::Http1Chunk) {
                client.send("nonsense\r\n").await;
                let status = client.response().await.status;
                // The application may have finished first.
                assert!(matches!(status, 400 | 200), "the client learns what was wrong: {status}");
            }
            false
        }
    }
}

/// A client that sends and leaves, again and again, would otherwise have any number of requests in the application.
async fn never_more_than_two(limit: String, leaving: Leaving) {
    let (application, address) = StubbornApplication::start(Duration::from_millis(30)).await;
    let sidecar = sidecar_with(address, &[policy(&[limit])]);
    let flood = async {
        while application.0.received.load(SeqCst) < 12 {
            send_and_leave(sidecar.addresses()[0], &application, leaving).await;
        }
    };
    timeout(BOUND, flood).await.unwrap_or_else(|_| panic!("{leaving:?}: too few were admitted"));
    let peak = application.0.peak.load(SeqCst);
    assert!(peak <= 2, "{leaving:?}: {peak} at once");
    until("the application has finished", || application.0.working.load(SeqCst) == 0).await;
}

const FOREVER: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn clients_that_leave_have_no_more_requests_in_the_application_than_the_limit() {
    for leaving in [
        Leaving::Http1,
        Leaving::Http1Body,
        Leaving::Http1Chunk,
        Leaving::Http2,
        Leaving::Http2Body,
        Leaving::Upgrade,
    ] {
        never_more_than_two(concurrent(2, FOREVER), leaving).await;
    }
}

#[tokio::test]
async fn clients_that_leave_have_no_more_requests_in_the_application_than_an_adaptive_limit() {
    for leaving in [Leaving::Http1, Leaving::Http1Body, Leaving::Http2, Leaving::Http2Body] {
        never_more_than_two(adaptive(2), leaving).await;
    }
}

#[tokio::test]
async fn a_client_whose_chunk_is_invalid_learns_what_was_wrong_while_the_application_works() {
    let (application, address) = StubbornApplication::start(FOREVER).await;
    let sidecar = sidecar_with(address, &[policy(&[concurrent(1, FOREVER)])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\n").await;
    application.until_received(1).await;
    client.send("nonsense\r\n").await;
    assert_eq!(client.response().await.status, 400);
    application.0.finish.add_permits(1);
}

#[tokio::test]
async fn an_abandoned_request_keeps_its_slot_until_the_application_has_finished() {
    let (application, address) = StubbornApplication::start(FOREVER).await;
    let sidecar = sidecar_with(address, &[policy(&[concurrent(1, FOREVER)])]);
    send_and_leave(sidecar.addresses()[0], &application, Leaving::Http1).await;
    until("it is abandoned", || metric(&sidecar.metrics(), "sluice_abandoned_requests") > 0).await;
    for _ in 0..3 {
        assert_eq!(get(sidecar.addresses()[0], "").await.status, 429);
    }
    assert_eq!(metric_of(&sidecar, "concurrency_held"), 1);
    application.0.finish.add_permits(1);
    until("the slot is free", || metric_of(&sidecar, "concurrency_held") == 0).await;
    assert_eq!(application.0.received.load(SeqCst), 1);
}

#[tokio::test]
async fn an_upgraded_connection_that_was_abandoned_keeps_its_slot_and_not_its_place() {
    let (application, address) = StubbornApplication::start(FOREVER).await;
    let sidecar = sidecar_tuned(address, |options| options.max_connections = 1);
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[concurrent(1, FOREVER)])]);
    assert!(!send_and_leave(sidecar.addresses()[0], &application, Leaving::Upgrade).await);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 429, "the only place is free");
    assert_eq!(metric_of(&sidecar, "concurrency_held"), 1);
}

#[tokio::test]
async fn an_abandoned_request_loses_its_slot_after_the_time_that_the_limit_allows() {
    let (application, address) = StubbornApplication::start(FOREVER).await;
    let sidecar = sidecar_with(address, &[policy(&[concurrent(1, Duration::from_millis(50))])]);
    for leaving in [Leaving::Http1, Leaving::Http1Body, Leaving::Http2, Leaving::Upgrade] {
        assert!(!send_and_leave(sidecar.addresses()[0], &application, leaving).await, "{leaving:?}");
        until("the slot is free", || metric_of(&sidecar, "concurrency_held") == 0).await;
    }
    assert_eq!(application.0.working.load(SeqCst), 4, "the application is not interrupted");
}

#[tokio::test]
async fn a_request_without_a_slot_ends_with_its_client() {
    let (application, address) = StubbornApplication::start(FOREVER).await;
    let sidecar = sidecar_with(address, &[policy(&[limit("l", 100, "")])]);
    send_and_leave(sidecar.addresses()[0], &application, Leaving::Http1).await;
    until("nothing is in flight", || metric(&sidecar.metrics(), "sluice_requests_in_flight") == 0).await;
}

/// Accepts one connection, and returns it when a head has arrived.
async fn accept_head(listener: TcpListener) -> tokio::io::BufReader<tokio::net::TcpStream> {
    let mut stream = tokio::io::BufReader::new(listener.accept().await.unwrap().0);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(stream.read_line(&mut line).await.unwrap() > 0);
    }
    stream
}

#[tokio::test]
async fn a_connection_whose_request_broke_off_after_the_response_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let sidecar = sidecar_with(address, &[policy(&[concurrent(1, FOREVER)])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf").await;
    let mut application = accept_head(listener).await;
    let response = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno";
    application.get_mut().write_all(response).await.unwrap();
    assert_eq!(client.response().await.status, 401);
    drop(client);
    let mut rest = Vec::new();
    timeout(BOUND, application.read_to_end(&mut rest)).await.expect("the connection is closed").unwrap();
}

#[tokio::test]
async fn a_stream_whose_request_broke_off_after_the_head_of_the_response_is_reset() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (ended, mut has_ended) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let stream = listener.accept().await.unwrap().0;
        let service = service_fn(move |request: Request<Incoming>| {
            let ended = ended.clone();
            async move {
                tokio::spawn(async move {
                    let _ = ended.send(request.into_body().collect().await.is_err());
                });
                let body = futures::stream::pending::<Result<Frame<Bytes>, Infallible>>();
                Ok::<_, Infallible>(Response::new(StreamBody::new(body)))
            }
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    });
    let sidecar = sidecar_with(address, &[policy(&[concurrent(1, Duration::from_millis(50))])]);
    let stream = tokio::net::TcpStream::connect(sidecar.addresses()[0]).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    let (leave, left) = tokio::sync::oneshot::channel::<()>();
    let first = futures::stream::iter([Ok(Frame::data(Bytes::from("half")))]);
    let error = futures::stream::once(async {
        let _ = left.await;
        Err(std::io::Error::other("the client leaves"))
    });
    let body = StreamBody::new(Box::pin(futures::StreamExt::chain(first, error)));
    let response = sender.send_request(Request::post("http://a/").body(body).unwrap()).await.unwrap();
    leave.send(()).unwrap();
    let reset = timeout(BOUND, has_ended.recv()).await.expect("the stream ends").unwrap();
    assert!(reset, "the application must not take it for a complete request");
    drop(response);
}
