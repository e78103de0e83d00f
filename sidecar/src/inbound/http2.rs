//! Serves an HTTP/2 connection.

use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::metrics::counter::Counter;
use tokio::time::timeout;

use crate::capacity::{CONNECTION_WINDOW, MAX_BUFFER, STREAM_WINDOW};
use crate::inbound::client_stream::ClientStream;
use crate::inbound::drain::DrainWatch;
use crate::inbound::guard;
use crate::inbound::table::activity::{Activity, EndReason};

/// Maximum number of concurrent streams of a connection, as in hyper.
const MAX_STREAMS: u32 = 200;
/// Time that a client has to take GOAWAY.
const FAREWELL: Duration = Duration::from_secs(1);
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// Runs the exchanges of a connection, of which a panic ends one.
#[derive(Clone)]
struct GuardedExecutor(Counter);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for GuardedExecutor {
    fn execute(&self, future: F) {
        guard::spawn(future, self.0.clone());
    }
}

/// Serves a connection until it ends. Once the sidecar drains, GOAWAY ends it after its current requests.
/// `first_request` completes when the connection has had one. Returns the reason if the sidecar ended it.
pub(super) async fn serve<S, B>(
    stream: ClientStream,
    service: S,
    first_request: impl Future<Output = ()> + Send,
    drain: &mut DrainWatch,
    activity: &Activity,
    panics: Counter,
) -> hyper::Result<Option<EndReason>>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible> + Send,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
    S::Future: Send + 'static,
{
    let connection = http2::Builder::new(GuardedExecutor(panics))
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_BUFFER as u32)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let mut leave = pin!(leave(drain, first_request));
    let mut shutting_down = false;
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => return ended.map(|()| None),
            reason = activity.ended() => {
                // The connection was polled before, so a request that has arrived is in flight now.
                if reason.spares_requests() && activity.is_busy() {
                    activity.go_on();
                    continue;
                }
                connection.as_mut().graceful_shutdown();
                if reason.spares_requests() {
                    // The client learns which of its requests were not accepted.
                    let _ = timeout(FAREWELL, connection.as_mut()).await;
                } else {
                    // Sends GOAWAY, if the client takes it.
                    let _ = futures::poll!(connection.as_mut());
                }
                return Ok(Some(reason));
            }
            () = &mut leave, if !shutting_down => {
                shutting_down = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Waits until the connection must take no more requests. While the sidecar drains but still accepts, a
/// connection may send its first request: a client whose connection ends without one would open another,
/// again and again.
async fn leave(drain: &mut DrainWatch, first_request: impl Future<Output = ()>) {
    drain.draining().await;
    tokio::select! {
        () = first_request => {}
        () = drain.stopping_after_yield() => {}
    }
    tokio::task::yield_now().await;
}
