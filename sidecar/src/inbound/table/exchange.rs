//! Notes in an [`Activity`] which of a connection's bodies wait for the client.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use h2::{FlowControl, Reason};
use http_body::{Body, Frame, SizeHint};

use crate::http2::send::Relayed;
use crate::inbound::table::activity::Activity;

/// A request in flight.
#[derive(Debug)]
pub(crate) struct Exchange(Arc<Activity>);

impl Exchange {
    pub(crate) fn begin(activity: Arc<Activity>) -> Self {
        activity.begin_exchange();
        Self(activity)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.0.end_exchange();
    }
}

/// A mark in an [`Activity`] while a body waits for the client.
#[derive(Debug)]
pub(crate) struct Waiting {
    activity: Arc<Activity>,
    is_grpc: bool,
    is_set: bool,
}

impl Waiting {
    pub(crate) fn new(activity: Arc<Activity>, is_grpc: bool) -> Self {
        Self { activity, is_grpc, is_set: false }
    }

    /// Notes the result of reading a request's body.
    pub(crate) fn read<E>(&mut self, frame: &Poll<Option<Result<Frame<Bytes>, E>>>) {
        if let Poll::Ready(Some(Ok(frame))) = frame {
            self.activity.forwarded(frame.data_ref().map_or(0, Bytes::len));
        }
        self.set(frame.is_pending());
    }

    fn set(&mut self, waits: bool) {
        if self.is_set != waits {
            self.is_set = waits;
            let counter = self.activity.counter(self.is_grpc);
            if waits {
                counter.fetch_add(1, Ordering::Relaxed);
            } else {
                counter.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// The body of a response on its way to the client. It waits for the client from the time at which a part of it is
/// taken until the next part is requested.
#[derive(Debug)]
pub(crate) struct WatchedBody<B> {
    body: B,
    waiting: Waiting,
    _exchange: Exchange,
}

impl<B: Body> WatchedBody<B> {
    pub(crate) fn new(body: B, exchange: Exchange) -> Self {
        let mut waiting = Waiting::new(exchange.0.clone(), false);
        // The first part is not requested either while the client grants no window.
        waiting.set(!body.is_end_stream());
        Self { body, waiting, _exchange: exchange }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for WatchedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &frame {
            this.waiting.activity.responded(frame.data_ref().map_or(0, Bytes::len));
        }
        this.waiting.set(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: Relayed> Relayed for WatchedBody<B> {
    fn source(&mut self) -> Option<FlowControl> {
        self.body.source()
    }

    fn outlives_client(&self) -> bool {
        self.body.outlives_client()
    }

    fn reason(error: &B::Error) -> Reason {
        B::reason(error)
    }
}
