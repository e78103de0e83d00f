//! Bodies of requests on their way to the application. Nothing is buffered.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::task::AtomicWaker;
use h2::{FlowControl, Reason};
use http_body::{Body, Frame, SizeHint};
use tokio::sync::Notify;

use crate::http2::send::Relayed;
use crate::inbound::client_body::{ClientBody, ClientBodyError};
use crate::inbound::table::exchange::Waiting;
use crate::upstream::expectation::{Expectation, WantedBody};
use sluice_engine::UploadMeter;

/// The body of a request on its way to the application.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Empty,
    /// The whole of a body that was streamed before, to be sent again.
    Whole(Option<Bytes>),
    /// Streamed from the client.
    Streaming(ClientBody, BrokenMark, Waiting, Option<Arc<UploadMeter>>),
    /// Not read before the application wants it.
    Expected(WantedBody, Box<Self>),
    /// Broken off by the client, with this error. It stalls until the exchange has finished.
    Stalled(Option<ClientBodyError>, BrokenMark),
}

/// Set when the client broke off the body or sent invalid framing. Clones share the mark.
#[derive(Debug, Clone, Default)]
pub(crate) struct BrokenMark(Arc<Broken>);

#[derive(Debug, Default)]
struct Broken {
    is_set: AtomicBool,
    /// Whether the body then stalls, instead of ending the exchange with the application.
    stalls: bool,
    set: Notify,
    /// Whether the application has finished, or nobody waits for it any more.
    is_finished: AtomicBool,
    finished: AtomicWaker,
}

/// Tells a stalling body when it is dropped that the application has finished.
#[derive(Debug, Default)]
pub(crate) struct StallGuard(Option<BrokenMark>);

impl StallGuard {
    /// Reports whether the client broke off the body.
    pub(crate) fn is_broken(&self) -> bool {
        self.0.as_ref().is_some_and(BrokenMark::is_set)
    }
}

impl Drop for StallGuard {
    fn drop(&mut self) {
        if let Some(BrokenMark(broken)) = &self.0 {
            broken.is_finished.store(true, Ordering::Release);
            broken.finished.wake();
        }
    }
}

impl BrokenMark {
    /// Creates the mark of a body that stalls when the client breaks it off, so that the exchange goes on until the
    /// application has finished.
    pub(crate) fn stalling() -> Self {
        Self(Arc::new(Broken { stalls: true, ..Broken::default() }))
    }

    /// Returns a guard of the exchange, without which the body stalls no longer.
    pub(crate) fn guard(&self) -> StallGuard {
        StallGuard(Some(self.clone()))
    }

    /// Waits until the client has broken off a stalling body.
    pub(crate) async fn wait(&self) {
        self.0.set.notified().await;
    }

    /// Reports whether the client broke off the body or sent invalid framing.
    pub(crate) fn is_set(&self) -> bool {
        self.0.is_set.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    /// Wraps a client's body. `meter` counts it, and `waiting` creates the mark that is set while the client sends nothing.
    /// Returns the mark too, unless the body is empty and cannot break.
    pub(crate) fn new(
        body: ClientBody,
        broken: Option<BrokenMark>,
        meter: Option<Arc<UploadMeter>>,
        waiting: impl FnOnce() -> Waiting,
    ) -> (Self, Option<BrokenMark>) {
        if body.is_end_stream() {
            return (Self::Empty, None);
        }
        let broken = broken.unwrap_or_default();
        (Self::Streaming(body, broken.clone(), waiting(), meter), Some(broken))
    }

    /// Reads the body only when the application wants it.
    pub(crate) fn wanted(self, expectation: Arc<Expectation>) -> Self {
        Self::Expected(WantedBody::new(expectation), Box::new(self))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = ClientBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ClientBodyError>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Expected(wanted, body) => {
                if !ready!(wanted.poll(cx)) {
                    return Poll::Ready(Some(Err(ClientBodyError::NotWanted)));
                }
                *self = std::mem::replace(&mut **body, Self::Empty);
                self.poll_frame(cx)
            }
            Self::Stalled(error, broken) => {
                broken.0.finished.register(cx.waker());
                if !broken.0.is_finished.load(Ordering::Acquire) {
                    return Poll::Pending;
                }
                Poll::Ready(error.take().map(Err))
            }
            Self::Streaming(body, broken, waiting, meter) => {
                let frame = Pin::new(body).poll_frame(cx);
                waiting.read(&frame);
                if let (Some(meter), Poll::Ready(Some(Ok(frame)))) = (meter, &frame) {
                    meter.add(frame.data_ref().map_or(0, Bytes::len));
                }
                let Poll::Ready(Some(Err(error))) = frame else { return frame };
                broken.0.is_set.store(true, Ordering::Relaxed);
                if !broken.0.stalls {
                    return Poll::Ready(Some(Err(error)));
                }
                broken.0.set.notify_one();
                *self = Self::Stalled(Some(error), broken.clone());
                self.poll_frame(cx)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Whole(bytes) => bytes.is_none(),
            Self::Expected(_, body) => body.is_end_stream(),
            Self::Stalled(..) => false,
            Self::Streaming(body, ..) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Expected(_, body) => body.size_hint(),
            Self::Stalled(..) => SizeHint::default(),
            Self::Streaming(body, ..) => body.size_hint(),
        }
    }
}

impl Relayed for RequestBody {
    fn source(&mut self) -> Option<FlowControl> {
        match self {
            Self::Streaming(body, ..) => body.flow_control(),
            Self::Empty | Self::Whole(_) | Self::Expected(..) | Self::Stalled(..) => None,
        }
    }

    fn outlives_client(&self) -> bool {
        matches!(self, Self::Streaming(_, broken, ..) | Self::Stalled(_, broken) if broken.0.stalls)
    }

    fn reason(error: &ClientBodyError) -> Reason {
        error.reason()
    }
}
