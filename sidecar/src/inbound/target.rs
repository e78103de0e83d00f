//! The bytes of a target that `http::Uri` refuses, although applications serve them: `?filter={"a":1}`, `<` and `>` in a query, and `<`,
//! `>` and a backquote in a path. They are percent-encoded before hyper reads them, so that the application, conditions and keys see
//! the same.

use bytes::{BufMut as _, BytesMut};
use memchr::{memchr, memchr3};

/// The part of a request line that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Part {
    #[default]
    Method,
    /// The first byte of the target.
    Start,
    Path,
    /// A target with a scheme and an authority, up to its query.
    Absolute,
    Query,
    /// Bytes that nobody looks at: a fragment, and those behind the target.
    Rest,
}

/// Follows request lines, and notes which of their bytes have to be encoded.
#[derive(Debug, Default)]
pub(super) struct TargetWatcher {
    part: Part,
    /// Offsets in the bytes that were read last.
    refused: Vec<u32>,
    is_stopped: bool,
}

impl TargetWatcher {
    /// Forgets what was noted about the bytes that were read before.
    pub(super) fn begin(&mut self) {
        // Idle connections hold no memory.
        self.refused = Vec::new();
    }

    /// Notes nothing any more: what follows may be another protocol.
    pub(super) fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Expects another request line.
    pub(super) fn line_ended(&mut self) {
        self.part = Part::Method;
    }

    /// Reads a part of a request line, which begins at an offset of the bytes that are read.
    pub(super) fn read(&mut self, line: &[u8], offset: usize, is_last: bool) {
        let is_plain = || memchr3(b'"', b'<', b'>', line).is_none() && memchr(b'`', line).is_none();
        // Nearly all lines come whole, and have nothing to encode.
        if self.is_stopped || is_last && self.part == Part::Method && is_plain() {
            return;
        }
        for (at, &byte) in line.iter().enumerate() {
            self.part = match (self.part, byte) {
                (Part::Method, b' ') => Part::Start,
                (Part::Method, _) => Part::Method,
                (Part::Rest, _) => return,
                (_, b' ' | b'#') => Part::Rest,
                (Part::Start, b'/') => Part::Path,
                (Part::Start, _) => Part::Absolute,
                (Part::Path | Part::Absolute, b'?') => Part::Query,
                (part @ Part::Path, b'<' | b'>' | b'`') | (part @ Part::Query, b'"' | b'<' | b'>') => {
                    self.refused.extend(u32::try_from(offset + at));
                    part
                }
                (part, _) => part,
            };
        }
    }

    /// Returns the bytes that were read last with those encoded that have to be; `None` if none has to.
    pub(super) fn encoded(&mut self, bytes: &[u8]) -> Option<BytesMut> {
        let refused = std::mem::take(&mut self.refused);
        if refused.is_empty() {
            return None;
        }
        let mut out = BytesMut::with_capacity(bytes.len() + 2 * refused.len());
        let mut from = 0;
        for at in refused.into_iter().map(|at| at as usize) {
            let digit =
                |value: u8| char::from_digit(value.into(), 16).map_or(b'0', |c| c.to_ascii_uppercase() as u8);
            out.put_slice(&bytes[from..at]);
            out.put_slice(&[b'%', digit(bytes[at] >> 4), digit(bytes[at] & 15)]);
            from = at + 1;
        }
        out.put_slice(&bytes[from..]);
        Some(out)
    }
}
