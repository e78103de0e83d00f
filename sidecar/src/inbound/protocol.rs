//! Detects whether a client speaks HTTP/1 or HTTP/2 with prior knowledge, and reads the header of a trusted proxy before that.

use std::io;
use std::net::IpAddr;

use bytes::{Buf as _, BytesMut};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;

use crate::inbound::head_timeout::HeadTimeouts;
use crate::inbound::proxy_protocol::{self, Beginning};

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

/// The beginning of a connection.
#[derive(Debug)]
pub(crate) struct Detected {
    pub(crate) protocol: Protocol,
    /// The bytes read so far, without a header of the PROXY protocol.
    pub(crate) first_bytes: BytesMut,
    /// Address of the client that such a header reports.
    pub(crate) proxied: Option<IpAddr>,
}

/// Reads until the protocol is clear. `accepts_proxy` tells whether the connection may begin with a header of the PROXY
/// protocol. Returns `None` if the client sent too little in time, closed the connection, sent an invalid header or speaks neither.
pub(crate) async fn detect(
    stream: &mut TcpStream,
    timeouts: HeadTimeouts,
    accepts_proxy: bool,
) -> Option<Detected> {
    let first_bytes = tokio::time::timeout(timeouts.idle, first_read(stream));
    let mut bytes = first_bytes.await.ok()??;
    let mut proxied = None;
    if accepts_proxy {
        proxied = tokio::time::timeout(timeouts.head, read_proxy_header(stream, &mut bytes)).await.ok()??;
        if bytes.is_empty() {
            let first_bytes = tokio::time::timeout(timeouts.idle, first_read(stream));
            bytes = first_bytes.await.ok()??;
        }
    }
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
    Some(Detected { protocol, first_bytes: bytes, proxied })
}

/// Reads and removes a header of the PROXY protocol, if there is one. Returns the client that it reports, and `None` if it is
/// not valid.
async fn read_proxy_header(stream: &mut TcpStream, bytes: &mut BytesMut) -> Option<Option<IpAddr>> {
    loop {
        match proxy_protocol::read(bytes) {
            Beginning::Plain => return Some(None),
            Beginning::Invalid => return None,
            Beginning::Header { length, client } => {
                bytes.advance(length);
                return Some(client);
            }
            Beginning::Incomplete => {
                if stream.read_buf(bytes).await.ok()? == 0 {
                    return None;
                }
            }
        }
    }
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
