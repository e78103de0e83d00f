//! Bodies of responses on their way to the client. Nothing is buffered.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{FlowControl, Reason};
use http_body::{Body, Frame, SizeHint};
use tokio::runtime::Handle;

use crate::http2::send::Relayed;
use crate::upstream::abandoned::Abandoned;
use crate::upstream::application::body::{ApplicationBody, ExchangeError};
use crate::upstream::in_flight::InFlightGuard;
use crate::upstream::pool::PooledConnection;
use crate::upstream::request_body::{RequestBody, StallGuard};
use sluice_engine::Held;
use sluice_engine::trace::RequestSpan;

/// The body of a response on its way to the client.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// Streamed from the application. Boxed, because a response is moved several times on its way to the client.
    Upstream(Box<UpstreamBody>),
    /// Written by the sidecar; `None` once it has been sent.
    Own(Option<Bytes>),
}

/// A body that is streamed from the application.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    /// Taken when this is dropped.
    body: Option<ApplicationBody>,
    released_at_end: ReleasedAtEnd,
}

/// Resources that a response occupies until its body ends or is dropped.
#[derive(Debug, Default)]
struct ReleasedAtEnd {
    /// Returned to the pool at the end of the body. Closed if the body is dropped before.
    connection: Option<PooledConnection<RequestBody>>,
    in_flight: Option<InFlightGuard>,
    held: Held,
    /// Set if the client had left before the response came.
    abandoned: Option<Abandoned>,
    stall: StallGuard,
    /// Ends with the body, if the request is traced.
    span: Option<Box<RequestSpan>>,
}

impl ReleasedAtEnd {
    fn release(&mut self) {
        self.span = None;
        self.in_flight = None;
        self.held.charges.end();
        self.held = Held::default();
        let stall = std::mem::take(&mut self.stall);
        // A connection in the middle of a request cannot take another.
        if let Some(connection) = self.connection.take().filter(|_| !stall.is_broken()) {
            connection.give_back();
        }
    }
}

impl ResponseBody {
    /// Wraps the application's body. Its connection returns to the pool at the end of the body.
    pub(crate) fn upstream(body: ApplicationBody, connection: Option<PooledConnection<RequestBody>>) -> Self {
        let released_at_end = ReleasedAtEnd { connection, ..ReleasedAtEnd::default() };
        Self::Upstream(Box::new(UpstreamBody { body: Some(body), released_at_end }))
    }

    /// Keeps the request in flight, with its slots and permits, until the application's body has ended. Then its charges are
    /// settled.
    pub(crate) fn hold_until_end(
        mut self,
        in_flight: InFlightGuard,
        mut held: Held,
        stall: StallGuard,
    ) -> Self {
        if let Some(released_at_end) = self.unended() {
            released_at_end.in_flight = Some(in_flight);
            released_at_end.held = held;
            released_at_end.stall = stall;
        } else {
            held.charges.end();
        }
        self
    }

    /// Lets the span of a request end with the application's body. The sidecar's own responses end it at once.
    pub(crate) fn with_span(mut self, span: Box<RequestSpan>) -> Self {
        if let Some(released_at_end) = self.unended() {
            released_at_end.span = Some(span);
        }
        self
    }

    /// Returns what the end of the application's body releases, unless it has ended.
    fn unended(&mut self) -> Option<&mut ReleasedAtEnd> {
        let Self::Upstream(upstream) = self else { return None };
        let has_ended = upstream.body.as_ref().is_none_or(ApplicationBody::is_end_stream);
        (!has_ended).then_some(&mut upstream.released_at_end)
    }

    /// Drops the body of a response whose client has left. `abandoned` tells since when.
    pub(crate) fn abandon(mut self, abandoned: Option<Abandoned>) {
        if let Self::Upstream(upstream) = &mut self {
            upstream.released_at_end.abandoned = abandoned;
        }
    }

    /// Creates an empty body.
    pub(crate) fn empty() -> Self {
        Self::Own(None)
    }

    /// Creates a body of these bytes.
    pub(crate) fn own(bytes: impl Into<Bytes>) -> Self {
        Self::Own(Some(bytes.into()).filter(|bytes| !bytes.is_empty()))
    }
}

impl Drop for ResponseBody {
    /// Reads the body to its end, or until it has been abandoned for too long, if the request still holds anything.
    fn drop(&mut self) {
        let Self::Upstream(upstream) = self else { return };
        let UpstreamBody { body, released_at_end } = &mut **upstream;
        if let Some(mut span) = released_at_end.span.take() {
            span.cut();
        }
        // What the client does not receive changes no charge.
        drop(std::mem::take(&mut released_at_end.held.charges));
        if released_at_end.held.is_empty() {
            return;
        }
        let mut released = std::mem::take(released_at_end);
        let abandoned = released.abandoned.take().or_else(|| Abandoned::now(released.held.abandoned_for));
        // Without a runtime the process is about to end.
        if let (Some(body), Some(abandoned), Ok(runtime)) = (body.take(), abandoned, Handle::try_current()) {
            runtime.spawn(async move {
                if abandoned.discard(body).await {
                    released.release();
                }
            });
        }
    }
}

impl UpstreamBody {
    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        let Self { body, released_at_end } = self;
        let Some(body) = body else { return Poll::Ready(None) };
        let frame = Pin::new(&mut *body).poll_frame(cx);
        let ended = match &frame {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
            _ => false,
        };
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && !released_at_end.held.charges.is_empty()
        {
            released_at_end.held.charges.frame(frame);
        }
        if ended {
            released_at_end.release();
        }
        frame
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = ExchangeError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ExchangeError>>> {
        match self.get_mut() {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upstream(upstream) => upstream.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(upstream) => upstream.body.as_ref().is_none_or(ApplicationBody::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Upstream(upstream) => {
                upstream.body.as_ref().map(ApplicationBody::size_hint).unwrap_or_default()
            }
        }
    }
}

impl Relayed for ResponseBody {
    fn source(&mut self) -> Option<FlowControl> {
        match self {
            Self::Own(_) => None,
            Self::Upstream(upstream) => upstream.body.as_mut().and_then(ApplicationBody::flow_control),
        }
    }

    fn outlives_client(&self) -> bool {
        false
    }

    fn reason(error: &ExchangeError) -> Reason {
        match error.reason() {
            // It is the application's fault, and not the client's.
            Reason::PROTOCOL_ERROR => Reason::INTERNAL_ERROR,
            reason => reason,
        }
    }
}
