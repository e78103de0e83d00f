//! Serves an HTTP/2 connection, each request in a task of its own.
//!
//! It uses the h2 crate directly: the server of hyper passes no informational responses, and tells neither how much of a stream
//! is unread nor that it was not processed.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::header::{CONTENT_LENGTH, DATE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use crate::http2::header_blocks::{H2_LIST, LongBlocks, list_size};
use crate::http2::interim::Passing;
use crate::http2::joined_writes::JoinedWrites;
use crate::http2::receive::StreamBody;
use crate::http2::send::send_body;
use crate::http2::{CONNECTION_WINDOW, MAX_BROKEN_STREAMS, MAX_STREAMS, STREAM_WINDOW, stream_window};
use crate::inbound::client_body::ClientBody;
use crate::inbound::client_stream::ClientStream;
use crate::inbound::table::activity::Activity;
use crate::inbound::table::exchange::{Exchange, WatchedBody};
use crate::inbound::validate::HEAD_SIZE;
use crate::memory::BUDGET;
use crate::metrics::ended::EndReason;
use crate::process::serve::handler::Handler;
use crate::respond::date;
use crate::upstream::forward::Unprocessed;
use sluice_host::capacity::MAX_BUFFER;
use sluice_host::drain::DrainWatch;
use sluice_host::guard;

/// Time that a client has to take GOAWAY.
const FAREWELL: Duration = Duration::from_secs(1);
/// Interval at which a silent client is asked whether it is there, and the time that it has to answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection whose requests are answered.
struct Server {
    connection: Connection<JoinedWrites<ClientStream>, Bytes>,
    handler: Arc<Handler>,
    long_blocks: LongBlocks,
}

/// Serves a connection until it ends. Once the sidecar drains, GOAWAY ends it after its current requests. Returns the reason if
/// the sidecar ended it.
pub(super) async fn serve(
    stream: ClientStream,
    handler: Arc<Handler>,
    drain: &mut DrainWatch,
) -> Result<Option<EndReason>, h2::Error> {
    let activity = handler.activity().clone();
    let long_blocks = stream.long_blocks();
    let mut builder = Builder::new();
    builder
        .initial_window_size(stream_window())
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(STREAM_WINDOW as usize)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(H2_LIST)
        .max_local_error_reset_streams(Some(MAX_BROKEN_STREAMS));
    let mut connection = tokio::select! {
        biased;
        connection = builder.handshake(JoinedWrites::new(stream)) => connection?,
        reason = activity.ended() => return Ok(Some(reason)),
    };
    let mut keep_alive = KeepAlive::new(connection.ping_pong());
    let mut leave = pin!(leave(drain, &handler));
    let mut server = Server { connection, handler: handler.clone(), long_blocks };
    let mut shutting_down = false;
    loop {
        tokio::select! {
            biased;
            ended = server.run() => return ended.map(|()| None),
            reason = activity.ended() => {
                // The connection was polled before, so a request that has arrived is in flight now.
                if reason.spares_requests() && activity.is_busy() {
                    activity.go_on();
                    continue;
                }
                server.connection.graceful_shutdown();
                if reason.spares_requests() {
                    // The client learns which of its requests were not accepted.
                    let _ = timeout(FAREWELL, server.run()).await;
                } else {
                    // Sends GOAWAY, if the client takes it.
                    let _ = poll_fn(|cx| Poll::Ready(server.connection.poll_closed(cx))).await;
                }
                return Ok(Some(reason));
            }
            () = &mut leave, if !shutting_down => {
                shutting_down = true;
                server.connection.graceful_shutdown();
            }
            () = keep_alive.is_dead(&activity) => server.connection.abrupt_shutdown(Reason::NO_ERROR),
        }
    }
}

impl Server {
    /// Answers requests until the connection ends.
    async fn run(&mut self) -> Result<(), h2::Error> {
        while let Some(accepted) = poll_fn(|cx| self.connection.poll_accept(cx)).await {
            let (request, respond) = accepted?;
            // Here and not in the task, which runs later: the connection is busy from now on.
            let exchange = Exchange::begin(self.handler.activity().clone());
            let answer = answer(self.handler.clone(), request, respond, exchange, self.long_blocks.clone());
            // In memory of its own: a task is moved several times before it runs.
            guard::spawn(Box::pin(answer), self.handler.proxy.metrics.panics.clone());
        }
        Ok(())
    }
}

/// Answers a request. When the client resets its stream, the future that handles the request is dropped.
async fn answer(
    handler: Arc<Handler>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    exchange: Exchange,
    long_blocks: LongBlocks,
) {
    if head_size(&request) > MAX_BUFFER {
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        let detail = format_args!("it has more than {MAX_BUFFER} bytes");
        handler.proxy.note_refused(handler.connection.peer, HEAD_SIZE, &detail);
        let _ = respond.send_response(response, true);
        return;
    }
    let length = content_length(request.headers());
    let request = request.map(|stream| ClientBody::Http2(StreamBody::new(stream, length, long_blocks)));
    // In memory of its own, which is free while the body is sent.
    let response = Box::pin(async {
        // The requests of a connection may have arrived before reading stopped.
        BUDGET.ready().await;
        handler.respond(request).await
    });
    let Some(response) = run(response, &mut respond).await else { return };
    if response.extensions().get::<Unprocessed>().is_some() {
        respond.send_reset(Reason::REFUSED_STREAM);
        return;
    }
    let (mut parts, body) = response.into_parts();
    parts.extensions.clear();
    parts.headers.entry(DATE).or_insert_with(date::now);
    let is_end = body.is_end_stream();
    if !is_end && let Some(length) = body.size_hint().exact() {
        parts.headers.entry(CONTENT_LENGTH).or_insert_with(|| HeaderValue::from(length));
    }
    let stalled = handler.activity().stalled().clone();
    match respond.send_response(Response::from_parts(parts, ()), is_end) {
        Ok(stream) if !is_end => send_body(WatchedBody::new(body, exchange), stream, &stalled).await,
        Ok(_) => {}
        Err(error) => {
            tracing::debug!(%error, "a response cannot be sent");
            respond.send_reset(Reason::INTERNAL_ERROR);
        }
    }
}

/// Waits for a response, and sends informational responses before. Returns `None` once the client has reset its stream.
async fn run<R>(
    mut response: Pin<Box<impl Future<Output = R>>>,
    respond: &mut SendResponse<Bytes>,
) -> Option<R> {
    let mut passing = Passing::new();
    poll_fn(|cx| {
        let polled = passing.poll(response.as_mut(), cx, |interim| {
            // The client may have reset its stream.
            let _ = respond.send_informational(interim);
        });
        match polled {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            Poll::Pending => respond.poll_reset(cx).map(|_| None),
        }
    })
    .await
}

/// Returns the size of a request's head as HTTP/2 counts it, in bytes.
fn head_size(request: &Request<RecvStream>) -> usize {
    let uri = request.uri();
    let authority = uri.authority().map_or(0, |authority| authority.as_str().len());
    let path = uri.path_and_query().map_or(0, |path| path.as_str().len());
    list_size(request.headers()) + authority + path + 4 * 42
}

/// Returns the length that a head tells. What contradicts it is an error of the stream, which h2 finds.
fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Waits until the connection must take no more requests. While the sidecar drains but still accepts, a
/// connection may send its first request: a client whose connection ends without one would open another,
/// again and again.
async fn leave(drain: &mut DrainWatch, handler: &Handler) {
    drain.draining().await;
    tokio::select! {
        () = handler.connection.first_request() => {}
        () = drain.stopping_after_yield() => {}
    }
    tokio::task::yield_now().await;
}

/// Finds out whether a silent client is still there.
struct KeepAlive {
    ping: Option<PingPong>,
    interval: Interval,
    /// The bytes that the client had sent before.
    received: u64,
}

impl KeepAlive {
    fn new(ping: Option<PingPong>) -> Self {
        let mut interval = interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ping, interval, received: 0 }
    }

    /// Waits until the client has sent nothing for too long, not even the answer to a PING.
    async fn is_dead(&mut self, activity: &Activity) {
        loop {
            self.interval.tick().await;
            let received = activity.bytes_received();
            if std::mem::replace(&mut self.received, received) != received {
                continue;
            }
            let Some(ping) = &mut self.ping else { return std::future::pending().await };
            // It fails while an earlier one has no answer, which may still come.
            let _ = ping.send_ping(Ping::opaque());
            let pong = timeout(PING_TIMEOUT, poll_fn(|cx| ping.poll_pong(cx))).await;
            // While memory is short nothing is read.
            if pong.is_err() && activity.bytes_received() == received && !BUDGET.is_scarce() {
                return;
            }
        }
    }
}
