//! HTTP/2 frames, written by hand.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::mpsc;

use super::TEST_TIMEOUT;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;
pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// Returns a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// Returns the header block of a request: `GET http://a/`, or POST, which indexes of the static table name.
pub(crate) fn head() -> Vec<u8> {
    let mut head = vec![0x80 | 3, 0x80 | 6, 0x80 | 4];
    // :authority without indexing.
    head.extend([0x01, 1, b'a']);
    head
}

/// Returns a literal header without indexing.
pub(crate) fn header(name: &[u8], value: &[u8]) -> Vec<u8> {
    literal(0x00, name, value)
}

/// Returns a literal header that enters the dynamic table, as its entry 62.
pub(crate) fn indexed_header(name: &[u8], value: &[u8]) -> Vec<u8> {
    literal(0x40, name, value)
}

fn literal(kind: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    for text in [name, value] {
        // The length is an integer with a prefix of 7 bits (RFC 7541, 5.1).
        let mut length = text.len();
        if length < 127 {
            bytes.push(length as u8);
        } else {
            bytes.push(127);
            length -= 127;
            while length >= 128 {
                bytes.push(128 | (length % 128) as u8);
                length /= 128;
            }
            bytes.push(length as u8);
        }
        bytes.extend(text);
    }
    bytes
}

/// Returns a POST request on a stream.
pub(crate) fn request(stream: u32, ends: bool) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | if ends { END_STREAM } else { 0 }, stream, &head())
}

/// A connection on which frames are written by hand. What is received is read all the time.
pub(crate) struct Raw {
    writer: OwnedWriteHalf,
    /// Kind, stream and payload of the frames that were received.
    frames: mpsc::UnboundedReceiver<(u8, u32, Vec<u8>)>,
}

impl Raw {
    /// Connects and sends the preface with empty settings.
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        let (mut reader, writer) = TcpStream::connect(address).await.unwrap().into_split();
        let (sender, frames) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let mut header = [0; 9];
                reader.read_exact(&mut header).await?;
                let [a, b, c, kind, _, stream @ ..] = header;
                let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
                reader.read_exact(&mut payload).await?;
                if sender.send((kind, u32::from_be_bytes(stream), payload)).is_err() {
                    return io::Result::Ok(());
                }
            }
        });
        let mut raw = Self { writer, frames };
        raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        raw.send(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        raw
    }

    /// Sends bytes. Fails if the other side has ended the connection.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        tokio::time::timeout(TEST_TIMEOUT, self.writer.write_all(bytes)).await.expect("not accepted in time")
    }

    /// Returns the next frame, or `None` at the end of the connection.
    pub(crate) async fn next(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        tokio::time::timeout(TEST_TIMEOUT, self.frames.recv()).await.expect("no frame in time")
    }

    /// Waits until the connection ends.
    pub(crate) async fn closed(&mut self) {
        while self.next().await.is_some() {}
    }

    /// Waits until a stream or the connection is refused: by a reset, GOAWAY or an error status.
    pub(crate) async fn refused(&mut self, of: u32) {
        while let Some((kind, stream, payload)) = self.next().await {
            match kind {
                RST_STREAM if stream == of => return,
                GOAWAY => return,
                // The status 431 is a literal with an indexed name; 200 is the index 8.
                HEADERS if stream == of => {
                    assert!(payload.windows(3).any(|bytes| bytes == b"431") || payload[0] != 0x88);
                    return;
                }
                _ => {}
            }
        }
    }
}
