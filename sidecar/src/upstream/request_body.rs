//! Bodies of requests on their way to the application. Nothing is buffered.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// The body of a request on its way to the application.
#[derive(Debug)]
pub(crate) enum RequestBody {
    Empty,
    /// Streamed from the client.
    Streaming(Incoming, BrokenMark),
}

/// Set when the client broke off the body or sent invalid framing. Clones share the mark.
#[derive(Debug, Clone, Default)]
pub(crate) struct BrokenMark(Arc<AtomicBool>);

impl BrokenMark {
    /// Reports whether the client broke off the body or sent invalid framing.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    /// Wraps a client's body. Returns the mark too, unless the body is empty and cannot break.
    pub(crate) fn new(body: Incoming) -> (Self, Option<BrokenMark>) {
        if body.is_end_stream() {
            return (Self::Empty, None);
        }
        let broken = BrokenMark::default();
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
                let frame = Pin::new(body).poll_frame(cx);
                if let Poll::Ready(Some(Err(_))) = &frame {
                    broken.0.store(true, Ordering::Relaxed);
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
