//! HTTP/2 streams between a client and the application, frame by frame: resets, early responses, flow control, connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures::future::poll_fn;
use h2::client::SendRequest;
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use http_body_util::Full;
use sluice_sidecar::Sidecar;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::*;

/// Fails a test that hangs. Nothing is measured against it.
const BOUND: Duration = Duration::from_secs(60);

/// A request as the application receives it.
pub(crate) type Received = (Request<RecvStream>, SendResponse<Bytes>);

/// An application whose streams a test controls.
pub(crate) struct Streams {
    pub(crate) address: SocketAddr,
    requests: mpsc::UnboundedReceiver<Received>,
    /// Reports each connection that ends.
    ended: mpsc::UnboundedReceiver<()>,
    connections: Arc<AtomicUsize>,
}

impl Streams {
    pub(crate) async fn start(builder: Builder) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (received, requests) = mpsc::unbounded_channel();
        let (end, ended) = mpsc::unbounded_channel();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                let (builder, received, end) = (builder.clone(), received.clone(), end.clone());
                tokio::spawn(async move {
                    let mut connection = builder.handshake(stream).await.unwrap();
                    while let Some(Ok((request, respond))) = connection.accept().await {
                        let leave = request.uri().path() == "/leave";
                        let _ = received.send((request, respond));
                        if leave {
                            connection.graceful_shutdown();
                        }
                    }
                    let _ = end.send(());
                });
            }
        });
        Self { address, requests, ended, connections }
    }

    pub(crate) async fn next(&mut self) -> Received {
        within(self.requests.recv()).await.unwrap()
    }
}

/// Waits for a future, but not for ever.
pub(crate) async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(BOUND, future).await.expect("the test hangs")
}

pub(crate) async fn connect(sidecar: &Sidecar) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let stream = TcpStream::connect(sidecar.addresses()[0]).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    (client, tokio::spawn(connection))
}

/// Starts an application, a sidecar and a client.
pub(crate) async fn start() -> (Streams, Sidecar, SendRequest<Bytes>) {
    let application = Streams::start(Builder::new()).await;
    let sidecar = sidecar_with(application.address, &[]);
    let (client, _) = connect(&sidecar).await;
    (application, sidecar, client)
}

pub(crate) fn post() -> Request<()> {
    Request::post("http://shop.example/x").body(()).unwrap()
}

/// Reads a body, and lets its sender go on.
pub(crate) async fn read(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = within(body.data()).await {
        let data = data?;
        body.flow_control().release_capacity(data.len()).unwrap();
        all.extend_from_slice(&data);
    }
    Ok(all)
}

/// Sends data as far as the receiver takes it at once, or all of it.
pub(crate) async fn send(stream: &mut SendStream<Bytes>, mut data: Bytes) {
    while !data.is_empty() {
        stream.reserve_capacity(data.len());
        let capacity = within(poll_fn(|cx| stream.poll_capacity(cx))).await.unwrap().unwrap();
        stream.send_data(data.split_to(capacity.min(data.len())), false).unwrap();
    }
}

#[tokio::test]
async fn bodies_and_trailers_stream_both_ways() {
    let (mut application, _sidecar, mut client) = start().await;
    let (response, mut upload) = client.send_request(post(), false).unwrap();
    let (request, mut respond) = application.next().await;
    assert_eq!(request.uri(), "http://shop.example/x");
    let mut download = respond.send_response(Response::new(()), false).unwrap();
    let (mut body, mut response) = (request.into_body(), within(response).await.unwrap().into_body());
    for word in ["one", "two", "three"] {
        upload.send_data(word.into(), false).unwrap();
        let data = within(body.data()).await.unwrap().unwrap();
        download.send_data(data, false).unwrap();
        assert_eq!(within(response.data()).await.unwrap().unwrap(), word);
    }
    let trailers = |name: &'static str| HeaderMap::from_iter([(name.parse().unwrap(), "1".parse().unwrap())]);
    upload.send_trailers(trailers("x-of-client")).unwrap();
    assert!(within(body.data()).await.is_none());
    assert!(within(body.trailers()).await.unwrap().unwrap().contains_key("x-of-client"));
    download.send_trailers(trailers("x-of-application")).unwrap();
    assert!(within(response.data()).await.is_none());
    assert!(within(response.trailers()).await.unwrap().unwrap().contains_key("x-of-application"));
}

#[tokio::test]
async fn the_reason_of_a_reset_passes_to_the_other_side() {
    let (mut application, _sidecar, mut client) = start().await;
    let (_response, mut upload) = client.send_request(post(), false).unwrap();
    upload.send_data("half".into(), false).unwrap();
    let (request, _respond) = application.next().await;
    let mut body = request.into_body();
    assert_eq!(within(body.data()).await.unwrap().unwrap(), "half");
    upload.send_reset(Reason::CANCEL);
    let error = within(body.data()).await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::CANCEL));

    let (response, _upload) = client.send_request(post(), false).unwrap();
    let (_request, mut respond) = application.next().await;
    let mut download = respond.send_response(Response::new(()), false).unwrap();
    let mut response = within(response).await.unwrap().into_body();
    download.send_reset(Reason::ENHANCE_YOUR_CALM);
    let error = within(response.data()).await.unwrap().unwrap_err();
    assert_eq!(error.reason(), Some(Reason::ENHANCE_YOUR_CALM));

    let (response, _upload) = client.send_request(post(), false).unwrap();
    let (_request, mut respond) = application.next().await;
    respond.send_reset(Reason::CANCEL);
    assert_eq!(within(response).await.unwrap().status(), 502, "there is no response to pass on");
}

#[tokio::test]
async fn a_client_that_does_not_wait_for_the_response_resets_the_stream() {
    let (mut application, _sidecar, mut client) = start().await;
    for ends in [true, false] {
        let (response, upload) = client.send_request(post(), ends).unwrap();
        let (request, mut respond) = application.next().await;
        drop((response, upload));
        assert_eq!(within(poll_fn(|cx| respond.poll_reset(cx))).await.unwrap(), Reason::CANCEL);
        drop(request);
    }
    let (response, _) = client.send_request(post(), true).unwrap();
    application.next().await.1.send_response(Response::new(()), true).unwrap();
    assert_eq!(within(response).await.unwrap().status(), 200, "the connection goes on");
}

#[tokio::test]
async fn a_response_before_the_end_of_the_request_is_complete() {
    let (mut application, _sidecar, mut client) = start().await;
    let (response, mut upload) = client.send_request(post(), false).unwrap();
    upload.send_data("half".into(), false).unwrap();
    let (request, mut respond) = application.next().await;
    let mut download = respond.send_response(Response::new(()), false).unwrap();
    download.send_data("enough".into(), true).unwrap();
    // The rest of the request is refused with NO_ERROR.
    drop((request, respond, download));
    let mut response = within(response).await.unwrap();
    assert_eq!(read(response.body_mut()).await.unwrap(), b"enough");
}

#[tokio::test]
async fn a_request_without_a_response_of_the_application_can_be_sent_to_its_end() {
    let application = Streams::start(Builder::new()).await;
    let sidecar = sidecar_with(application.address, &[policy(&[limit("none", 0, "")])]);
    let (mut client, _) = connect(&sidecar).await;
    let cases = [
        ("http://shop.example/x", "x-a", 429),
        ("http://shop.example/x", "expect", 429),
        ("ftp://shop.example/x", "x-a", 400),
    ];
    for (uri, header, status) in cases {
        let request = Request::post(uri).header(header, "100-continue").body(()).unwrap();
        let (response, mut upload) = client.send_request(request, false).unwrap();
        let mut response = within(response).await.unwrap();
        assert_eq!(response.status(), status);
        assert!(!read(response.body_mut()).await.unwrap().is_empty());
        // A stream that is reset takes no more data.
        send(&mut upload, Bytes::from(vec![0; 200_000])).await;
        upload.send_data(Bytes::new(), true).unwrap();
        // What came before on the connection has been taken.
        let (response, _) = client.send_request(post(), true).unwrap();
        within(response).await.unwrap();
        assert!(poll_fn(|cx| Poll::Ready(upload.poll_reset(cx))).await.is_pending(), "{status}");
    }
}

#[tokio::test]
async fn an_upload_waits_for_the_application_and_arrives_whole() {
    let mut builder = Builder::new();
    builder.initial_window_size(1000);
    let mut application = Streams::start(builder).await;
    let sidecar = sidecar_with(application.address, &[]);
    let (mut client, _) = connect(&sidecar).await;
    // Twice what the sidecar lets a stream send in advance.
    let sent: Bytes = (0..2_200_000u32).map(|n| (n % 251) as u8).collect();
    let (response, mut upload) = client.send_request(post(), false).unwrap();
    let (request, mut respond) = application.next().await;
    let whole = sent.clone();
    let finished = Arc::new(AtomicUsize::new(0));
    let has_finished = finished.clone();
    let sending = tokio::spawn(async move {
        send(&mut upload, whole).await;
        has_finished.store(1, Ordering::SeqCst);
        upload.send_data(Bytes::new(), true).unwrap();
    });
    let mut body = request.into_body();
    let first = within(body.data()).await.unwrap().unwrap();
    assert!(first.len() <= 1000);
    // Another stream is not kept waiting.
    let (other, _) = client.send_request(post(), true).unwrap();
    application.next().await.1.send_response(Response::new(()), true).unwrap();
    assert_eq!(within(other).await.unwrap().status(), 200);
    assert_eq!(finished.load(Ordering::SeqCst), 0, "the sidecar buffers no more than its window");
    body.flow_control().release_capacity(first.len()).unwrap();
    let rest = read(&mut body).await.unwrap();
    assert!([&first[..], &rest].concat() == sent);
    within(sending).await.unwrap();
    respond.send_response(Response::new(()), true).unwrap();
    assert_eq!(within(response).await.unwrap().status(), 200);
}

#[tokio::test]
async fn requests_wait_for_the_streams_that_the_application_permits() {
    let mut builder = Builder::new();
    builder.max_concurrent_streams(2);
    let mut application = Streams::start(builder).await;
    let sidecar = sidecar_with(application.address, &[]);
    let (mut client, _) = connect(&sidecar).await;
    // The application's limit is known after its first response.
    let (response, _) = client.send_request(post(), true).unwrap();
    application.next().await.1.send_response(Response::new(()), true).unwrap();
    within(response).await.unwrap();
    let responses: Vec<_> = (0..10).map(|_| client.send_request(post(), true).unwrap().0).collect();
    for _ in 0..5 {
        // The connection refuses a third stream, which would be a 502.
        let pair = [application.next().await, application.next().await];
        for (_, mut respond) in pair {
            respond.send_response(Response::new(()), true).unwrap();
        }
    }
    for response in responses {
        assert_eq!(within(response).await.unwrap().status(), 200);
    }
}

#[tokio::test]
async fn the_connection_to_the_application_ends_with_that_of_the_client() {
    let (mut application, sidecar, client) = start().await;
    drop(client);
    for in_flight in [false, true] {
        let (mut client, connection) = connect(&sidecar).await;
        let (response, _) = client.send_request(post(), true).unwrap();
        let (_request, mut respond) = application.next().await;
        if !in_flight {
            respond.send_response(Response::new(()), true).unwrap();
            within(response).await.unwrap();
        }
        drop(client);
        connection.abort();
        within(application.ended.recv()).await.unwrap();
    }
}

#[tokio::test]
async fn a_connection_that_the_application_leaves_is_replaced() {
    let (mut application, _sidecar, mut client) = start().await;
    let leave = || Request::get("http://shop.example/leave").body(()).unwrap();
    for connections in 1..=3 {
        let (response, _) = client.send_request(leave(), true).unwrap();
        application.next().await.1.send_response(Response::new(()), true).unwrap();
        assert_eq!(within(response).await.unwrap().status(), 200);
        within(application.ended.recv()).await.unwrap();
        assert_eq!(application.connections.load(Ordering::SeqCst), connections);
    }
}

#[tokio::test]
async fn targets_that_name_no_resource_of_http_are_refused() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let (mut client, _connection) = http2(sidecar.addresses()[0]).await;
    for (method, scheme, path, status) in [
        ("GET", "http", "/?a=b", 200),
        ("GET", "https", "/", 200),
        ("OPTIONS", "http", "*", 200),
        ("GET", "http", "?a=b", 400),
        ("GET", "http", "*", 400),
        ("GET", "ftp", "/", 400),
    ] {
        let uri = http::Uri::builder().scheme(scheme).authority("shop.example").path_and_query(path).build();
        let request = Request::builder().method(method).uri(uri.unwrap()).body(Full::default()).unwrap();
        let response = within(client.send_request(request)).await.unwrap();
        assert_eq!(response.status(), status, "{method} {scheme} {path}");
    }
    assert_eq!(application.count(), 3);
}

#[tokio::test]
async fn cookies_are_joined_and_values_are_trimmed_on_the_way_to_http1() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[]);
    let (mut client, _connection) = http2(sidecar.addresses()[0]).await;
    let request = Request::get("http://shop.example/")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .header("x-api-key", " valid \t")
        .body(Full::default());
    within(client.send_request(request.unwrap())).await.unwrap();
    let headers = application.last().headers;
    let values = |name: &str| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
    assert_eq!(values("cookie"), ["a=1; b=2"]);
    assert_eq!(values("x-api-key"), ["valid"]);
}
