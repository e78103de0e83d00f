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

use crate::serve::table::NoRoom;
use crate::serve::table::exchange::Exchange;

/// The reason why a body cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// There is no room for it.
    #[error("{0}")]
    NoRoom(#[from] NoRoom),
    /// It did not arrive in time.
    #[error("the body did not arrive in time")]
    TimedOut,
    /// The connection failed, or the peer broke the rules of the protocol.
    #[error("the body broke off: {0}")]
    Broken(#[from] hyper::Error),
}

/// Returns the error of a type that an error is, or is due to.
#[must_use]
pub fn cause<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    std::iter::successors(Some(error), |error| (*error).source()).find_map(<dyn Error>::downcast_ref)
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
        let free = self.exchange.free().saturating_sub(self.received).min(bytes);
        self.received += bytes;
        self.exchange.hand_over(!self.body.is_end_stream());
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
            // A stream in both directions lasts as long as both like.
            Poll::Pending if this.exchange.is_sending() => Poll::Pending,
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

/// The body of an answer. It waits for the client to read until it is asked for more than there is.
#[derive(Debug)]
pub(super) struct Sent<B> {
    body: B,
    exchange: Arc<Exchange>,
    is_unread: bool,
}

impl<B: Body> Sent<B> {
    pub(super) fn new(body: B, exchange: Arc<Exchange>) -> Self {
        exchange.complete();
        exchange.send();
        let is_unread = !body.is_end_stream();
        exchange.set_unread(false, is_unread);
        Self { body, exchange, is_unread }
    }
}

impl<B> Drop for Sent<B> {
    fn drop(&mut self) {
        self.exchange.set_unread(self.is_unread, false);
    }
}

impl<B: Body + Unpin> Body for Sent<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let poll = Pin::new(&mut self.body).poll_frame(context);
        self.exchange.set_unread(self.is_unread, poll.is_ready());
        self.is_unread = poll.is_ready();
        if !self.body.is_end_stream() {
            self.exchange.go();
        }
        poll
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
