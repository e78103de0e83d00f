//! The way of a request, from top to bottom: guard, identify, decide, then forward or reject.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::header::{CONNECTION, EXPECT};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::sync::Notify;

use crate::config::publisher::Publisher;
use crate::inbound::accept::Permit;
use crate::inbound::protocol::{Protocol, Suspicion};
use crate::inbound::validate::{self, Bad};
use crate::limit::adaptive::{of_failure, of_status};
use crate::limit::decide::{Admission, decide};
use crate::limit::delay_queue::QueueFull;
use crate::limit::held::Held;
use crate::limit::matching::MatchedLimits;
use crate::metrics::registry::Metrics;
use crate::process::drain::Watch;
use crate::respond::format::ResponseFormat;
use crate::respond::headers::{STORE_FAILURE, write_status};
use crate::upstream::body::Reply;
use crate::upstream::forward::{self, Failed};
use crate::upstream::in_flight::Busy;
use crate::upstream::pool::{Own, Pool};

/// How much of a rejected request's body is read so that its connection can go on, and for how long.
const DRAINED: u64 = 256 * 1024;
const DRAINING: Duration = Duration::from_secs(5);

/// One worker's way from one listener to one application.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) pool: Arc<Pool>,
    pub(crate) publisher: Publisher,
    pub(crate) metrics: Metrics,
    pub(crate) watch: Watch,
    /// A clone is a request at the application.
    pub(crate) busy: Busy,
}

/// What requests of one connection have in common.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) proxy: Arc<Proxy>,
    /// Who is on the other side, IPv4 as IPv4; and the same as the application is told.
    pub(crate) peer: IpAddr,
    pub(crate) forwarded_for: HeaderValue,
    /// For HTTP/2 requests.
    pub(crate) own: Own,
    pub(crate) protocol: Protocol,
    pub(crate) suspicion: Arc<Suspicion>,
    /// Requests so far.
    pub(crate) requests: AtomicU32,
    /// Told of the first.
    pub(crate) begun: Notify,
    pub(crate) permit: Arc<Permit>,
}

impl Connection {
    /// Answers a request.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Reply> {
        let mut response = self.decided(request).await;
        if self.protocol == Protocol::Http2 {
            response.headers_mut().remove(CONNECTION);
        } else if self.proxy.watch.is_closing() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    async fn decided(&self, mut request: Request<Incoming>) -> Response<Reply> {
        let format = ResponseFormat::of(&request);
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            self.begun.notify_one();
        }
        if let Err(bad) = validate::check(&mut request, self.protocol, self.suspicion.about(number)) {
            return self.bad(format, bad);
        }
        let snapshot = self.proxy.publisher.current();
        let matched = MatchedLimits::find(&snapshot, &request, self.peer);
        let (admission, mut held) = decide(snapshot.clone(), matched, self.proxy.publisher.slots()).await;
        match admission {
            Admission::Unlimited => self.forward(format, request, held).await,
            Admission::Admitted(status, delay) => {
                if let Some(delay) = delay {
                    let paused = held.pause();
                    delay.wait().await;
                    held.resume(&paused);
                }
                let mut response = self.forward(format, request, held).await;
                write_status(&status, response.headers_mut());
                response
            }
            Admission::StoreFailed { fault, deny: false } => {
                let mut response = self.forward(format, request, held).await;
                response.headers_mut().insert(STORE_FAILURE, HeaderValue::from_static(fault));
                response
            }
            Admission::StoreFailed { fault, deny: true } => self.reject(request, format.store_failed(fault)),
            Admission::QueueFull(QueueFull { limit, wait }) => {
                self.reject(request, format.queue_full(snapshot.limit(limit), wait))
            }
            Admission::Denied(status) => self.reject(request, format.denied(&status)),
            Admission::KeyMissing(limit) => self.reject(request, format.key_missing(snapshot.limit(limit))),
            Admission::Shed(limit) => self.reject(request, format.shed(snapshot.limit(limit))),
            Admission::SlotsExpired { limit, fault } => {
                self.reject(request, format.slots_expired(snapshot.limit(limit), fault))
            }
        }
    }

    async fn forward(
        &self,
        format: ResponseFormat,
        request: Request<Incoming>,
        mut held: Held,
    ) -> Response<Reply> {
        let pool = &self.proxy.pool;
        let busy = self.proxy.busy.clone();
        held.forwarding();
        let forwarded = match self.protocol {
            Protocol::Http1 => {
                let kept = (&self.permit, &mut held.slots);
                forward::http1(pool, request, &self.forwarded_for, kept).await
            }
            Protocol::Http2 => forward::http2(pool, &self.own, request, &self.forwarded_for).await,
        };
        let failed = match forwarded {
            Ok(response) => {
                held.forwarded(of_status(response.status()));
                return response.map(|body| body.until_its_end(busy, held));
            }
            Err(failed) => failed,
        };
        held.forwarded(of_failure(&failed));
        drop(held);
        self.proxy.metrics.upstream_error(failed.reason());
        let upstream = &pool.upstream;
        match failed {
            Failed::BrokenRequest => self.bad(format, Bad::Body),
            Failed::Unreachable(error) => {
                tracing::debug!(%upstream, %error, "the application cannot be reached");
                let detail = format!("The application at {upstream} cannot be reached: {error}.");
                let mut response = format.bad_gateway(&detail);
                // It may have ended: the client shall find another one.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                response
            }
            Failed::NoAnswer(error) => {
                tracing::debug!(%upstream, %error, "the application did not answer");
                format.bad_gateway(&format!("The application at {upstream} did not answer: {error}."))
            }
        }
    }

    fn bad(&self, format: ResponseFormat, bad: Bad) -> Response<Reply> {
        self.proxy.metrics.refused_request(bad.reason());
        format.invalid(bad)
    }

    /// Answers without the application. What the client still sends is read away, within bounds, so that its next
    /// request on this connection is understood; beyond them the connection ends.
    fn reject(&self, request: Request<Incoming>, mut response: Response<Reply>) -> Response<Reply> {
        if self.protocol == Protocol::Http1 && !request.body().is_end_stream() {
            if request.headers().contains_key(EXPECT) {
                // A client that waits for 100 may or may not send its body now: nobody could tell which.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            } else {
                tokio::spawn(tokio::time::timeout(DRAINING, discard(request.into_body())));
            }
        }
        response
    }
}

async fn discard(mut body: Incoming) {
    let mut left = DRAINED;
    while let Some(Ok(frame)) = body.frame().await {
        let size = frame.data_ref().map_or(0, bytes::Bytes::len) as u64;
        if size > left {
            return;
        }
        left -= size;
    }
}
