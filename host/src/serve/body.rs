//! The bodies of requests and answers, which tell where a request is.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};

use crate::serve::table::{Exchange, NoRoom};

/// Bytes of a body that are free, as of nearly all requests.
const FREE: usize = 4 << 10;

/// The reason why a body cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// There is no room for it.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// It did not arrive in time.
    #[error("the body did not arrive in time")]
    TimedOut,
    /// The connection failed, or the peer broke the rules of the protocol.
    #[error("the body broke off: {0}")]
    Broken(#[from] hyper::Error),
}

/// Reports whether an error is, or is due to, one of a type.
#[must_use]
pub fn is_due_to<T: Error + 'static>(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |error| (*error).source()).any(<dyn Error>::is::<T>)
}

/// The body of a request. What it has received takes room until the request is answered.
#[derive(Debug)]
pub struct Received {
    body: Incoming,
    received: usize,
    exchange: Arc<Exchange>,
    timeout: Duration,
    /// Set while the peer is waited for.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Received {
    pub(super) fn new(body: Incoming, exchange: Arc<Exchange>, timeout: Duration) -> Self {
        Self { body, received: 0, exchange, timeout, deadline: None }
    }

    fn take(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let free = FREE.saturating_sub(self.received).min(bytes);
        self.received += bytes;
        self.exchange.hand_over();
        self.exchange.take(bytes - free)
    }
}

impl Body for Received {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let taken = this.take(frame.data_ref().map_or(0, Bytes::len));
                if this.body.is_end_stream() {
                    this.exchange.complete();
                }
                Poll::Ready(Some(taken.map(|()| frame).map_err(BodyError::from)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error.into()))),
            Poll::Ready(None) => {
                this.exchange.complete();
                Poll::Ready(None)
            }
            Poll::Pending => {
                let timeout = this.timeout;
                let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(timeout)));
                deadline.as_mut().poll(context).map(|()| Some(Err(BodyError::TimedOut)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        self.exchange.complete();
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(super) struct Sent<B> {
    body: B,
    _exchange: Arc<Exchange>,
}

impl<B> Sent<B> {
    pub(super) fn new(body: B, exchange: Arc<Exchange>) -> Self {
        exchange.complete();
        exchange.send();
        Self { body, _exchange: exchange }
    }
}

impl<B: Body + Unpin> Body for Sent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
