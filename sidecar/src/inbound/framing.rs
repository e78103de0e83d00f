//! Watches the bytes of an HTTP/1 connection for requests whose end can be read in two ways. hyper uses
//! `Transfer-Encoding` and silently drops a `Content-Length` beside it, as RFC 9112 (6.3) permits, so a
//! parsed request no longer shows that it had both. That is how requests are smuggled, so such a request is
//! refused.
//!
//! The watcher only marks the first ambiguous request; [`crate::inbound::validate`] refuses it and all that
//! follow. It also knows where targets stand, of which a few bytes are [encoded](crate::inbound::target).

use bytes::BytesMut;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::inbound::target::TargetWatcher;

/// Length of the part of a line that is kept, in bytes. The relevant names and values are far shorter.
const MAX_LINE: usize = 256;

/// Number of the first ambiguous request of a connection. The requests after it are ambiguous too, because it
/// is unclear where they begin.
#[derive(Debug)]
pub(crate) struct AmbiguityMark(AtomicU32);

impl Default for AmbiguityMark {
    fn default() -> Self {
        Self(AtomicU32::new(u32::MAX))
    }
}

impl AmbiguityMark {
    /// Marks request number `first`, from 0, and all after it.
    pub(crate) fn set(&self, first: u32) {
        self.0.store(first, Ordering::Relaxed);
    }

    /// Reports whether request number `request`, from 0, is ambiguous.
    pub(crate) fn covers(&self, request: u32) -> bool {
        request >= self.0.load(Ordering::Relaxed)
    }
}

/// The part of a message that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    RequestLine,
    Header,
    Body(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
    /// After an ambiguous request: the rest is not watched.
    Unknown,
}

/// Follows the framing of the requests of one connection.
#[derive(Debug)]
pub(crate) struct FramingWatcher {
    position: Position,
    /// The beginning of a line that has not ended yet.
    line: Vec<u8>,
    /// Number of complete heads so far.
    heads: u32,
    /// `Content-Length` of the current head.
    length: Option<u64>,
    /// Whether the current head has a `Transfer-Encoding`.
    has_coding: bool,
    target: TargetWatcher,
}

impl FramingWatcher {
    /// Creates a watcher that expects a request line.
    pub(crate) fn new() -> Self {
        Self {
            position: Position::RequestLine,
            line: Vec::new(),
            heads: 0,
            length: None,
            has_coding: false,
            target: TargetWatcher::default(),
        }
    }

    /// Reports whether a head has begun and not ended.
    pub(crate) fn in_head(&self) -> bool {
        match self.position {
            Position::RequestLine => !self.line.is_empty(),
            Position::Header | Position::Unknown => true,
            _ => false,
        }
    }

    /// Reads the next bytes. Returns the number of the first ambiguous request, from 0, once.
    pub(crate) fn read(&mut self, all: &[u8]) -> Option<u32> {
        let mut bytes = all;
        self.target.begin();
        while !bytes.is_empty() {
            match &mut self.position {
                Position::Unknown => return None,
                Position::Body(left) | Position::ChunkData(left) => {
                    let step = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[step..];
                    *left -= step as u64;
                    match self.position {
                        Position::Body(0) => self.position = Position::RequestLine,
                        Position::ChunkData(0) => self.position = Position::ChunkEnd,
                        _ => {}
                    }
                }
                _ => {
                    let end = memchr::memchr(b'\n', bytes);
                    if self.position == Position::RequestLine {
                        let line = &bytes[..end.unwrap_or(bytes.len())];
                        self.target.read(line, all.len() - bytes.len(), end.is_some());
                        if end.is_some() {
                            self.target.line_ended();
                        }
                    }
                    let Some(end) = end else {
                        append(&mut self.line, bytes);
                        return None;
                    };
                    let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
                    let next = if self.line.is_empty() {
                        self.line(line)
                    } else {
                        append(&mut self.line, line);
                        let whole = std::mem::take(&mut self.line);
                        let next = self.line(&whole);
                        self.line = whole;
                        self.line.clear();
                        next
                    };
                    self.position = next;
                    bytes = rest;
                    if next == Position::Unknown {
                        return Some(self.heads);
                    }
                }
            }
        }
        None
    }

    /// Returns the bytes that were read last as hyper has to read them, unless they are the same.
    pub(crate) fn encoded(&mut self, bytes: &[u8]) -> Option<BytesMut> {
        self.target.encoded(bytes)
    }

    /// Reads a line without its line feed. Returns the position after it.
    fn line(&mut self, line: &[u8]) -> Position {
        let whole = line.strip_suffix(b"\r");
        let in_chunks = matches!(self.position, Position::ChunkSize | Position::ChunkEnd | Position::Trailer);
        if in_chunks && whole.is_none() {
            // hyper takes a line feed alone for a part of the line there.
            return Position::Unknown;
        }
        let line = whole.unwrap_or(line);
        match self.position {
            // Empty lines before a request are skipped (RFC 9112, 2.2).
            Position::RequestLine if line.is_empty() => Position::RequestLine,
            Position::RequestLine => {
                if line.starts_with(b"CONNECT ") {
                    self.target.stop();
                }
                Position::Header
            }
            Position::Header if line.is_empty() => self.head_ended(),
            Position::Header => self.header(line),
            Position::ChunkSize => match chunk_size(line) {
                Some(0) => Position::Trailer,
                Some(size) => Position::ChunkData(size),
                None => Position::Unknown,
            },
            Position::ChunkEnd if line.is_empty() => Position::ChunkSize,
            Position::Trailer if line.is_empty() => Position::RequestLine,
            Position::Trailer => Position::Trailer,
            _ => Position::Unknown,
        }
    }

    fn header(&mut self, line: &[u8]) -> Position {
        let is = |name: &[u8]| {
            line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name)
        };
        if is(b"upgrade") {
            self.target.stop();
        } else if is(b"transfer-encoding") {
            self.has_coding = true;
        } else if is(b"content-length") {
            let digits = line[b"content-length:".len()..].trim_ascii();
            match std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()) {
                Some(length) if self.length.is_none_or(|before| before == length) => {
                    self.length = Some(length);
                }
                _ => return Position::Unknown,
            }
        }
        Position::Header
    }

    fn head_ended(&mut self) -> Position {
        let (length, has_coding) = (self.length.take(), std::mem::take(&mut self.has_coding));
        if has_coding && length.is_some() {
            return Position::Unknown;
        }
        self.heads += 1;
        match length {
            _ if has_coding => Position::ChunkSize,
            None | Some(0) => Position::RequestLine,
            Some(length) => Position::Body(length),
        }
    }
}

/// Appends bytes up to a total of [`MAX_LINE`].
fn append(line: &mut Vec<u8>, bytes: &[u8]) {
    let room = MAX_LINE.saturating_sub(line.len());
    line.extend_from_slice(&bytes[..room.min(bytes.len())]);
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&b| b == b';').next()?.trim_ascii();
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLAIN: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const SIZED: &str = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 31\r\n\r\n\
        Content-Length: 1\r\nTransfer-En";
    const CHUNKED: &str = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n\
        5;x=y\r\nab\ncd\r\n1b\r\nContent-Length: 5\r\n\r\nGET / \r\n0\r\nx: y\r\n\r\n";
    const BOTH: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a\r\nCONTENT-length:4\r\n\r\n";

    /// Quotation marks and angle brackets wherever they may stand, with a body that looks like a target.
    const QUOTED: &str = "PO\"ST /a\"<`b?x={\"a\":1}&y=<z>?\"#\"<> HTTP/1.1<\r\nHost: \"<a>?\"\r\nContent-Length: 18\r\n\r\n\
        GET /?\" HTTP/1.1\r\n";
    const ENCODED: &str = "PO\"ST /a\"%3C%60b?x={%22a%22:1}&y=%3Cz%3E?%22#\"<> HTTP/1.1<\r\nHost: \"<a>?\"\r\nContent-Length: 18\r\n\r\n\
        GET /?\" HTTP/1.1\r\n";

    /// Returns the bytes that hyper reads of a text.
    fn read_by_hyper(text: &str) -> String {
        let mut framing = FramingWatcher::new();
        framing.read(text.as_bytes());
        let encoded = framing.encoded(text.as_bytes()).unwrap_or_else(|| text.as_bytes().into());
        String::from_utf8(encoded.to_vec()).unwrap()
    }

    #[test]
    fn nothing_is_encoded_once_the_track_is_lost_or_another_protocol_may_follow() {
        let asks = "GET /?\" HTTP/1.1\r\nHost: a\r\n\r\n";
        let encoded = asks.replace('"', "%22");
        for (before, is_encoded) in [
            (PLAIN, true),
            (BOTH, false),
            ("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n", false),
            ("CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", false),
        ] {
            let expected = before.to_owned() + if is_encoded { &encoded } else { asks };
            assert_eq!(read_by_hyper(&(before.to_owned() + asks)), expected);
        }
        // A target with a scheme has a query too, and its authority stays as it is.
        assert_eq!(read_by_hyper("GET http://<a>/\"?\" HTTP/1.1\r\n"), "GET http://<a>/\"?%22 HTTP/1.1\r\n");
    }

    /// Returns the number of the ambiguous request in a text that arrives cut at these offsets.
    fn ambiguous_request(text: &str, cuts: &[usize]) -> Option<u32> {
        let mut framing = FramingWatcher::new();
        let (mut ambiguous, mut from) = (None, 0);
        for &cut in cuts.iter().chain([&text.len()]) {
            let to = cut.clamp(from, text.len());
            ambiguous = ambiguous.or(framing.read(&text.as_bytes()[from..to]));
            from = to;
        }
        ambiguous
    }

    #[test]
    fn a_head_is_in_progress_from_its_first_byte_to_its_last() {
        let mut framing = FramingWatcher::new();
        for (text, in_head) in [
            ("", false),
            ("\r\n", false),
            ("G", true),
            ("ET / HTTP/1.1\r\n", true),
            ("Host: a\r\n\r\n", false),
            ("POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\na", false),
            ("bG", true),
        ] {
            framing.read(text.as_bytes());
            assert_eq!(framing.in_head(), in_head, "{text:?}");
        }
    }

    #[test]
    fn a_request_with_two_lengths_is_ambiguous_in_any_spelling() {
        assert_eq!(ambiguous_request(BOTH, &[]), Some(0));
        let other = "POST / HTTP/1.1\nContent-Length: 4\nTransfer-Encoding: gzip, chunked\n\n";
        assert_eq!(ambiguous_request(other, &[]), Some(0));
        assert_eq!(ambiguous_request(PLAIN, &[]), None);
        let bare = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: y\n\nPOST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(ambiguous_request(bare, &[]), Some(1), "a line of trailers ends with both");
        assert_eq!(
            ambiguous_request("POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n", &[]),
            Some(0)
        );
    }

    proptest! {
        /// Bodies are never read as heads, and the bytes may arrive in any pieces.
        #[test]
        fn the_first_ambiguous_request_is_found_after_any_valid_ones(
            before in proptest::collection::vec(prop_oneof![Just(PLAIN), Just(SIZED), Just(CHUNKED)], 0..6),
            ambiguous: bool,
            mut cuts in proptest::collection::vec(0usize..900, 0..12),
        ) {
            cuts.sort_unstable();
            let mut text = before.concat();
            if ambiguous {
                text.push_str(BOTH);
            }
            prop_assert_eq!(ambiguous_request(&text, &cuts), ambiguous.then_some(before.len() as u32));
        }

        /// However the bytes are cut, the same ones are encoded: those of targets, and no others.
        #[test]
        fn only_bytes_of_targets_are_encoded_wherever_they_are_cut(
            requests in proptest::collection::vec(prop_oneof![Just(SIZED), Just(CHUNKED), Just(QUOTED)], 0..6),
            mut cuts in proptest::collection::vec(0usize..900, 0..12),
        ) {
            cuts.sort_unstable();
            let text = requests.concat();
            let expected: String = requests.iter().map(|request| if *request == QUOTED { ENCODED } else { request }).collect();
            let mut framing = FramingWatcher::new();
            let (mut out, mut from) = (Vec::new(), 0);
            for &cut in cuts.iter().chain([&text.len()]) {
                let to = cut.clamp(from, text.len());
                let bytes = &text.as_bytes()[from..to];
                prop_assert_eq!(framing.read(bytes), None);
                out.extend_from_slice(&framing.encoded(bytes).unwrap_or_else(|| bytes.into()));
                from = to;
            }
            prop_assert_eq!(String::from_utf8(out).unwrap(), expected);
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let mut framing = FramingWatcher::new();
            let _ = framing.read(&CHUNKED.as_bytes()[..60]);
            let _ = framing.read(&bytes);
            let encoded = framing.encoded(&bytes);
            prop_assert!(encoded.is_none_or(|encoded| encoded.len() <= 3 * bytes.len()));
        }
    }
}
