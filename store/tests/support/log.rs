//! The log of a test program, in memory.

use std::io::Write;
use std::sync::{Mutex, Once, PoisonError};

use tracing_subscriber::fmt::MakeWriter;

static LINES: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static START: Once = Once::new();

/// Appends to the log in memory.
struct Append;

impl Write for Append {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // Shown if a test fails.
        print!("{}", String::from_utf8_lossy(bytes));
        LINES.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Appender;

impl MakeWriter<'_> for Appender {
    type Writer = Append;

    fn make_writer(&self) -> Append {
        Append
    }
}

/// Begins to keep what all tests of the program log.
pub(crate) fn keep() {
    START.call_once(|| {
        tracing_subscriber::fmt().with_ansi(false).with_writer(Appender).init();
    });
}

/// Returns the lines that contain all of these texts.
pub(crate) fn lines(texts: &[&str]) -> Vec<String> {
    let log = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    let log = String::from_utf8_lossy(&log);
    log.lines().filter(|line| texts.iter().all(|text| line.contains(text))).map(str::to_owned).collect()
}
