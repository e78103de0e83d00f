//! The bytes of a client, as hyper reads them. They begin with the bytes that protocol detection has read. On
//! an HTTP/1 connection they are watched for ambiguous requests and for the start of a head.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::inbound::framing::{AmbiguityMark, FramingWatcher};
use crate::inbound::head_timeout::HeadInProgress;
use crate::inbound::protocol::Protocol;

/// The stream of a client connection.
#[derive(Debug)]
pub(crate) struct ClientStream {
    stream: TcpStream,
    /// Bytes that were read to detect the protocol, until hyper has read them.
    first_bytes: BytesMut,
    watch: Watch,
}

/// Observes the bytes of an HTTP/1 connection.
#[derive(Debug)]
struct Watch {
    /// `None` for HTTP/2, and after an ambiguous request.
    framing: Option<FramingWatcher>,
    ambiguity: Arc<AmbiguityMark>,
    head_in_progress: HeadInProgress,
}

impl Watch {
    fn observe(&mut self, bytes: &[u8]) {
        let Some(framing) = &mut self.framing else { return };
        let ambiguous = framing.read(bytes);
        self.head_in_progress.store(framing.in_head(), Ordering::Relaxed);
        if let Some(request) = ambiguous {
            self.ambiguity.set(request);
            self.framing = None;
        }
    }
}

impl ClientStream {
    /// Creates a stream that begins with `first_bytes`.
    pub(crate) fn new(stream: TcpStream, first_bytes: BytesMut, protocol: Protocol) -> Self {
        let framing = (protocol == Protocol::Http1).then(FramingWatcher::new);
        let mut watch = Watch { framing, ambiguity: Arc::default(), head_in_progress: Arc::default() };
        watch.observe(&first_bytes);
        Self { stream, first_bytes, watch }
    }

    /// Returns the mark of ambiguous requests, which changes while the stream is read.
    pub(crate) fn ambiguity(&self) -> Arc<AmbiguityMark> {
        self.watch.ambiguity.clone()
    }

    /// Returns a flag that is set while a head has begun and not ended.
    pub(crate) fn head_in_progress(&self) -> HeadInProgress {
        self.watch.head_in_progress.clone()
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.first_bytes.has_remaining() {
            let step = this.first_bytes.len().min(buf.remaining());
            buf.put_slice(&this.first_bytes.split_to(step));
            if this.first_bytes.is_empty() {
                // Frees the buffer.
                this.first_bytes = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.watch.observe(&buf.filled()[before..]);
        read
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
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
