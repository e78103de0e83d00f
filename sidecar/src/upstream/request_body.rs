//! Bodies of requests on their way to the application. Nothing is buffered.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::Notify;

/// The body of a request on its way to the application.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Empty,
    /// Streamed from the client.
    Streaming(Incoming, BrokenMark),
}

/// Set when the client broke off the body or sent invalid framing. Clones share the mark.
#[derive(Debug, Clone, Default)]
pub(crate) struct BrokenMark(Arc<Broken>);

#[derive(Debug, Default)]
struct Broken {
    is_set: AtomicBool,
    /// Whether the body then never ends, instead of ending the exchange with the application.
    stalls: bool,
    set: Notify,
}

impl BrokenMark {
    /// Creates the mark of a body that stalls when the client breaks it off, so that the exchange goes on until the
    /// application has finished.
    pub(crate) fn stalling() -> Self {
        Self(Arc::new(Broken { stalls: true, ..Broken::default() }))
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
    /// Wraps a client's body. Returns the mark too, unless the body is empty and cannot break.
    pub(crate) fn new(body: Incoming, broken: Option<BrokenMark>) -> (Self, Option<BrokenMark>) {
        if body.is_end_stream() {
            return (Self::Empty, None);
        }
        let broken = broken.unwrap_or_default();
        (Self::Streaming(body, broken.clone()), Some(broken))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Streaming(body, broken) => {
                let Broken { is_set, stalls, set } = &*broken.0;
                if *stalls && is_set.load(Ordering::Relaxed) {
                    return Poll::Pending;
                }
                let frame = Pin::new(body).poll_frame(cx);
                if let Poll::Ready(Some(Err(_))) = &frame {
                    is_set.store(true, Ordering::Relaxed);
                    if *stalls {
                        set.notify_one();
                        return Poll::Pending;
                    }
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Streaming(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Streaming(body, _) => body.size_hint(),
        }
    }
}
