//! The bytes of an application, as hyper reads them: within the memory budget.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::http2::frames::Frames;
use crate::http2::header_blocks::{HeaderBlocks, LongBlocks};
use crate::memory::ReadBudget;
use crate::socket;

/// The stream of a connection to the application.
#[derive(Debug)]
pub(crate) struct ApplicationStream {
    stream: TcpStream,
    budget: ReadBudget,
    /// `None` for HTTP/1.
    frames: Option<(Frames, HeaderBlocks)>,
    /// Whether the application takes no more bytes. Its response may still be there to be read.
    is_deaf: bool,
    /// Whether the application sends no more bytes.
    has_ended: bool,
}

impl ApplicationStream {
    /// Wraps a connection for HTTP/1.
    pub(crate) fn http1(stream: TcpStream) -> Self {
        Self { stream, budget: ReadBudget::http1(), frames: None, is_deaf: false, has_ended: false }
    }

    /// Wraps a connection for HTTP/2. Also returns the streams whose header block is too long, which changes while it is read.
    pub(crate) fn http2(stream: TcpStream) -> (Self, LongBlocks) {
        let blocks = HeaderBlocks::default();
        let long = blocks.long();
        let frames = Some((Frames::new(0), blocks));
        (Self { stream, budget: ReadBudget::http2(), frames, is_deaf: false, has_ended: false }, long)
    }

    /// Discards bytes for which the application has no ear, as long as it may still send something.
    fn discarded(&self, bytes: usize) -> Option<io::Result<usize>> {
        let result = if self.has_ended { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes) };
        self.is_deaf.then_some(result)
    }

    /// Notes the result of a write of so many bytes. An application may respond and close before it has read a request: the
    /// rest is then discarded, so that its response is read and not lost in an error.
    fn written(&mut self, written: Poll<io::Result<usize>>, bytes: usize) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Err(error)) if self.frames.is_none() && !self.has_ended && is_closed(&error) => {
                self.is_deaf = true;
                Poll::Ready(Ok(bytes))
            }
            written => written,
        }
    }
}

/// Reports whether the other end has closed the connection.
fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted
    )
}

impl AsyncRead for ApplicationStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.budget.poll_ready(cx));
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        let bytes = &buf.filled()[before..];
        this.has_ended |= read.is_ready() && bytes.is_empty() && buf.remaining() > 0;
        this.budget.read(bytes.len());
        if let Some((frames, blocks)) = &mut this.frames {
            frames.read(bytes, |frame| blocks.frame(frame));
        }
        read
    }
}

impl AsyncWrite for ApplicationStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if let Some(discarded) = this.discarded(bytes.len()) {
            return Poll::Ready(discarded);
        }
        this.budget.written();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(written, bytes.len())
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let bytes = slices.iter().map(|slice| slice.len()).sum();
        if let Some(discarded) = this.discarded(bytes) {
            return Poll::Ready(discarded);
        }
        this.budget.written();
        let written = socket::poll_write_slices(&mut this.stream, cx, slices);
        this.written(written, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
