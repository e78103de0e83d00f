//! HTTP/2 as far as it permits: streams that are not read, long heads and trailers, informational responses, requests that the
//! application has not processed. All of it passes. An error of one stream is no error of its neighbours.

use bytes::Bytes;
use futures::future::poll_fn;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response, StatusCode};
use sluice_sidecar::Sidecar;
use tokio::net::TcpStream;

use super::http2::*;
use crate::support::*;

const STREAMS: usize = 200;
/// More than all streams hold together.
const LARGE: u32 = 1 << 30;

/// Starts an application that reads as much as it is sent, a sidecar, and a client of that kind.
async fn start_large() -> (Streams, Sidecar, SendRequest<Bytes>) {
    let mut builder = Builder::new();
    builder.initial_connection_window_size(LARGE).max_header_list_size(4 << 20);
    let application = Streams::start(builder).await;
    let sidecar = sidecar_with(application.address, &[]);
    let client = connect_large(&sidecar).await;
    (application, sidecar, client)
}

async fn connect_large(sidecar: &Sidecar) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(sidecar.addresses()[0]).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(LARGE).max_header_list_size(4 << 20);
    let (client, connection) = builder.handshake(stream).await.unwrap();
    tokio::spawn(connection);
    client
}

fn respond(mut respond: SendResponse<Bytes>) -> SendStream<Bytes> {
    respond.send_response(Response::new(()), false).unwrap()
}

/// Sends data until the receiver takes no more, and then for ever.
fn send_all(mut stream: SendStream<Bytes>, bytes: usize) {
    tokio::spawn(async move {
        send(&mut stream, vec![b'a'; bytes].into()).await;
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn streams_that_the_client_does_not_read_stop_no_others() {
    let (mut application, _sidecar, mut client) = start_large().await;
    let mut unread = Vec::new();
    for _ in 1..STREAMS {
        client = within(client.ready()).await.unwrap();
        let (response, _) = client.send_request(post(), true).unwrap();
        send_all(respond(application.next().await.1), 1 << 21);
        unread.push(within(response).await.unwrap().into_body());
    }
    // Every one of them has filled its window.
    for body in &mut unread {
        within(poll_fn(|cx| {
            let is_full = body.flow_control().used_capacity() >= 65_535;
            if !is_full {
                cx.waker().wake_by_ref();
            }
            if is_full { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
        }))
        .await;
    }
    let (response, _) = client.send_request(post(), true).unwrap();
    let mut stream = respond(application.next().await.1);
    stream.send_data("small".into(), true).unwrap();
    assert_eq!(read(within(response).await.unwrap().body_mut()).await.unwrap(), b"small");
    // And what was not read is there.
    drop(unread.split_off(2));
    for mut body in unread {
        let mut length = 0;
        while length < 1 << 21 {
            let data = within(body.data()).await.unwrap().unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            length += data.len();
        }
    }
}

#[tokio::test]
async fn uploads_that_the_application_does_not_read_stop_no_others() {
    let (mut application, _sidecar, mut client) = start_large().await;
    let mut unread = Vec::new();
    for _ in 1..STREAMS {
        client = within(client.ready()).await.unwrap();
        let (response, upload) = client.send_request(post(), false).unwrap();
        send_all(upload, 1 << 21);
        let (request, respond) = application.next().await;
        let mut body = request.into_body();
        // What the application does not release fills the windows on the way.
        within(body.data()).await.unwrap().unwrap();
        unread.push((response, body, respond));
    }
    let (response, mut upload) = client.send_request(post(), false).unwrap();
    upload.send_data("small".into(), true).unwrap();
    let (mut request, mut answer) = application.next().await;
    assert_eq!(read(request.body_mut()).await.unwrap(), b"small");
    answer.send_response(Response::new(()), true).unwrap();
    assert_eq!(within(response).await.unwrap().status(), 200);
}

fn fields(bytes: usize, count: usize) -> HeaderMap {
    let value: http::HeaderValue = "a".repeat(bytes / count).parse().unwrap();
    (0..count).map(|n| (format!("x-{n}").parse::<http::HeaderName>().unwrap(), value.clone())).collect()
}

async fn trailers(body: &mut RecvStream) -> Result<HeaderMap, h2::Error> {
    read(body).await?;
    Ok(within(body.trailers()).await?.unwrap_or_default())
}

/// Calls `check` with a size, a number of fields, and whether that is within the bound.
const SIZES: [(usize, usize, bool); 11] = [
    (1 << 10, 1, true),
    (20 << 10, 1, true),
    (40 << 10, 20, true),
    (60 << 10, 1, true),
    (60 << 10, 60, true),
    (70 << 10, 1, false),
    (70 << 10, 70, false),
    (150 << 10, 1, false),
    (240 << 10, 200, false),
    (280 << 10, 1, false),
    (290 << 10, 20, false),
];

#[tokio::test]
async fn long_trailers_of_a_response_pass_or_are_an_error_of_their_stream() {
    let (mut application, _sidecar, mut client) = start_large().await;
    // A neighbour is in flight all the time.
    let (neighbour, _) = client.send_request(post(), true).unwrap();
    let mut other = respond(application.next().await.1);
    let mut neighbour = within(neighbour).await.unwrap().into_body();
    for (bytes, count, fits) in SIZES {
        let (response, _) = client.send_request(post(), true).unwrap();
        let mut stream = respond(application.next().await.1);
        let mut body = within(response).await.unwrap().into_body();
        stream.send_data("data".into(), false).unwrap();
        let sent = fields(bytes, count);
        stream.send_trailers(sent.clone()).unwrap();
        match trailers(&mut body).await {
            Ok(received) => assert!(fits && received == sent, "{bytes} in {count}: {}", received.len()),
            Err(error) => {
                assert!(!fits, "{bytes} in {count}: {error}");
                assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR), "{bytes} in {count}: {error}");
            }
        }
        other.send_data("more".into(), false).unwrap();
        assert_eq!(within(neighbour.data()).await.unwrap().unwrap(), "more", "{bytes} in {count}");
    }
}

#[tokio::test]
async fn long_trailers_of_a_request_pass_or_are_an_error_of_their_stream() {
    let (mut application, _sidecar, mut client) = start_large().await;
    for (bytes, count, fits) in SIZES {
        let (response, mut upload) = client.send_request(post(), false).unwrap();
        let (mut request, mut respond) = application.next().await;
        let sent = fields(bytes, count);
        upload.send_trailers(sent.clone()).unwrap();
        match trailers(request.body_mut()).await {
            Ok(received) => {
                assert!(fits && received == sent, "{bytes} in {count}");
                respond.send_response(Response::new(()), true).unwrap();
                assert_eq!(within(response).await.unwrap().status(), 200);
            }
            Err(error) => {
                assert!(!fits, "{bytes} in {count}: {error}");
                assert_eq!(within(response).await.unwrap().status(), 400, "{bytes} in {count}");
            }
        }
    }
}

#[tokio::test]
async fn a_long_head_of_a_response_fails_alone() {
    let (mut application, _sidecar, mut client) = start_large().await;
    let (neighbour, _) = client.send_request(post(), true).unwrap();
    let mut other = respond(application.next().await.1);
    let mut neighbour = within(neighbour).await.unwrap().into_body();
    for (bytes, count, fits) in SIZES {
        let (response, _) = client.send_request(post(), true).unwrap();
        let mut sent = Response::new(());
        *sent.headers_mut() = fields(bytes, count);
        application.next().await.1.send_response(sent, true).unwrap();
        let status = within(response).await.unwrap().status();
        assert_eq!(status, if fits { 200 } else { 502 }, "{bytes} in {count}");
        other.send_data("more".into(), false).unwrap();
        assert_eq!(within(neighbour.data()).await.unwrap().unwrap(), "more", "{bytes} in {count}");
    }
}

#[tokio::test]
async fn a_long_head_of_a_request_is_refused_alone() {
    let (mut application, _sidecar, mut client) = start_large().await;
    let (neighbour, _) = client.send_request(post(), true).unwrap();
    let mut other = respond(application.next().await.1);
    let mut neighbour = within(neighbour).await.unwrap().into_body();
    for (bytes, count) in [(31 << 10, 1), (40 << 10, 1), (100 << 10, 50), (280 << 10, 1)] {
        let mut request = post();
        *request.headers_mut() = fields(bytes, count);
        let (response, _) = client.send_request(request, true).unwrap();
        if bytes < 32 << 10 {
            application.next().await.1.send_response(Response::new(()), true).unwrap();
        }
        let expected = if bytes < 32 << 10 { 200 } else { 431 };
        assert_eq!(within(response).await.unwrap().status(), expected, "{bytes} in {count}");
        other.send_data("more".into(), false).unwrap();
        assert_eq!(within(neighbour.data()).await.unwrap().unwrap(), "more", "{bytes} in {count}");
    }
}

fn interim(status: u16) -> Response<()> {
    Response::builder().status(status).header("link", "</style.css>; rel=preload").body(()).unwrap()
}

/// Reads the statuses of a response, with informational ones.
async fn statuses(mut response: ResponseFuture) -> Vec<u16> {
    let mut statuses = Vec::new();
    while let Some(interim) = within(poll_fn(|cx| response.poll_informational(cx))).await {
        let interim = interim.unwrap();
        assert!(interim.headers().contains_key("link"));
        statuses.push(interim.status().as_u16());
    }
    statuses.push(within(response).await.unwrap().status().as_u16());
    statuses
}

#[tokio::test]
async fn informational_responses_pass() {
    let (mut application, sidecar, mut client) = start().await;
    // With a slot, the exchange with the application is a task of its own.
    let slots = r#"{"name":"slots","mode":"Enforce","onMissing":"Shared","key":[{"header":{"name":"x-api-key"}}],
        "kind":{"slots":{"max":9,"leaseMillis":30000,"abandonedForMillis":30000}}}"#;
    for limits in [vec![], vec![slots.to_owned()]] {
        if !limits.is_empty() {
            publish(&sidecar, &sluice_config::store_access::StoreChoice::Memory, &[policy(&limits)]);
        }
        let request =
            Request::post("http://shop.example/x").header("expect", "100-continue").body(()).unwrap();
        let (response, mut upload) = client.send_request(request, false).unwrap();
        let (mut request, mut respond) = application.next().await;
        assert_eq!(request.headers()["expect"], "100-continue");
        let reading = tokio::spawn(statuses(response));
        for status in [100, 103, 103] {
            respond.send_informational(interim(status)).unwrap();
            tokio::task::yield_now().await;
        }
        upload.send_data("body".into(), true).unwrap();
        assert_eq!(read(request.body_mut()).await.unwrap(), b"body");
        respond.send_response(Response::new(()), true).unwrap();
        assert_eq!(within(reading).await.unwrap(), [100, 103, 103, 200]);
    }
}

#[tokio::test]
async fn a_request_that_was_not_processed_is_sent_again_if_nothing_of_its_body_is_gone() {
    let (mut application, sidecar, mut client) = start().await;
    // Without a body, and with one that has come whole.
    for body in [None, Some("small")] {
        let (response, mut upload) = client.send_request(post(), body.is_none()).unwrap();
        if let Some(body) = body {
            upload.send_data(body.into(), true).unwrap();
        }
        for _ in 0..2 {
            application.next().await.1.send_reset(Reason::REFUSED_STREAM);
        }
        let (mut request, mut respond) = application.next().await;
        assert_eq!(read(request.body_mut()).await.unwrap(), body.unwrap_or_default().as_bytes());
        respond.send_response(Response::new(()), true).unwrap();
        assert_eq!(within(response).await.unwrap().status(), 200);
    }
    // The rest of this body is still to come, and its beginning is gone.
    let (response, mut upload) = client.send_request(post(), false).unwrap();
    upload.send_data("begin".into(), false).unwrap();
    let (mut request, mut respond) = application.next().await;
    within(request.body_mut().data()).await.unwrap().unwrap();
    respond.send_reset(Reason::REFUSED_STREAM);
    assert_eq!(within(response).await.unwrap_err().reason(), Some(Reason::REFUSED_STREAM));
    // An application that refuses everything ends it.
    let (response, _) = client.send_request(post(), true).unwrap();
    for _ in 0..3 {
        application.next().await.1.send_reset(Reason::REFUSED_STREAM);
    }
    assert_eq!(within(response).await.unwrap_err().reason(), Some(Reason::REFUSED_STREAM));
    assert_eq!(metric(&sidecar.metrics(), "sluice_upstream_errors_total{reason=\"unprocessed\"}"), 2);
}

#[tokio::test]
async fn another_error_is_not_sent_again() {
    let (mut application, _sidecar, mut client) = start().await;
    let (response, _) = client.send_request(post(), true).unwrap();
    application.next().await.1.send_reset(Reason::CANCEL);
    assert_eq!(within(response).await.unwrap().status(), StatusCode::BAD_GATEWAY);
}

#[tokio::test]
async fn no_request_is_lost_when_the_application_leaves_its_connections() {
    let (mut application, _sidecar, client) = start().await;
    tokio::spawn(async move {
        loop {
            let (_, mut respond) = application.next().await;
            let _ = respond.send_response(Response::new(()), true);
        }
    });
    // Among concurrent requests, some make the application send GOAWAY.
    for round in 0..30 {
        let requests = (0..20).map(|n| {
            let mut client = client.clone();
            async move {
                let uri = if n % 5 == 0 { "http://shop.example/leave" } else { "http://shop.example/x" };
                client = within(client.ready()).await.unwrap();
                let (response, _) = client.send_request(Request::get(uri).body(()).unwrap(), true).unwrap();
                within(response).await.unwrap().status().as_u16()
            }
        });
        let statuses = futures::future::join_all(requests).await;
        assert_eq!(statuses, [200; 20], "round {round}");
    }
}
