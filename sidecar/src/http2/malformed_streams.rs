//! Finds the streams that h2 resets because their request is malformed: it answers them by itself.

use std::fmt;
use std::io::IoSlice;

use crate::http2::frames::{Frames, RST_STREAM};

/// The code of `PROTOCOL_ERROR` (RFC 9113, section 7).
const PROTOCOL_ERROR: [u8; 4] = [0, 0, 0, 1];

/// Follows the frames that are sent to a client.
pub(crate) struct MalformedStreams {
    frames: Frames,
    note: Box<dyn Fn() + Send>,
}

impl fmt::Debug for MalformedStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MalformedStreams").field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl MalformedStreams {
    /// Begins a connection. `note` is called for each malformed stream.
    pub(crate) fn new(note: Box<dyn Fn() + Send>) -> Self {
        Self { frames: Frames::new(0), note }
    }

    /// Reads the first `length` bytes of some slices, which were sent.
    pub(crate) fn sent(&mut self, slices: &[IoSlice<'_>], mut length: usize) {
        let Self { frames, note } = self;
        for slice in slices {
            let sent = &slice[..slice.len().min(length)];
            length -= sent.len();
            // A code that leaves in another write is not seen. h2 writes a frame in one piece.
            frames.read_with(sent, |frame, rest| {
                if frame.kind == RST_STREAM && rest.starts_with(&PROTOCOL_ERROR) {
                    note();
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::http2::frames::{DATA, HEADERS};

    #[test]
    fn only_resets_of_malformed_streams_count() {
        let count = Arc::new(AtomicU32::new(0));
        let counted = count.clone();
        let note = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let mut streams = MalformedStreams::new(Box::new(note));
        let mut bytes = Vec::new();
        let frames: [(u8, &[u8]); 6] = [
            (HEADERS, b"abc"),
            (RST_STREAM, &[0, 0, 0, 1]),
            (DATA, &[0, 0, 4, RST_STREAM, 0, 0, 0, 0, 1, 0, 0, 0, 1]),
            (RST_STREAM, &[0, 0, 0, 8]),
            (RST_STREAM, &[0, 0, 0, 1]),
            (DATA, b""),
        ];
        for (kind, payload) in frames {
            bytes.extend([0, 0, payload.len() as u8, kind, 0, 0, 0, 0, 1]);
            bytes.extend(payload);
        }
        let (first, second) = bytes.split_at(40);
        streams.sent(&[IoSlice::new(first), IoSlice::new(second)], bytes.len());
        assert_eq!(count.load(Ordering::Relaxed), 2);
        streams.sent(&[IoSlice::new(first), IoSlice::new(second)], 12);
        assert_eq!(count.load(Ordering::Relaxed), 2, "the rest was not sent");
    }
}
