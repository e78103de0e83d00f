//! Watches the bytes of an HTTP/1 connection for requests whose end can be read in two ways. hyper takes
//! `Transfer-Encoding` and silently drops a `Content-Length` beside it, as RFC 9112 (6.3) permits; whoever is asked
//! later can no longer see that there were both. That is how requests are smuggled, so such a request is refused.
//!
//! Nothing is decided here: the watcher only says from which request on the connection is not to be trusted.

/// Longest part of a line that is looked at; the names and values in question are far shorter.
const LINE: usize = 256;

/// Where the next byte belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    RequestLine,
    Header,
    Body(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
    /// What follows is not watched.
    Lost,
}

/// The watcher of one connection.
#[derive(Debug)]
pub(crate) struct Framing {
    at: At,
    /// The beginning of a line that has not ended yet.
    line: Vec<u8>,
    /// Heads read so far.
    heads: u32,
    length: Option<u64>,
    coded: bool,
}

impl Framing {
    pub(crate) fn new() -> Self {
        Self { at: At::RequestLine, line: Vec::new(), heads: 0, length: None, coded: false }
    }

    /// Whether a head has begun and not ended.
    pub(crate) fn in_head(&self) -> bool {
        match self.at {
            At::RequestLine => !self.line.is_empty(),
            At::Header | At::Lost => true,
            _ => false,
        }
    }

    /// Reads on. Says once, and then never again, the number (from 0) of the first request that is not to be
    /// trusted.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Option<u32> {
        while !bytes.is_empty() {
            match &mut self.at {
                At::Lost => return None,
                At::Body(left) | At::ChunkData(left) => {
                    let step = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[step..];
                    *left -= step as u64;
                    match self.at {
                        At::Body(0) => self.at = At::RequestLine,
                        At::ChunkData(0) => self.at = At::ChunkEnd,
                        _ => {}
                    }
                }
                _ => {
                    let Some(end) = memchr::memchr(b'\n', bytes) else {
                        keep(&mut self.line, bytes);
                        return None;
                    };
                    let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
                    let next = if self.line.is_empty() {
                        self.line(line)
                    } else {
                        keep(&mut self.line, line);
                        let whole = std::mem::take(&mut self.line);
                        let next = self.line(&whole);
                        self.line = whole;
                        self.line.clear();
                        next
                    };
                    self.at = next;
                    bytes = rest;
                    if next == At::Lost {
                        return Some(self.heads);
                    }
                }
            }
        }
        None
    }

    /// One line without its line feed; what comes after it.
    fn line(&mut self, line: &[u8]) -> At {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match self.at {
            // Empty lines before a request are skipped (RFC 9112, 2.2).
            At::RequestLine if line.is_empty() => At::RequestLine,
            At::RequestLine => At::Header,
            At::Header if line.is_empty() => self.head_ended(),
            At::Header => self.header(line),
            At::ChunkSize => match chunk_size(line) {
                Some(0) => At::Trailer,
                Some(size) => At::ChunkData(size),
                None => At::Lost,
            },
            At::ChunkEnd if line.is_empty() => At::ChunkSize,
            At::Trailer if line.is_empty() => At::RequestLine,
            At::Trailer => At::Trailer,
            _ => At::Lost,
        }
    }

    fn header(&mut self, line: &[u8]) -> At {
        let is = |name: &[u8]| {
            line.get(name.len()) == Some(&b':') && line[..name.len()].eq_ignore_ascii_case(name)
        };
        if is(b"transfer-encoding") {
            self.coded = true;
        } else if is(b"content-length") {
            let digits = line[b"content-length:".len()..].trim_ascii();
            match std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()) {
                Some(length) if self.length.is_none_or(|before| before == length) => {
                    self.length = Some(length);
                }
                _ => return At::Lost,
            }
        }
        At::Header
    }

    fn head_ended(&mut self) -> At {
        let (length, coded) = (self.length.take(), std::mem::take(&mut self.coded));
        if coded && length.is_some() {
            return At::Lost;
        }
        self.heads += 1;
        match length {
            _ if coded => At::ChunkSize,
            None | Some(0) => At::RequestLine,
            Some(length) => At::Body(length),
        }
    }
}

fn keep(line: &mut Vec<u8>, bytes: &[u8]) {
    let room = LINE.saturating_sub(line.len());
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

    /// What is said when the text arrives cut at the given places.
    fn said(text: &str, cuts: &[usize]) -> Option<u32> {
        let mut framing = Framing::new();
        let (mut said, mut from) = (None, 0);
        for &cut in cuts.iter().chain([&text.len()]) {
            let to = cut.clamp(from, text.len());
            said = said.or(framing.read(&text.as_bytes()[from..to]));
            from = to;
        }
        said
    }

    #[test]
    fn a_head_begins_with_its_first_byte_and_a_body_is_none() {
        let mut framing = Framing::new();
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
    fn a_request_with_two_lengths_is_named_however_it_is_spelled() {
        assert_eq!(said(BOTH, &[]), Some(0));
        let other = "POST / HTTP/1.1\nContent-Length: 4\nTransfer-Encoding: gzip, chunked\n\n";
        assert_eq!(said(other, &[]), Some(0));
        assert_eq!(said(PLAIN, &[]), None);
        assert_eq!(said("POST / HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n", &[]), Some(0));
    }

    proptest! {
        /// Bodies are never taken for heads, and the bytes may arrive in any pieces.
        #[test]
        fn the_first_bad_request_is_found_behind_any_good_ones(
            before in proptest::collection::vec(prop_oneof![Just(PLAIN), Just(SIZED), Just(CHUNKED)], 0..6),
            bad: bool,
            mut cuts in proptest::collection::vec(0usize..900, 0..12),
        ) {
            cuts.sort_unstable();
            let mut text = before.concat();
            if bad {
                text.push_str(BOTH);
            }
            prop_assert_eq!(said(&text, &cuts), bad.then_some(before.len() as u32));
        }

        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            let mut framing = Framing::new();
            let _ = framing.read(&CHUNKED.as_bytes()[..60]);
            let _ = framing.read(&bytes);
        }
    }
}
