//! The path of one request, from top to bottom: validate, match, decide (perhaps after a wait), delay, forward or reject. Its slots
//! and permits are settled when the response ends.

use std::fmt::Display;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONNECTION, EXPECT, IF_RANGE, RANGE};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use sluice_engine::per_second::LogSampler;
use sluice_engine::traceparent::{TRACEPARENT, trace_id};
use sluice_engine::{Engine, Held, Refused, ResponseFormat, Reveal, Slot, attributes};
use tokio::sync::mpsc;

use crate::http2::interim::{self, Passing};
use crate::inbound::client_body::ClientBody;
use crate::inbound::protocol::Protocol;
use crate::inbound::validate::{InvalidRequest, UNPARSED, validate};
use crate::metrics::ended::EndReason;
use crate::metrics::registry::Metrics;
use crate::proxy::connection::{Connection, ConnectionPermit};
use crate::respond::failure;
use crate::upstream::forward::{self, Client, ForwardError, Forwarded, Keep, Unprocessed, complete_target};
use crate::upstream::held_exchange::{self, release_at_end};
use crate::upstream::hop_by_hop::strip_request;
use crate::upstream::in_flight::InFlightGuard;
use crate::upstream::pool::Pool;
use crate::upstream::request_body::{BrokenMark, RequestBody, StallGuard};
use crate::upstream::response_body::ResponseBody;
use sluice_engine::trace::{RequestSpan, Tracer};
use sluice_host::drain::DrainWatch;

pub(crate) mod connection;

/// Maximum number of bytes of a rejected request's body that are read and discarded.
const MAX_DISCARDED: u64 = 256 * 1024;
/// Time in which the rest of a rejected request must arrive.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason for which a request is refused that came before the first policies.
const NO_POLICIES: &str = "no_policies";

/// Returns all reasons for which requests are refused.
pub(crate) fn refusal_reasons() -> impl Iterator<Item = &'static str> {
    InvalidRequest::ALL.map(InvalidRequest::reason).into_iter().chain(UNPARSED).chain([NO_POLICIES])
}

/// The permit that an upgraded connection keeps until its client leaves, and the slots that it keeps until it ends.
#[derive(Debug)]
struct Kept {
    permit: Option<Arc<ConnectionPermit>>,
    slots: Vec<Slot>,
    abandoned_for: Duration,
    metrics: Metrics,
}

impl Keep for Kept {
    fn client_left(&mut self) {
        self.permit = None;
    }

    fn abandoned_for(&self) -> Duration {
        if self.slots.is_empty() { Duration::ZERO } else { self.abandoned_for }
    }

    fn evicted(&self, reason: EndReason) {
        self.metrics.ended_connection(reason);
    }
}

/// Handles the requests of one listener in one worker.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) pool: Arc<Pool<RequestBody>>,
    pub(crate) engine: Engine,
    pub(crate) metrics: Metrics,
    pub(crate) drain: DrainWatch,
    /// Cloned for each request that is forwarded to the application.
    pub(crate) in_flight: InFlightGuard,
    pub(crate) reveal: Reveal,
    pub(crate) logs: Arc<RequestLogs>,
    /// Makes spans of requests, if a collector is configured.
    pub(crate) tracer: Option<Arc<Tracer>>,
}

/// Logs of requests, of which each has a few lines in a second.
#[derive(Debug, Default)]
pub(crate) struct RequestLogs {
    failures: LogSampler,
    refusals: LogSampler,
}

impl Proxy {
    /// Returns the response to a request.
    pub(crate) async fn respond(
        &self,
        client: &Connection,
        mut request: Request<ClientBody>,
    ) -> Response<ResponseBody> {
        let tracer = self.tracer.as_ref();
        let mut span = tracer.and_then(|tracer| tracer.span(&mut request));
        let mut response = self.handle(client, request, span.as_deref_mut()).await;
        if let Some(mut span) = span {
            span.responded(response.status());
            response = response.map(|body| body.with_span(span));
        }
        if client.protocol == Protocol::Http2 {
            response.headers_mut().remove(CONNECTION);
        } else if self.drain.is_draining() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            close_connection(&mut response);
        }
        response
    }

    async fn handle(
        &self,
        client: &Connection,
        mut request: Request<ClientBody>,
        mut span: Option<&mut RequestSpan>,
    ) -> Response<ResponseBody> {
        let arrived = Instant::now();
        let is_http2 = client.protocol == Protocol::Http2;
        let format = ResponseFormat::of(request.method(), request.headers(), is_http2);
        let is_ambiguous = client.ambiguity.covers(client.count_request());
        if let Err(invalid) = validate(&mut request, client.protocol, is_ambiguous) {
            return reject(client, request, self.invalid(format, client.peer, invalid));
        }
        // What the application receives decides. Behind this line nothing changes but what Sluice itself adds, or what it removes because
        // of the decision.
        let upstream = self.pool.application.upstream();
        let addresses = match client.protocol {
            Protocol::Http1 => strip_request(&mut request, upstream.authority()),
            Protocol::Http2 => {
                complete_target(&mut request, upstream);
                None
            }
        };
        let stopping = || self.drain.clone().stopped();
        let attributes = || {
            let attributes = attributes(&request, client.peer, client.proxied);
            attributes.with_addresses(addresses.as_deref())
        };
        let decided = self.engine.decide(attributes, stopping).await;
        let mut answer = match decided {
            Ok(answer) => answer,
            Err(refused) => return self.refuse_by_policies(client, format, request, refused),
        };
        let latency =
            if answer.may_queue() { &self.metrics.queued_latency } else { &self.metrics.added_latency };
        latency.record(answer.decided_at() - arrived);
        if let Some(span) = &mut span {
            span.decided(&answer.summary());
        }
        if let Some(refused) = answer.refused() {
            return self.refuse_by_policies(client, format, request, refused);
        }
        if let Some(rejection) = answer.rejection(format, self.reveal) {
            return reject(client, request, rejection.map(ResponseBody::own));
        }
        // Only marks of the sidecar are forwarded.
        answer.remove_marks(request.headers_mut());
        let marks = answer.take_marks();
        if !marks.is_empty() {
            request.extensions_mut().insert(marks);
        }
        if answer.is_delayed() {
            let part = span.map(|span| span.part("sluice.delay"));
            answer.delay().await;
            drop(part);
        }
        let mut response = self.forward(client, format, request, answer.take_held()).await;
        answer.write_status(self.reveal, response.headers_mut());
        response
    }

    /// Forwards a request. Its slots and permits are released, and its charges settled, when the response ends.
    async fn forward(
        &self,
        client: &Connection,
        format: ResponseFormat,
        mut request: Request<ClientBody>,
        mut held: Held,
    ) -> Response<ResponseBody> {
        let (in_flight, trace) = (self.in_flight.clone(), request.headers().get(TRACEPARENT).cloned());
        if let Some(meter) = held.forwarding() {
            request.extensions_mut().insert(Arc::new(meter));
        }
        if held.charges.read_json() {
            // A client must not hide the cost of its requests, by a compression or by asking for a part.
            let headers = request.headers_mut();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            headers.remove(RANGE);
            headers.remove(IF_RANGE);
        }
        let forwarded = if held.is_empty() {
            let forwarded = match client.protocol {
                Protocol::Http1 => {
                    let keep = || Kept {
                        permit: Some(client.permit.clone()),
                        slots: Vec::new(),
                        abandoned_for: Duration::ZERO,
                        metrics: self.metrics.clone(),
                    };
                    forward::over_http1(&self.pool, request, client.source(), None, keep).await
                }
                Protocol::Http2 => {
                    let application = &self.pool.application;
                    forward::over_http2(application, &client.dedicated, request, client.source(), None).await
                }
            };
            release_at_end(forwarded, held, in_flight, StallGuard::default())
        } else {
            // In memory of its own, which the requests that hold nothing do not need.
            Box::pin(self.forward_held(client, request, held, in_flight)).await
        };
        forwarded.unwrap_or_else(|error| self.report_failure(format, client.peer, error, trace.as_ref()))
    }

    /// Forwards a request that holds slots or permits. The application may finish it when the client has left.
    async fn forward_held(
        &self,
        client: &Connection,
        request: Request<ClientBody>,
        mut held: Held,
        in_flight: InFlightGuard,
    ) -> Forwarded {
        let broken = BrokenMark::stalling();
        let (pool, metrics, mark) = (self.pool.clone(), self.metrics.clone(), Some(broken.clone()));
        let (peer, activity) = (client.forwarded_for.clone(), client.permit.activity().clone());
        let pinned = client.pinned.clone();
        let (mut slots, abandoned_for) = (std::mem::take(&mut held.slots), held.abandoned_for);
        let (protocol, permit, dedicated) =
            (client.protocol, Arc::downgrade(&client.permit), client.dedicated.clone());
        let exchange = async move {
            let source = Client { forwarded_for: &peer, activity: &activity, pinned: &pinned };
            let forwarded = match protocol {
                Protocol::Http1 => {
                    // An upgraded connection keeps its slots, but no permit of an adaptive limit.
                    let keep = || Kept {
                        permit: permit.upgrade(),
                        slots: std::mem::take(&mut slots),
                        abandoned_for,
                        metrics,
                    };
                    forward::over_http1(&pool, request, source, mark, keep).await
                }
                Protocol::Http2 => {
                    forward::over_http2(&pool.application, &dedicated, request, source, mark).await
                }
            };
            (forwarded, slots)
        };
        // The exchange is a task of its own, so its informational responses take a way of their own.
        let (interim, mut received) = mpsc::unbounded_channel();
        let exchange = async move {
            let (mut exchange, mut passing) = (pin!(exchange), Passing::new());
            let pass = |response| drop(interim.send(response));
            poll_fn(|cx| passing.poll(exchange.as_mut(), cx, pass)).await
        };
        let mut forwarded = pin!(held_exchange::run(exchange, held, in_flight, broken.guard()));
        loop {
            tokio::select! {
                biased;
                Some(response) = received.recv() => interim::offer(response),
                forwarded = &mut forwarded => return forwarded,
                () = broken.wait() => return Err(ForwardError::BrokenRequest),
            }
        }
    }

    /// Returns the response to a request that the application did not respond to.
    fn report_failure(
        &self,
        format: ResponseFormat,
        peer: IpAddr,
        error: ForwardError,
        trace: Option<&HeaderValue>,
    ) -> Response<ResponseBody> {
        self.metrics.upstream_error(error.reason());
        let (upstream, trace) = (self.pool.application.upstream(), trace.and_then(trace_id));
        match error {
            ForwardError::BrokenRequest => self.invalid(format, peer, InvalidRequest::Body),
            ForwardError::Unreachable(error) => {
                if let Some(left_out) = self.logs.failures.take() {
                    tracing::warn!(%upstream, %error, trace, left_out, "cannot connect to the application");
                }
                let detail = self.reveal.detail("The application cannot be reached.", || {
                    format!("Cannot connect to the application at {upstream}: {error}.")
                });
                let mut response = failure::bad_gateway(format, &detail).map(ResponseBody::own);
                // The application may have ended. A new connection may reach another pod.
                close_connection(&mut response);
                response
            }
            ForwardError::Unprocessed => {
                if let Some(left_out) = self.logs.failures.take() {
                    tracing::warn!(%upstream, trace, left_out, "the application refuses requests");
                }
                let mut response = failure::unprocessed(format).map(ResponseBody::own);
                response.extensions_mut().insert(Unprocessed);
                response
            }
            ForwardError::Stopped => failure::bad_gateway(format, "The server stops.").map(ResponseBody::own),
            ForwardError::NoResponse(error) => {
                if let Some(left_out) = self.logs.failures.take() {
                    tracing::warn!(%upstream, %error, trace, left_out, "the application sent no response");
                }
                let detail = self.reveal.detail("The application sent no valid response.", || {
                    format!("The application at {upstream} sent no valid response: {error}.")
                });
                failure::bad_gateway(format, &detail).map(ResponseBody::own)
            }
        }
    }

    /// Returns the response to a request that the policies refuse whatever its limits are.
    fn refuse_by_policies(
        &self,
        client: &Connection,
        format: ResponseFormat,
        request: Request<ClientBody>,
        refused: Refused,
    ) -> Response<ResponseBody> {
        let response = match refused {
            Refused::NoPolicies => {
                self.metrics.refused_request(NO_POLICIES);
                format.no_policies().map(ResponseBody::own)
            }
            Refused::AmbiguousPath => self.invalid(format, client.peer, InvalidRequest::AmbiguousPath),
            Refused::TooManyLimits => self.invalid(format, client.peer, InvalidRequest::TooManyLimits),
        };
        reject(client, request, response)
    }

    /// Returns the response to a request that must not be forwarded.
    fn invalid(
        &self,
        format: ResponseFormat,
        peer: IpAddr,
        invalid: InvalidRequest,
    ) -> Response<ResponseBody> {
        self.note_refused(peer, invalid.reason(), &invalid.detail());
        failure::invalid(format, invalid).map(ResponseBody::own)
    }

    /// Counts a request that is malformed or ambiguous, and logs a few of them.
    pub(crate) fn note_refused(&self, peer: IpAddr, reason: &'static str, detail: &dyn Display) {
        self.metrics.refused_request(reason);
        if let Some(left_out) = self.logs.refusals.take() {
            tracing::info!(%peer, reason, %detail, left_out, "a request is refused");
        }
    }
}

/// Responds without the application. Reads and discards the rest of the request. Over HTTP/1.1 the next request on the
/// connection can then be read. Over HTTP/2 the client can send to the end: some, curl among them, take a stream that is reset
/// before for an error, and never show the response that has come whole. If the rest is too long or takes too long, the
/// connection ends, or the stream is reset.
fn reject(
    client: &Connection,
    request: Request<ClientBody>,
    mut response: Response<ResponseBody>,
) -> Response<ResponseBody> {
    let is_last = || client.protocol == Protocol::Http1 && response.headers().contains_key(CONNECTION);
    if request.body().is_end_stream() || is_last() {
        return response;
    }
    match client.protocol {
        // A client that waits for 100 may or may not send its body now, so the end of the request is unknown.
        Protocol::Http1 if request.headers().contains_key(EXPECT) => close_connection(&mut response),
        Protocol::Http1 | Protocol::Http2 => {
            tokio::spawn(tokio::time::timeout(DISCARD_TIMEOUT, discard(request.into_body())));
        }
    }
    response
}

async fn discard(mut body: ClientBody) {
    let mut left = MAX_DISCARDED;
    while let Some(Ok(frame)) = body.frame().await {
        let size = frame.data_ref().map_or(0, Bytes::len) as u64;
        if size > left {
            return;
        }
        left -= size;
    }
}

fn close_connection(response: &mut Response<ResponseBody>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}

#[cfg(test)]
mod tests {
    use std::any::type_name;

    use sluice_engine::Answer;

    use super::*;

    /// Returns the size of the future of a method.
    fn future<A, B, C, F>(_: fn(A, B, C) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn what_is_moved_for_each_request_is_small() {
        let request = future::<&Proxy, &Connection, Request<ClientBody>, _>(Proxy::respond);
        for (name, size, bound) in [
            ("the future of a request", request, 7_200),
            (type_name::<Answer>(), size_of::<Answer>(), 1_000),
            (type_name::<Response<ResponseBody>>(), size_of::<Response<ResponseBody>>(), 160),
        ] {
            println!("{size:5} bytes: {name}");
            assert!(size <= bound, "{name} has {size} bytes, more than {bound}");
        }
    }
}
