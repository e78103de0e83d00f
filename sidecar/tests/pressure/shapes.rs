//! The shapes of pressure, as bytes.

use crate::support::frames::*;

/// Clients that all do the same.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    /// Number of concurrent connections.
    pub(crate) connections: u32,
    /// Sent at the beginning of a connection.
    pub(crate) first: Vec<u8>,
    /// Sent again and again, with the number of the repetition. Nothing is sent if it is empty.
    pub(crate) again: fn(u32) -> Vec<u8>,
    /// Milliseconds between repetitions.
    pub(crate) pause: u64,
    /// Whether the responses are read.
    pub(crate) reads: bool,
    pub(crate) application: Application,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Application {
    /// Answers at once, and switches protocols.
    Ordinary,
    /// Speaks HTTP/2 and grants no window.
    NoWindow,
    /// Responds with endless bodies.
    Endless,
    /// Reads heads and never responds.
    Silent,
}

fn http2(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes.extend(frames.concat());
    bytes
}

fn nothing(_: u32) -> Vec<u8> {
    Vec::new()
}

/// Returns all shapes. `many` is the number of connections where each is cheap.
pub(crate) fn all(many: u32) -> Vec<Shape> {
    let few = many / 10;
    let fewer = many / 50;
    let bomb = |stream| {
        let mut head = head();
        head.extend(indexed_header(b"x-bomb", &[b'a'; 3000]));
        head.extend([0x80 | 62; 6]);
        // The static table names many headers in a byte each.
        head.extend([0x80 | 16; 150]);
        frame(HEADERS, END_HEADERS | END_STREAM, stream, &head)
    };
    let upload = |stream| {
        let mut bytes = frame(HEADERS, END_HEADERS, stream, &head());
        for _ in 0..4 {
            bytes.extend(frame(DATA, 0, stream, &[b'a'; 16_000]));
        }
        bytes
    };
    let shape = |name, connections, first: Vec<u8>, again: fn(u32) -> Vec<u8>, pause, reads, application| {
        Shape { name, connections, first, again, pause, reads, application }
    };
    let text = |text: &str| text.as_bytes().to_vec();
    let streams = |of: &dyn Fn(u32) -> Vec<u8>| (0..90).map(|n| of(2 * n + 1)).collect::<Vec<_>>();
    let get = "GET / HTTP/1.1\r\nhost: a\r\n";
    use Application::{Endless, NoWindow, Ordinary, Silent};
    vec![
        shape("idle connections", many, text(&format!("{get}\r\n")), nothing, 0, true, Ordinary),
        shape("silent sockets", many, Vec::new(), nothing, 0, true, Ordinary),
        shape("slow heads", many, text(get), |_| b"x: ".to_vec(), 1_000, true, Ordinary),
        shape(
            "slow bodies",
            many,
            text("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000\r\n\r\n"),
            |_| b"a".to_vec(),
            1_000,
            true,
            Ordinary,
        ),
        shape("idle HTTP/2", many, http2(&[]), nothing, 0, true, Ordinary),
        shape("no window upstream", few, http2(&streams(&upload)[..8]), nothing, 0, true, NoWindow),
        shape(
            "idle upgrades",
            many,
            text(&format!("{get}connection: upgrade\r\nupgrade: echo\r\n\r\n")),
            nothing,
            0,
            true,
            Ordinary,
        ),
        shape(
            "rapid reset",
            fewer,
            http2(&[]),
            |n| [request(2 * n + 1, true), frame(RST_STREAM, 0, 2 * n + 1, &[0, 0, 0, 8])].concat(),
            0,
            true,
            Ordinary,
        ),
        shape(
            "CONTINUATION",
            fewer,
            http2(&[frame(HEADERS, 0, 1, &head())]),
            |_| frame(CONTINUATION, 0, 1, &header(b"x-bomb", &[b'a'; 100])),
            0,
            true,
            Ordinary,
        ),
        shape("PING", fewer, http2(&[]), |_| frame(PING, 0, 0, &[0; 8]).repeat(50), 0, true, Ordinary),
        shape("SETTINGS", fewer, http2(&[]), |_| frame(SETTINGS, 0, 0, &[]).repeat(50), 0, true, Ordinary),
        shape("header bombs", fewer, http2(&streams(&bomb)), nothing, 0, true, Silent),
        shape("unread responses", many, text(&format!("{get}\r\n")), nothing, 0, false, Endless),
        shape(
            "unread HTTP/2 responses",
            fewer,
            http2(&[frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]), streams(&|n| request(n, true)).concat()]),
            nothing,
            0,
            true,
            Endless,
        ),
    ]
}
