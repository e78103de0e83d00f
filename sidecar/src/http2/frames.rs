//! Follows the frames of an HTTP/2 connection by their headers.

/// Length of a frame's header (RFC 9113, 4.1), in bytes.
pub(crate) const HEADER: usize = 9;
pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const CONTINUATION: u8 = 9;
/// The flag of the frame that ends a header block.
pub(crate) const END_HEADERS: u8 = 4;

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Bytes of the payload.
    pub(crate) length: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

impl FrameHeader {
    fn parse([a, b, c, kind, flags, d, e, f, g]: [u8; HEADER]) -> Self {
        Self {
            length: u32::from_be_bytes([0, a, b, c]),
            kind,
            flags,
            stream: u32::from_be_bytes([d & 0x7f, e, f, g]),
        }
    }
}

/// Finds the headers of frames in the bytes of a connection.
#[derive(Debug)]
pub(crate) struct Frames {
    /// The beginning of a frame's header.
    header: [u8; HEADER],
    /// Length of that beginning.
    length: usize,
    /// Bytes of the payload that are still to come, of a preface at first.
    payload: u64,
}

impl Frames {
    /// Begins a connection that has `preface` bytes before its first frame.
    pub(crate) fn new(preface: usize) -> Self {
        Self { header: [0; HEADER], length: 0, payload: preface as u64 }
    }

    /// Reads the next bytes, and calls `each` for each header of a frame that ends in them.
    pub(crate) fn read(&mut self, bytes: &[u8], mut each: impl FnMut(FrameHeader)) {
        self.read_with(bytes, |header, _| each(header));
    }

    /// Reads the next bytes, and calls `each` for each header of a frame that ends in them, with the bytes behind it.
    pub(crate) fn read_with(&mut self, mut bytes: &[u8], mut each: impl FnMut(FrameHeader, &[u8])) {
        while !bytes.is_empty() {
            if self.payload > 0 {
                let step = usize::try_from(self.payload).unwrap_or(usize::MAX).min(bytes.len());
                bytes = &bytes[step..];
                self.payload -= step as u64;
                continue;
            }
            let step = (HEADER - self.length).min(bytes.len());
            self.header[self.length..self.length + step].copy_from_slice(&bytes[..step]);
            self.length += step;
            bytes = &bytes[step..];
            if self.length == HEADER {
                self.length = 0;
                let header = FrameHeader::parse(self.header);
                self.payload = u64::from(header.length);
                each(header, bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_frames_are_found_in_pieces_of_all_sizes() {
        let mut bytes = vec![b'P'; 24];
        for (kind, length, stream) in [(HEADERS, 3_u8, 1_u8), (CONTINUATION, 0, 1), (DATA, 200, 3)] {
            bytes.extend([0, 0, length, kind, END_HEADERS, 0x80, 0, 0, stream]);
            bytes.resize(bytes.len() + usize::from(length), 0xff);
        }
        for size in 1..bytes.len() {
            let (mut frames, mut found) = (Frames::new(24), Vec::new());
            bytes.chunks(size).for_each(|piece| frames.read(piece, |header| found.push(header)));
            let of = |kind, length, stream| FrameHeader { length, kind, flags: END_HEADERS, stream };
            assert_eq!(found, [of(HEADERS, 3, 1), of(CONTINUATION, 0, 1), of(DATA, 200, 3)]);
        }
    }
}
