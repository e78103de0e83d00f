//! Decompresses what is compressed, which its first bytes tell.

use std::io::{BufRead, BufReader, Cursor, Error, ErrorKind, Read, Result};

use flate2::read::MultiGzDecoder;
use zstd::Decoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
/// A frame of zstd, in RFC 8878. Others are skipped.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Compressions and encodings that are not read, by their first bytes, with what makes a log of them.
const OTHERS: [(&[u8], &str); 6] = [
    (b"BZh", "it is compressed with bzip2: decompress it with bzip2 -d"),
    (&[0xfd, b'7', b'z', b'X', b'Z'], "it is compressed with xz: decompress it with xz -d"),
    (&[0x04, 0x22, 0x4d, 0x18], "it is compressed with lz4: decompress it with lz4 -d"),
    (b"PK\x03\x04", "it is a zip archive: unpack it"),
    (&[0xff, 0xfe], "it is in UTF-16: convert it with iconv -f UTF-16 -t UTF-8"),
    (&[0xfe, 0xff], "it is in UTF-16: convert it with iconv -f UTF-16 -t UTF-8"),
];
/// Largest window of a zstd frame, in bits: 128 MiB, as the program `zstd` has it. The decoder keeps a window in memory.
const MAX_WINDOW: u32 = 27;
const BUFFER: usize = 1 << 16;

/// Returns the content, and whether it was compressed. An error of the kind `Unsupported` says what to do with the file.
pub(super) fn decompressed(mut source: impl Read + 'static) -> Result<(Box<dyn BufRead>, bool)> {
    let mut first = Vec::new();
    source.by_ref().take(5).read_to_end(&mut first)?;
    if let Some((_, what)) = OTHERS.iter().find(|(begin, _)| first.starts_with(begin)) {
        return Err(Error::new(ErrorKind::Unsupported, *what));
    }
    let (is_gzip, is_zstd) = (first.starts_with(GZIP), first.starts_with(ZSTD));
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(first).chain(source));
    if is_gzip {
        return Ok((Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole))), true));
    }
    if is_zstd {
        let mut decoder = Decoder::with_buffer(whole)?;
        decoder.window_log_max(MAX_WINDOW)?;
        return Ok((Box::new(BufReader::with_capacity(BUFFER, Zstd(decoder))), true));
    }
    Ok((Box::new(whole), false))
}

/// A decoder of zstd that says what to do with a window that is too large.
struct Zstd<R: BufRead>(Decoder<'static, R>);

impl<R: BufRead> Read for Zstd<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.0.read(buffer).map_err(|error| {
            // ZSTD_error_frameParameter_windowTooLarge, of which the crate passes on only the text.
            if error.to_string().contains("requires too much memory") {
                let what = "its zstd window is larger than 128 MiB: decompress it with zstd -d --long=31";
                return Error::new(ErrorKind::Unsupported, what);
            }
            error
        })
    }
}
