//! Serves pages over HTTP/1 to clients that may be slow, many or hostile: few connections, of which the oldest makes room for a
//! probe, and little time for a request.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::counter::Counter;
use sluice_engine::per_second::LogSampler;
use sluice_host::guard::guard;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt as _;

/// Maximum number of connections: more than kubelet, several Prometheus servers and those who ask by JSON use.
const MAX_CONNECTIONS: usize = 256;
/// Time in which a client must send a head, also the next one of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which a client must send a body, and has the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// Serves pages until the end of the process.
pub(crate) async fn serve(listener: TcpListener, pages: Router, panics: Counter) {
    let mut connections = VecDeque::<AbortOnDropHandle<()>>::new();
    let log = LogSampler::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.retain(|connection| !connection.is_finished());
                if connections.len() >= MAX_CONNECTIONS {
                    connections.pop_front();
                }
                let served = serve_connection(stream, pages.clone(), panics.clone());
                connections.push_back(AbortOnDropHandle::new(tokio::spawn(served)));
            }
            Err(error) => {
                if let Some(left_out) = log.take() {
                    tracing::warn!(%error, left_out, "a port of pages cannot accept a connection");
                }
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, pages: Router, panics: Counter) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let (pages, panics) = (pages.clone(), panics.clone());
        async move { Ok::<_, Infallible>(answer(request, pages, &panics).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!(%error, "a connection to a port of pages failed");
    }
}

async fn answer(request: Request<Incoming>, pages: Router, panics: &Counter) -> Response {
    let answering = guard(pages.oneshot(request.map(Body::new)));
    match tokio::time::timeout(ANSWER_TIMEOUT, answering).await {
        Ok(Ok(Ok(response))) => response,
        Ok(Ok(Err(never))) => match never {},
        Ok(Err(_)) => {
            panics.inc();
            (StatusCode::INTERNAL_SERVER_ERROR, "a defect of the service\n").into_response()
        }
        Err(_) => (StatusCode::REQUEST_TIMEOUT, "the request took too long\n").into_response(),
    }
}
