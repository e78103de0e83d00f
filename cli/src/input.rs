//! Reads files and standard input.

use std::fs::File;
use std::io::{Error, ErrorKind, Read as _, Result, stdin};
use std::path::Path;

use sluice_crds::manifest::MAX_BYTES;

/// Reads a file as UTF-8; `-` is standard input. Stops one byte after the largest size that a manifest may
/// have.
pub(crate) fn read(file: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let limit = MAX_BYTES as u64 + 1;
    if file.as_os_str() == "-" {
        stdin().take(limit).read_to_end(&mut bytes)?;
    } else {
        File::open(file)?.take(limit).read_to_end(&mut bytes)?;
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("the file is not valid UTF-8 (at byte offset {offset})"))
    })
}
