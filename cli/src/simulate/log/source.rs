//! Decompresses what is compressed, which its first bytes tell.

use std::io::{BufRead, BufReader, Cursor, Read, Result};

use flate2::read::MultiGzDecoder;
use zstd::Decoder;

const GZIP: &[u8] = &[0x1f, 0x8b];
/// A frame of zstd, in RFC 8878. Others are skipped.
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Largest window of a zstd frame, in bits: 128 MiB, as the program `zstd` has it.
const MAX_WINDOW: u32 = 27;
const BUFFER: usize = 1 << 16;

/// Returns the content, and whether it was compressed.
pub(super) fn decompressed(mut source: impl Read + 'static) -> Result<(Box<dyn BufRead>, bool)> {
    let mut first = Vec::new();
    source.by_ref().take(ZSTD.len() as u64).read_to_end(&mut first)?;
    let (is_gzip, is_zstd) = (first.starts_with(GZIP), first.starts_with(ZSTD));
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(first).chain(source));
    if is_gzip {
        return Ok((Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(whole))), true));
    }
    if is_zstd {
        let mut decoder = Decoder::with_buffer(whole)?;
        decoder.window_log_max(MAX_WINDOW)?;
        return Ok((Box::new(BufReader::with_capacity(BUFFER, decoder)), true));
    }
    Ok((Box::new(whole), false))
}
