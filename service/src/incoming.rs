//! Bounds of a gRPC connection: the time until a caller speaks, and the bytes of questions that are not complete.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Length of the preface of HTTP/2 with the head of the frame that must follow it.
const PREFACE: usize = 33;
/// Bytes of a question that are free, as of nearly all questions.
const FREE: usize = 4 << 10;
/// Bytes that all longer questions may have together before they are complete.
const BUDGET: usize = 32 << 20;

/// Counts what is read from a stream.
#[derive(Debug)]
pub(crate) struct Counted<S> {
    stream: S,
    read: Arc<AtomicUsize>,
}

/// Tells whether a caller has begun to speak HTTP/2.
#[derive(Debug, Clone)]
pub(crate) struct Spoken(Arc<AtomicUsize>);

impl Spoken {
    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Relaxed) >= PREFACE
    }
}

impl<S> Counted<S> {
    pub(crate) fn new(stream: S) -> (Self, Spoken) {
        let read = Arc::<AtomicUsize>::default();
        (Self { stream, read: read.clone() }, Spoken(read))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Counted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        // Only the beginning matters.
        if self.read.load(Relaxed) < PREFACE {
            self.read.fetch_add(buffer.filled().len() - before, Relaxed);
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Counted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
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
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Room for questions that are not complete. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Room(Arc<Semaphore>);

impl Room {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(BUDGET)))
    }

    /// Returns a body that takes room for what it has received.
    pub(crate) fn bound(&self, body: Incoming) -> Bounded {
        Bounded { body, received: 0, taken: None, room: self.clone() }
    }
}

/// There is no room for another long question.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoRoom;

impl std::fmt::Display for NoRoom {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("too many long questions are not complete yet")
    }
}

impl std::error::Error for NoRoom {}

impl From<NoRoom> for Status {
    fn from(error: NoRoom) -> Self {
        let mut status = Self::resource_exhausted(error.to_string());
        status.set_source(std::sync::Arc::new(error));
        status
    }
}

/// The body of a question.
#[derive(Debug)]
pub(crate) struct Bounded {
    body: Incoming,
    received: usize,
    taken: Option<OwnedSemaphorePermit>,
    room: Room,
}

impl Bounded {
    fn take(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let free = FREE.saturating_sub(self.received).min(bytes);
        self.received += bytes;
        let needed = u32::try_from(bytes - free).unwrap_or(u32::MAX);
        if needed == 0 {
            return Ok(());
        }
        let more = self.room.0.clone().try_acquire_many_owned(needed);
        let more = more.map_err(|_| NoRoom)?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}

impl Body for Bounded {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        Pin::new(&mut this.body).poll_frame(context).map(|frame| {
            frame.map(|frame| {
                let frame = frame.map_err(|error| Status::unknown(error.to_string()))?;
                this.take(frame.data_ref().map_or(0, Bytes::len))?;
                Ok(frame)
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
