//! Detects whether a client speaks HTTP/1 or HTTP/2 with prior knowledge.

use std::io;

use bytes::BytesMut;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::inbound::head_timeout::HeadTimeouts;

/// The first bytes of an HTTP/2 client with prior knowledge (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Size of the first read, in bytes: usually a whole request.
const FIRST_READ: usize = 2048;

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Reads until the protocol is clear. Returns it with the bytes read so far, or `None` if the client sent too
/// little in time or closed the connection.
pub(crate) async fn detect(stream: &mut TcpStream, timeouts: HeadTimeouts) -> Option<(Protocol, BytesMut)> {
    let first_bytes = tokio::time::timeout(timeouts.idle, first_read(stream));
    let mut bytes = first_bytes.await.ok()??;
    let compare = async {
        loop {
            let received = bytes.len().min(PREFACE.len());
            if bytes[..received] != PREFACE[..received] {
                return Some(Protocol::Http1);
            }
            if received == PREFACE.len() {
                return Some(Protocol::Http2);
            }
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
    };
    let protocol = tokio::time::timeout(timeouts.head, compare).await.ok()??;
    Some((protocol, bytes))
}

/// Waits for the first bytes. Allocates no buffer before they arrive, so that silent clients take no memory.
async fn first_read(stream: &TcpStream) -> Option<BytesMut> {
    loop {
        stream.readable().await.ok()?;
        let mut bytes = BytesMut::with_capacity(FIRST_READ);
        match stream.try_read_buf(&mut bytes) {
            Ok(0) => return None,
            Ok(_) => return Some(bytes),
            // Readiness may be a false alarm.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}
