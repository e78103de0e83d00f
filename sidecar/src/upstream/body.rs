//! Bodies on their way through: nothing is buffered, and the request's body remembers when its client broke it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::limit::held::Held;
use crate::upstream::in_flight::Busy;
use crate::upstream::pool::Lease;

/// A request's body on its way to the application.
#[derive(Debug)]
pub(crate) enum RequestBody {
    /// None at all.
    Empty,
    /// As the client sends it.
    Streaming(Incoming, Broken),
}

/// Whether the client broke off the body that it announced, or its framing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Broken(Arc<AtomicBool>);

impl Broken {
    pub(crate) fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    /// Wraps a client's body; the mark is there if there is a body that can break.
    pub(crate) fn new(body: Incoming) -> (Self, Option<Broken>) {
        if body.is_end_stream() {
            return (Self::Empty, None);
        }
        let broken = Broken::default();
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

/// A response's body on its way to the client.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The application's, with what ends when the body has ended.
    Upstream(Incoming, UntilEnd),
    /// One of our own; `None` once it has been sent.
    Own(Option<Bytes>),
}

/// What a body keeps until it has ended.
#[derive(Debug, Default)]
pub(crate) struct UntilEnd {
    /// Goes back to the pool; dropped with a body that has not ended, it is closed.
    lease: Option<Lease>,
    busy: Option<Busy>,
    hold: Held,
}

impl UntilEnd {
    fn end(&mut self) {
        self.busy = None;
        self.hold = Held::default();
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }
}

impl Reply {
    /// The application's body; its connection goes back to the pool when it has ended.
    pub(crate) fn upstream(body: Incoming, lease: Option<Lease>) -> Self {
        Self::Upstream(body, UntilEnd { lease, ..UntilEnd::default() })
    }

    /// The request is in flight until the application's body has ended.
    pub(crate) fn until_its_end(mut self, busy: Busy, hold: Held) -> Self {
        if let Self::Upstream(body, until_end) = &mut self
            && !body.is_end_stream()
        {
            until_end.busy = Some(busy);
            until_end.hold = hold;
        }
        self
    }

    pub(crate) fn empty() -> Self {
        Self::Own(None)
    }

    pub(crate) fn own(bytes: impl Into<Bytes>) -> Self {
        Self::Own(Some(bytes.into()).filter(|bytes| !bytes.is_empty()))
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Own(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Upstream(body, until_end) => {
                let frame = Pin::new(&mut *body).poll_frame(cx);
                let ended = match &frame {
                    Poll::Ready(None) => true,
                    Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
                    _ => false,
                };
                if ended {
                    until_end.end();
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(bytes) => bytes.is_none(),
            Self::Upstream(body, _) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |b| b.len() as u64)),
            Self::Upstream(body, _) => body.size_hint(),
        }
    }
}
