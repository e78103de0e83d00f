//! The bytes of a client, as hyper reads them. They begin with the bytes that protocol detection has read. On
//! an HTTP/1 connection they are watched for ambiguous requests and for the start of a head, on an HTTP/2
//! connection for floods of control frames.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::http2::header_blocks::LongBlocks;
use crate::http2::malformed_streams::MalformedStreams;
use crate::inbound::control_frames::ControlFrames;
use crate::inbound::framing::{AmbiguityMark, FramingWatcher};
use crate::inbound::head_timeout::HeadInProgress;
use crate::inbound::protocol::{PREFACE, Protocol};
use crate::inbound::table::activity::Activity;
use crate::memory::ReadBudget;
use crate::socket;

/// The stream of a client connection.
#[derive(Debug)]
pub(crate) struct ClientStream {
    stream: TcpStream,
    /// Bytes that were read to detect the protocol, or that encoding has made more, until hyper has read them.
    first_bytes: BytesMut,
    watch: Watch,
    activity: Arc<Activity>,
    budget: ReadBudget,
    /// `None` for HTTP/1.
    resets: Option<MalformedStreams>,
}

/// Observes the bytes of a connection.
#[derive(Debug)]
struct Watch {
    /// `None` for HTTP/2, and after an ambiguous request.
    framing: Option<FramingWatcher>,
    /// `None` for HTTP/1.
    control_frames: Option<ControlFrames>,
    ambiguity: Arc<AmbiguityMark>,
    head_in_progress: HeadInProgress,
}

impl Watch {
    /// Observes the next bytes. Returns what hyper has to read in their place, if that is something else. An error ends the
    /// connection.
    fn observe(&mut self, bytes: &[u8], activity: &Activity) -> io::Result<Option<BytesMut>> {
        if let Some(control_frames) = &mut self.control_frames
            && control_frames.read(bytes, activity.second())
        {
            return Err(io::Error::other("the client sends too many control frames"));
        }
        let Some(framing) = &mut self.framing else { return Ok(None) };
        let ambiguous = framing.read(bytes);
        let encoded = framing.encoded(bytes);
        self.head_in_progress.store(framing.in_head(), Ordering::Relaxed);
        if let Some(request) = ambiguous {
            self.ambiguity.set(request);
            self.framing = None;
        }
        Ok(encoded)
    }
}

impl ClientStream {
    /// Creates a stream that begins with `first_bytes`.
    pub(crate) fn new(
        stream: TcpStream,
        mut first_bytes: BytesMut,
        protocol: Protocol,
        activity: Arc<Activity>,
    ) -> io::Result<Self> {
        let mut watch = Watch {
            framing: (protocol == Protocol::Http1).then(FramingWatcher::new),
            control_frames: (protocol == Protocol::Http2).then(|| ControlFrames::new(PREFACE.len())),
            ambiguity: Arc::default(),
            head_in_progress: Arc::default(),
        };
        if let Some(encoded) = watch.observe(&first_bytes, &activity)? {
            first_bytes = encoded;
        }
        let budget = match protocol {
            Protocol::Http1 => ReadBudget::http1(),
            Protocol::Http2 => ReadBudget::http2(),
        };
        Ok(Self { stream, first_bytes, watch, activity, budget, resets: None })
    }

    /// Calls a function for each stream of HTTP/2 that is reset because the request is malformed. h2 tells nobody else.
    pub(crate) fn watch_resets(&mut self, note: Box<dyn Fn() + Send>) {
        self.resets = Some(MalformedStreams::new(note));
    }

    /// Returns the mark of ambiguous requests, which changes while the stream is read.
    pub(crate) fn ambiguity(&self) -> Arc<AmbiguityMark> {
        self.watch.ambiguity.clone()
    }

    /// Returns the streams of HTTP/2 whose header block is too long, which changes while the stream is read.
    pub(crate) fn long_blocks(&self) -> LongBlocks {
        self.watch.control_frames.as_ref().map(ControlFrames::long_blocks).unwrap_or_default()
    }

    fn written(
        &mut self,
        slices: &[io::IoSlice<'_>],
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Pending => self.activity.write_blocked(),
            Poll::Ready(Ok(bytes)) => {
                if let Some(resets) = &mut self.resets {
                    resets.sent(slices, *bytes);
                }
                self.activity.sent(*bytes);
                self.budget.written();
                if let Some(control_frames) = &mut self.watch.control_frames {
                    control_frames.sent(*bytes);
                }
            }
            Poll::Ready(Err(_)) => {}
        }
        written
    }

    /// Returns a flag that is set while a head has begun and not ended.
    pub(crate) fn head_in_progress(&self) -> HeadInProgress {
        self.watch.head_in_progress.clone()
    }
}

impl Drop for ClientStream {
    /// Bounds how long the kernel keeps bytes that the client does not read. They count as the sidecar's memory, and
    /// the connection no longer does.
    fn drop(&mut self) {
        if self.activity.is_cut_off() {
            // The client learns from the reset that the response is not complete.
            socket::reset(&self.stream);
        } else {
            socket::close_soon(&self.stream);
        }
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
        ready!(this.budget.poll_ready(cx));
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let bytes = &buf.filled()[before..];
        this.budget.read(bytes.len());
        this.activity.received(bytes.len());
        if let Some(mut encoded) = this.watch.observe(bytes, &this.activity)? {
            // There may be three times as many.
            buf.set_filled(before);
            buf.put_slice(&encoded.split_to(encoded.len().min(buf.remaining())));
            if !encoded.is_empty() {
                this.first_bytes = encoded;
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.written(&[io::IoSlice::new(bytes)], written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = socket::poll_write_slices(&mut this.stream, cx, slices);
        this.written(slices, written)
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
