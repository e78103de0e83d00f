//! Header blocks that are too long for h2.
//!
//! h2 leaves out the rest of a header list that exceeds its bound. It reports so for heads, by an error of the stream, but not for
//! trailers: `grpc-status-details-bin` would vanish and the call succeed. The proxy therefore reads lists up to [`H2_LIST`] and
//! accepts less, so that nearly all long lists are seen whole. What remains is a list that is short as far as h2 has read it,
//! and ends with one field so long that its bytes alone tell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderMap;

use crate::http2::frames::{CONTINUATION, END_HEADERS, FrameHeader, HEADERS};

/// Size of a header list that h2 reads, in bytes as [`list_size`] counts them.
pub(crate) const H2_LIST: u32 = 256 << 10;
/// Size of trailers, and of the head of a response, that the proxy passes on. In bytes.
pub(crate) const MAX_LIST: usize = 64 << 10;
/// Bytes of a header block as they are sent that are too long whatever h2 makes of them. A list that h2 has cut and that still
/// is within [`MAX_LIST`] lacks a field of three quarters of [`H2_LIST`], which Huffman's code shortens to five eighths at most.
const MAX_BLOCK: u32 = 96 << 10;
/// Number of streams with a long block that are remembered. A stream's trailers are read soon after they have come.
const MAX_REMEMBERED: usize = 1024;

/// Size that each field adds to a list (RFC 9113, 6.5.2), in bytes.
const FIELD: usize = 32;

/// Returns the size of a header list without pseudo-fields, in bytes (RFC 9113, 6.5.2).
pub(crate) fn list_size(fields: &HeaderMap) -> usize {
    fields.iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD).sum()
}

/// The streams of a connection that have had a long header block. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct LongBlocks(Arc<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    /// Whether there are any.
    any: AtomicBool,
    streams: Mutex<Vec<u32>>,
}

impl LongBlocks {
    /// Reports whether a stream has had one.
    pub(crate) fn contains(&self, stream: u32) -> bool {
        self.0.any.load(Ordering::Acquire) && self.lock().contains(&stream)
    }

    fn add(&self, stream: u32) {
        let mut streams = self.lock();
        if streams.len() == MAX_REMEMBERED {
            streams.remove(0);
        }
        streams.push(stream);
        self.0.any.store(true, Ordering::Release);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.0.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measures the header blocks of a connection.
#[derive(Debug, Default)]
pub(crate) struct HeaderBlocks {
    long: LongBlocks,
    /// Bytes of the current block.
    length: u32,
}

impl HeaderBlocks {
    /// Returns the streams with a long block, which changes while frames are read.
    pub(crate) fn long(&self) -> LongBlocks {
        self.long.clone()
    }

    /// Notes the next frame, before h2 has read its last byte.
    pub(crate) fn frame(&mut self, frame: FrameHeader) {
        match frame.kind {
            HEADERS => self.length = frame.length,
            CONTINUATION => self.length = self.length.saturating_add(frame.length),
            _ => return,
        }
        if self.length > MAX_BLOCK && frame.flags & END_HEADERS != 0 {
            self.long.add(frame.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_blocks_are_remembered_by_their_stream() {
        let mut blocks = HeaderBlocks::default();
        let long = blocks.long();
        let frame = |kind, length, flags, stream| FrameHeader { length, kind, flags, stream };
        blocks.frame(frame(HEADERS, 16 << 10, 0, 1));
        for _ in 0..4 {
            blocks.frame(frame(CONTINUATION, 16 << 10, 0, 1));
        }
        blocks.frame(frame(CONTINUATION, 16 << 10, END_HEADERS, 1));
        assert!(!long.contains(1), "96 KiB are not too long");
        blocks.frame(frame(HEADERS, 16 << 10, END_HEADERS, 3));
        blocks.frame(frame(0, 16 << 10, END_HEADERS, 3));
        blocks.frame(frame(HEADERS, MAX_BLOCK, 0, 5));
        assert!(!long.contains(5));
        blocks.frame(frame(CONTINUATION, 1, END_HEADERS, 5));
        assert!(long.contains(5) && !long.contains(1) && !long.contains(3));
        for stream in 0..2 * MAX_REMEMBERED as u32 {
            blocks.frame(frame(HEADERS, MAX_BLOCK + 1, END_HEADERS, stream));
        }
        assert_eq!(long.lock().len(), MAX_REMEMBERED);
    }
}
