//! Joins the writes of an HTTP/2 connection, so that frames of several streams leave in one system call.
//!
//! h2 writes each data frame of 256 bytes or more at once if the stream takes several slices. If it does not, h2 collects the
//! frames below 1 KiB with all others, and writes the payload of a longer one by itself, after what it has collected. Then what
//! it has collected waits here for that payload, or for the flush with which h2 ends.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Length up to which a write waits for the next one, in bytes.
const MAX_WAITING: usize = 4096;

/// A stream whose short writes wait for the next one, or for a flush.
#[derive(Debug)]
pub(crate) struct JoinedWrites<S> {
    stream: S,
    waiting: BytesMut,
}

impl<S> JoinedWrites<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, waiting: BytesMut::new() }
    }

    fn written(&mut self, bytes: usize) {
        self.waiting.advance(bytes);
        if self.waiting.is_empty() {
            // Frees the buffer: an idle connection has none.
            self.waiting = BytesMut::new();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for JoinedWrites<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for JoinedWrites<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.waiting.is_empty() {
            if bytes.len() > MAX_WAITING {
                return Pin::new(&mut this.stream).poll_write(cx, bytes);
            }
            this.waiting.extend_from_slice(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        loop {
            let slices = [IoSlice::new(&this.waiting), IoSlice::new(bytes)];
            let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, &slices))?;
            let waited = this.waiting.len().min(written);
            this.written(waited);
            if written == 0 || written > waited || bytes.is_empty() {
                return Poll::Ready(Ok(written - waited));
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        while !this.waiting.is_empty() {
            let written = ready!(Pin::new(&mut this.stream).poll_write(cx, &this.waiting))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            this.written(written);
        }
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.as_mut().poll_flush(cx))?;
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A connection that takes as many bytes at a time as it is told, and none at 0.
    #[derive(Default)]
    struct Connection {
        takes: std::vec::IntoIter<usize>,
        received: Vec<u8>,
        calls: usize,
    }

    impl AsyncWrite for Connection {
        fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let this = self.get_mut();
            this.calls += 1;
            let all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            let takes = this.takes.next().unwrap_or(usize::MAX).min(all.len());
            if takes == 0 && !all.is_empty() {
                return Poll::Pending;
            }
            this.received.extend(&all[..takes]);
            Poll::Ready(Ok(takes))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn write(stream: &mut JoinedWrites<Connection>, bytes: &[u8]) -> Poll<usize> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        Pin::new(stream).poll_write(&mut cx, bytes).map(Result::unwrap)
    }

    fn flush(stream: &mut JoinedWrites<Connection>) -> Poll<()> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        Pin::new(stream).poll_flush(&mut cx).map(Result::unwrap)
    }

    #[test]
    fn short_writes_leave_with_the_next_or_at_the_flush() {
        let mut stream = JoinedWrites::new(Connection::default());
        let sent = |stream: &JoinedWrites<Connection>| (stream.stream.calls, stream.stream.received.len());
        assert_eq!(write(&mut stream, b"head"), Poll::Ready(4));
        assert_eq!(sent(&stream), (0, 0));
        assert_eq!(write(&mut stream, &[b'a'; 16_384]), Poll::Ready(16_384));
        assert_eq!(sent(&stream), (1, 16_388));
        assert_eq!(write(&mut stream, b"last"), Poll::Ready(4));
        assert_eq!(flush(&mut stream), Poll::Ready(()));
        assert_eq!(flush(&mut stream), Poll::Ready(()));
        assert_eq!(sent(&stream), (2, 16_392));
    }

    proptest! {
        #[test]
        fn every_byte_arrives_once_and_in_order(
            lengths in prop::collection::vec(0_usize..10_000, 0..20),
            takes in prop::collection::vec(0_usize..9_000, 0..60),
        ) {
            let mut stream = JoinedWrites::new(Connection { takes: takes.into_iter(), ..Connection::default() });
            let sent: Vec<u8> = (0..lengths.iter().sum()).map(|n: usize| (n % 251) as u8).collect();
            let mut rest = &sent[..];
            for length in lengths {
                let (mut bytes, next) = rest.split_at(length);
                rest = next;
                while !bytes.is_empty() {
                    if let Poll::Ready(written) = write(&mut stream, bytes) {
                        prop_assert!(written > 0);
                        bytes = &bytes[written..];
                    }
                }
            }
            while flush(&mut stream).is_pending() {}
            prop_assert!(stream.stream.received == sent);
        }
    }
}
