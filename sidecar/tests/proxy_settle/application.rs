//! An application that does what the headers of a request tell it.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, HeaderName, Request, Response};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// Starts an application that does what the headers of a request tell it: `answer-status`, `answer-NAME` for a header,
/// `answer-trailer-NAME`, `answer-body`, with `|` between the parts, and `answer-stall`, after which the body does not end.
pub(crate) async fn start() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(|request: Request<Incoming>| async {
                let (parts, body) = request.into_parts();
                if parts.headers.contains_key("answer-never") {
                    std::future::pending::<()>().await;
                }
                let _ = body.collect().await;
                Ok::<_, Infallible>(answer(&parts.headers))
            });
            tokio::spawn(async move {
                let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = builder.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

fn answer(request: &HeaderMap) -> Answer {
    let (mut headers, mut trailers) = (HeaderMap::new(), HeaderMap::new());
    let mut status = 200;
    let mut parts = Vec::new();
    for (name, value) in request {
        let Some(name) = name.as_str().strip_prefix("answer-") else { continue };
        match name {
            "status" => status = value.to_str().unwrap().parse().unwrap(),
            "body" => parts = value.to_str().unwrap().split('|').map(str::to_owned).collect(),
            "stall" => {}
            _ => {
                let (map, name) = match name.strip_prefix("trailer-") {
                    Some(name) => (&mut trailers, name),
                    None => (&mut headers, name),
                };
                map.insert(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.clone());
            }
        }
    }
    let mut frames: Vec<_> = parts.into_iter().map(|part| Frame::data(Bytes::from(part))).collect();
    if !trailers.is_empty() {
        frames.push(Frame::trailers(trailers));
    }
    let frames = futures::stream::iter(frames.into_iter().map(Ok));
    let stalls = request.contains_key("answer-stall");
    let rest = futures::stream::poll_fn(move |_| {
        if stalls { std::task::Poll::Pending } else { std::task::Poll::Ready(None) }
    });
    let mut response = Response::new(http_body_util::BodyExt::boxed(StreamBody::new(frames.chain(rest))));
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
    *response.headers_mut() = headers;
    response
}
