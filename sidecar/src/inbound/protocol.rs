//! Detects whether a client speaks HTTP/1 or HTTP/2 with prior knowledge.

use std::io;

use bytes::BytesMut;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::inbound::head_timeout::HeadTimeouts;

/// The first bytes of an HTTP/2 client with prior knowledge (RFC 9113, 3.4).
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Size of the first read, in bytes: usually a whole request.
const FIRST_READ: usize = 2048;

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Reads until the protocol is clear. Returns it with the bytes read so far, or `None` if the client sent too
/// little in time, closed the connection or speaks neither.
pub(crate) async fn detect(stream: &mut TcpStream, timeouts: HeadTimeouts) -> Option<(Protocol, BytesMut)> {
    let first_bytes = tokio::time::timeout(timeouts.idle, first_read(stream));
    let mut bytes = first_bytes.await.ok()??;
    let compare = async {
        loop {
            let received = bytes.len().min(PREFACE.len());
            if bytes[..received] != PREFACE[..received] {
                return may_be_http1(&bytes).then_some(Protocol::Http1);
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

/// Reports whether a request of HTTP/1 may begin so. Otherwise there is no response that the client would understand:
/// an HTTP/2 client whose preface is wrong expects the end of the connection (RFC 9113, 3.4).
fn may_be_http1(bytes: &[u8]) -> bool {
    // Empty lines before a request are skipped (RFC 9112, 2.2).
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    match lines.find(|line| !line.trim_ascii().is_empty()) {
        Some(line) if line.ends_with(b"\n") => {
            memchr::memmem::find(line, b" HTTP/").is_some() && !line.starts_with(b"PRI * HTTP/2")
        }
        // The line has not ended yet.
        _ => true,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complete_first_line_must_be_a_request_line() {
        for good in
            ["GET / HTTP/1.1\r\nhost: a", "\r\n\r\nGET / HTTP/1.0\n", "GET /", "", "\r\n", "PRI * HTTP/2.0\r"]
        {
            assert!(may_be_http1(good.as_bytes()), "{good:?}");
        }
        for bad in
            ["INVALID CONNECTION PREFACE\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nXX", "GET /\r\n", "\r\nx\r\n"]
        {
            assert!(!may_be_http1(bad.as_bytes()), "{bad:?}");
        }
    }
}
