//! Limits the frames of an HTTP/2 client that carry no request: PING, SETTINGS, RST_STREAM, PRIORITY,
//! WINDOW_UPDATE and unknown ones. Each is cheap for the client, and answering it costs the proxy as much as a small
//! request. The other floods are limited by the h2 crate: CONTINUATION frames, small DATA frames, and streams that
//! are reset before they were accepted.

use crate::http2::frames::{CONTINUATION, DATA, Frames, HEADERS};
use crate::http2::header_blocks::{HeaderBlocks, LongBlocks};

/// Control frames that are accepted in a second. A client that cancels all its streams sends a few hundred.
const MAX_PER_SECOND: u64 = 1_000;
/// More are accepted for each request: clients of gRPC measure the round trip with a PING and a WINDOW_UPDATE for each
/// response.
const PER_REQUEST: u64 = 4;
/// One more is accepted for so many bytes that were sent to the client, which answers them with WINDOW_UPDATE.
const SENT_PER_FRAME: u64 = 512;

/// Follows the frames of a client.
#[derive(Debug)]
pub(crate) struct ControlFrames {
    frames: Frames,
    blocks: HeaderBlocks,
    second: u32,
    /// Control frames in this second.
    count: u64,
    /// Requests in this second and the one before.
    requests: [u64; 2],
    /// Bytes sent to the client in this second and the one before.
    sent: [u64; 2],
}

impl ControlFrames {
    /// Creates a watcher of a connection that begins with `preface` bytes before the first frame.
    pub(crate) fn new(preface: usize) -> Self {
        Self {
            frames: Frames::new(preface),
            blocks: HeaderBlocks::default(),
            second: 0,
            count: 0,
            requests: [0; 2],
            sent: [0; 2],
        }
    }

    /// Returns the streams whose header block is too long for h2, which changes while frames are read.
    pub(crate) fn long_blocks(&self) -> LongBlocks {
        self.blocks.long()
    }

    /// Counts bytes that were sent to the client.
    pub(crate) fn sent(&mut self, bytes: usize) {
        self.sent[0] += bytes as u64;
    }

    /// Reads the next bytes. `second` is a number that changes every second. Reports whether there are too many
    /// control frames.
    pub(crate) fn read(&mut self, bytes: &[u8], second: u32) -> bool {
        if self.second != second {
            self.second = second;
            self.count = 0;
            self.requests = [0, self.requests[0]];
            self.sent = [0, self.sent[0]];
        }
        let Self { frames, blocks, count, requests, .. } = self;
        frames.read(bytes, |frame| {
            requests[0] += u64::from(frame.kind == HEADERS);
            *count += u64::from(!matches!(frame.kind, DATA | HEADERS | CONTINUATION));
            blocks.frame(frame);
        });
        let sum = |[now, before]: [u64; 2]| now + before;
        self.count > MAX_PER_SECOND + sum(self.requests) * PER_REQUEST + sum(self.sent) / SENT_PER_FRAME
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http2::frames::HEADER;

    const PING: u8 = 6;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let mut frame = vec![0; HEADER + payload];
        frame[1..3].copy_from_slice(&u16::try_from(payload).unwrap().to_be_bytes());
        frame[3] = kind;
        frame
    }

    /// Reads frames in pieces of all sizes.
    fn read(watcher: &mut ControlFrames, frame: &[u8], times: u64, second: u32) -> bool {
        let bytes = frame.repeat(times as usize);
        let mut bytes = &bytes[..];
        let mut flooded = false;
        for size in (1..40).cycle() {
            let step = bytes.len().min(size);
            flooded = watcher.read(&bytes[..step], second);
            bytes = &bytes[step..];
            if bytes.is_empty() {
                return flooded;
            }
        }
        flooded
    }

    #[test]
    fn control_frames_are_limited_each_second() {
        let mut watcher = ControlFrames::new(24);
        assert!(!watcher.read(&[b'P'; 24], 0));
        assert!(!read(&mut watcher, &frame(PING, 8), MAX_PER_SECOND, 0));
        assert!(!read(&mut watcher, &frame(PING, 8), MAX_PER_SECOND, 1));
        assert!(read(&mut watcher, &frame(PING, 8), 1, 1));
    }

    #[test]
    fn a_client_with_many_requests_may_measure_the_round_trip_of_each() {
        let mut watcher = ControlFrames::new(0);
        assert!(!read(&mut watcher, &frame(HEADERS, 20), MAX_PER_SECOND, 0));
        assert!(!read(&mut watcher, &frame(PING, 8), 5 * MAX_PER_SECOND, 0));
        assert!(read(&mut watcher, &frame(PING, 8), 1, 0));
    }

    #[test]
    fn requests_and_bodies_are_no_control_frames() {
        let mut watcher = ControlFrames::new(0);
        for kind in [DATA, HEADERS, CONTINUATION] {
            assert!(!read(&mut watcher, &frame(kind, 77), 2 * MAX_PER_SECOND, 0));
        }
    }

    #[test]
    fn a_client_that_downloads_may_send_window_updates() {
        let mut watcher = ControlFrames::new(0);
        watcher.sent(usize::try_from(MAX_PER_SECOND * SENT_PER_FRAME).unwrap());
        assert!(!read(&mut watcher, &frame(8, 4), 2 * MAX_PER_SECOND, 0));
        assert!(!read(&mut watcher, &frame(8, 4), 2 * MAX_PER_SECOND, 1));
        assert!(read(&mut watcher, &frame(8, 4), 2 * MAX_PER_SECOND, 2));
    }
}
