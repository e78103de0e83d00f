//! Bodies of requests on their way to the application. Nothing is buffered.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::task::AtomicWaker;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::Notify;

use crate::inbound::table::exchange::Waiting;
use crate::limit::settle::UploadMeter;

/// The body of a request on its way to the application.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Empty,
    /// Streamed from the client.
    Streaming(Incoming, BrokenMark, Waiting, Option<Arc<UploadMeter>>),
    /// Broken off by the client, with this error. It stalls until the exchange has finished.
    Stalled(Option<hyper::Error>, BrokenMark),
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
        body: Incoming,
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
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Empty => Poll::Ready(None),
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
            Self::Stalled(..) => false,
            Self::Streaming(body, ..) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Stalled(..) => SizeHint::default(),
            Self::Streaming(body, ..) => body.size_hint(),
        }
    }
}
