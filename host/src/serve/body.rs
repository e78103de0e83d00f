//! The socket of a connection, which has its place as long as the socket, also when it has changed its protocol; and the bodies of its
//! requests and answers, which tell where a request is. What they receive is counted.

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use super::table::exchange::Exchange;
use super::table::{NoRoom, Place};

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

/// Bytes that may be received without a request being complete, as of nearly all heads. More take room.
const FREE: usize = 16 << 10;
/// Longest time in which a peer reads nothing of what is sent to it.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// A socket that is counted.
#[derive(Debug)]
pub(super) struct CountedStream {
    stream: TcpStream,
    place: Place,
    /// Bytes since something was handed over, and the room that was taken for them.
    pending: usize,
    taken: usize,
    handed_over: u32,
    /// Set while the peer does not read.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl CountedStream {
    pub(super) fn new(stream: TcpStream, place: Place) -> Self {
        Self { stream, place, pending: 0, taken: 0, handed_over: 0, stalled: None }
    }

    fn received(&mut self, bytes: usize) -> io::Result<()> {
        let connection = &self.place.0;
        let handed_over = connection.handed_over.load(Relaxed);
        if handed_over != self.handed_over {
            self.handed_over = handed_over;
            connection.release(std::mem::take(&mut self.taken));
            self.pending = 0;
        }
        // Only this task writes it.
        connection.received.store(connection.received.load(Relaxed) + bytes, Relaxed);
        self.pending += bytes;
        if self.pending > FREE {
            connection.take(bytes).map_err(io::Error::other)?;
            self.taken += bytes;
        }
        Ok(())
    }

    fn written<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.stalled = None;
            return poll;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        if stalled.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }
}

impl Drop for CountedStream {
    fn drop(&mut self) {
        self.place.0.release(self.taken);
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = poll {
            self.received(buffer.filled().len() - before)?;
        }
        poll
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, poll)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

pin_project! {
    /// Polls a future when it is woken. What a connection waits for beside its requests costs them nothing so.
    pub(super) struct WhenWoken<F> {
        #[pin]
        future: F,
        state: Arc<WakeState>,
        waker: Waker,
        // The task that is woken, as in the state.
        task: Waker,
    }
}

#[derive(Debug)]
struct WakeState {
    is_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl WakeState {
    fn task(&self) -> MutexGuard<'_, Waker> {
        self.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for WakeState {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Release);
        self.task().wake_by_ref();
    }
}

impl<F> WhenWoken<F> {
    pub(super) fn new(future: F) -> Self {
        let task = Waker::noop();
        let state = Arc::new(WakeState { is_woken: AtomicBool::new(true), task: Mutex::new(task.clone()) });
        Self { future, waker: state.clone().into(), state, task: task.clone() }
    }
}

impl<F: Future> Future for WhenWoken<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        // Before the flag is looked at, so that no wake is lost in between.
        if !this.task.will_wake(context.waker()) {
            this.task.clone_from(context.waker());
            this.state.task().clone_from(context.waker());
        }
        if !this.state.is_woken.load(Acquire) || !this.state.is_woken.swap(false, AcqRel) {
            return Poll::Pending;
        }
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn it_is_polled_at_first_and_when_it_is_woken() {
        let (send, receive) = oneshot::channel();
        let mut polls = 0;
        let mut receive = Box::pin(receive);
        let counted = std::future::poll_fn(|context| {
            polls += 1;
            receive.as_mut().poll(context)
        });
        let mut future = Box::pin(WhenWoken::new(counted));
        for _ in 0..9 {
            assert!(future.as_mut().now_or_never().is_none());
        }
        send.send(5).unwrap();
        assert_eq!(future.as_mut().now_or_never(), Some(Ok(5)));
        drop(future);
        assert_eq!(polls, 2);
    }
}
