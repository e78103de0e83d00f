//! A client's connection as hyper reads it: the bytes that told which protocol it speaks come first, and an HTTP/1
//! connection is watched for ambiguous requests ([`crate::inbound::framing`]) and for the beginning of a head.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::inbound::framing::Framing;
use crate::inbound::head_timeout::{Begun, Limits};

/// What an HTTP/2 client with prior knowledge says first (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How much of the beginning is read at once: usually a whole request.
const FIRST_READ: usize = 2048;

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// From which request on (from 0) the connection is not to be trusted.
#[derive(Debug)]
pub(crate) struct Suspicion(AtomicU32);

impl Suspicion {
    /// Whether request number `request` is not to be trusted.
    pub(crate) fn about(&self, request: u32) -> bool {
        request >= self.0.load(Ordering::Relaxed)
    }
}

/// A client's connection.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    first: BytesMut,
    framing: Option<Framing>,
    suspicion: Arc<Suspicion>,
    begun: Begun,
}

impl Wire {
    /// Reads until it is clear which protocol the client speaks. `None`: it said nothing in time, or went away.
    pub(crate) async fn open(mut stream: TcpStream, limits: Limits) -> Option<(Self, Protocol)> {
        // Who says nothing takes no memory either.
        let mut first = BytesMut::new();
        let begin = async {
            loop {
                stream.readable().await.ok()?;
                first.reserve(FIRST_READ);
                match stream.try_read_buf(&mut first) {
                    Ok(0) => return None,
                    Ok(_) => return Some(()),
                    // Readiness may be a false alarm.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => first = BytesMut::new(),
                    Err(_) => return None,
                }
            }
        };
        tokio::time::timeout(limits.idle, begin).await.ok()??;
        let tell = async {
            loop {
                let seen = first.len().min(PREFACE.len());
                if first[..seen] != PREFACE[..seen] {
                    return Some(Protocol::Http1);
                }
                if seen == PREFACE.len() {
                    return Some(Protocol::Http2);
                }
                if stream.read_buf(&mut first).await.ok()? == 0 {
                    return None;
                }
            }
        };
        let protocol = tokio::time::timeout(limits.head, tell).await.ok()??;
        let suspicion = Arc::new(Suspicion(AtomicU32::new(u32::MAX)));
        let framing = (protocol == Protocol::Http1).then(Framing::new);
        let mut wire = Self { stream, first, framing, suspicion, begun: Begun::default() };
        watch(&mut wire.framing, &wire.suspicion, &wire.begun, &wire.first);
        Some((wire, protocol))
    }

    pub(crate) fn suspicion(&self) -> Arc<Suspicion> {
        self.suspicion.clone()
    }

    pub(crate) fn begun(&self) -> Begun {
        self.begun.clone()
    }
}

fn watch(framing: &mut Option<Framing>, suspicion: &Suspicion, begun: &Begun, bytes: &[u8]) {
    let Some(watcher) = framing else { return };
    let ambiguous = watcher.read(bytes);
    begun.store(watcher.in_head(), Ordering::Relaxed);
    if let Some(request) = ambiguous {
        suspicion.0.store(request, Ordering::Relaxed);
        *framing = None;
    }
}

impl AsyncRead for Wire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.first.has_remaining() {
            let step = this.first.len().min(buf.remaining());
            buf.put_slice(&this.first.split_to(step));
            if this.first.is_empty() {
                this.first = BytesMut::new();
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        watch(&mut this.framing, &this.suspicion, &this.begun, &buf.filled()[before..]);
        read
    }
}

impl AsyncWrite for Wire {
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
