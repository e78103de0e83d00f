//! The applications behind the sidecar.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use super::shapes::Application;
use crate::support::frames;

type Body = BoxBody<Bytes, std::convert::Infallible>;

/// Starts an application.
pub(crate) async fn start(application: Application) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            tokio::spawn(async move {
                if application == Application::NoWindow {
                    let _ =
                        stream.write_all(&frames::frame(frames::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await;
                    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
                    return;
                }
                let service = service_fn(move |request| respond(application, request));
                let mut builder = auto::Builder::new(TokioExecutor::new());
                // What it does not read takes no room from what it reads.
                builder.http2().initial_connection_window_size(1 << 30).initial_stream_window_size(1 << 16);
                let _ = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

async fn respond(
    application: Application,
    mut request: http::Request<hyper::body::Incoming>,
) -> Result<Response<Body>, std::convert::Infallible> {
    let empty = || Full::default().boxed();
    let is_small = request.uri().path() == "/small";
    if application == Application::Silent && !is_small {
        std::future::pending::<()>().await;
    }
    if application == Application::Endless && !is_small {
        let chunk = Bytes::from_static(&[b'a'; 16_384]);
        let chunks = futures::stream::repeat_with(move || Ok(Frame::data(chunk.clone())));
        return Ok(Response::new(StreamBody::new(chunks).boxed()));
    }
    if request.headers().contains_key("upgrade") {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            if let Ok(upgraded) = upgrade.await {
                let _ = tokio::io::copy(&mut TokioIo::new(upgraded), &mut tokio::io::sink()).await;
            }
        });
        let mut response = Response::new(empty());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("connection", "upgrade".parse().unwrap());
        response.headers_mut().insert("upgrade", "echo".parse().unwrap());
        return Ok(response);
    }
    let _ = request.into_body().collect().await;
    Ok(Response::new(empty()))
}
