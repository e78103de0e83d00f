//! The socket of a connection, which has its place as long as the socket, also when it has changed its protocol. Counts what it receives,
//! and ends a connection whose peer does not read.

use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::serve::table::Place;

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
