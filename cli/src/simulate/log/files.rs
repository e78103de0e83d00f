//! Reads log files in the order of time: rotated files one after the other, and those of several pods side by side.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context as _;
use flate2::read::MultiGzDecoder;

use super::LoggedRequest;
use super::format::read;
use super::json::FieldName;

/// Longest line, in bytes. The rest of a longer one is skipped.
const MAX_LINE: usize = 256 * 1024;
/// Longest time between two lines, in microseconds.
const MAX_GAP: u64 = 30 * 86_400_000_000;

/// The requests of several files, in the order of time.
pub(in crate::simulate) struct Requests {
    files: Vec<LogFile>,
    /// The next request of each file, earliest first.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    waiting: Vec<Option<LoggedRequest>>,
    named: Vec<FieldName>,
    /// Number of bytes of all files.
    pub(in crate::simulate) bytes: u64,
    pub(in crate::simulate) unreadable: Unreadable,
}

/// Lines that could not be read.
#[derive(Debug, Default)]
pub(in crate::simulate) struct Unreadable {
    pub(in crate::simulate) lines: u64,
    /// The first of them: `access.log:17: no time`.
    pub(in crate::simulate) first: Option<String>,
}

struct LogFile {
    name: String,
    reader: Box<dyn BufRead>,
    line: u64,
    /// Time of the request before.
    last: Option<u64>,
    /// Number of bytes that were read from the disk.
    read: Arc<AtomicU64>,
    buffer: Vec<u8>,
}

impl Requests {
    /// Opens files; `-` is standard input. Files that end with .gz are decompressed.
    pub(in crate::simulate) fn open(
        files: &[impl AsRef<Path>],
        named: Vec<FieldName>,
    ) -> anyhow::Result<Self> {
        let mut requests = Self {
            files: Vec::new(),
            next: BinaryHeap::new(),
            waiting: Vec::new(),
            named,
            bytes: 0,
            unreadable: Unreadable::default(),
        };
        for path in files {
            let path = path.as_ref();
            let (file, bytes) = LogFile::open(path).with_context(|| path.display().to_string())?;
            requests.bytes += bytes;
            requests.files.push(file);
            requests.waiting.push(None);
        }
        for number in 0..requests.files.len() {
            requests.advance(number)?;
        }
        Ok(requests)
    }

    /// Returns the time of the first request.
    pub(in crate::simulate) fn begin(&self) -> Option<u64> {
        self.next.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns the next request.
    pub(in crate::simulate) fn next(&mut self) -> anyhow::Result<Option<LoggedRequest>> {
        let Some(Reverse((_, number))) = self.next.pop() else { return Ok(None) };
        let request = self.waiting[number].take();
        self.advance(number)?;
        Ok(request)
    }

    /// Returns the number of bytes that were read.
    pub(in crate::simulate) fn read(&self) -> u64 {
        self.files.iter().map(|file| file.read.load(Ordering::Relaxed)).sum()
    }

    /// Reads the next request of a file.
    fn advance(&mut self, number: usize) -> anyhow::Result<()> {
        let file = &mut self.files[number];
        while let Some(line) = file.next_line()? {
            if line.trim().is_empty() {
                continue;
            }
            match read(&line, &self.named).and_then(|request| file.plausible(request)) {
                Ok(request) => {
                    self.next.push(Reverse((request.at, number)));
                    self.waiting[number] = Some(request);
                    return Ok(());
                }
                Err(error) => {
                    self.unreadable.lines += 1;
                    let first = || format!("{}:{}: {error}", file.name, file.line);
                    self.unreadable.first.get_or_insert_with(first);
                }
            }
        }
        Ok(())
    }
}

impl LogFile {
    fn open(path: &Path) -> anyhow::Result<(Self, u64)> {
        let read = Arc::new(AtomicU64::new(0));
        let (source, bytes): (Box<dyn Read>, u64) = if path.as_os_str() == "-" {
            (Box::new(std::io::stdin()), 0)
        } else {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            (Box::new(file), bytes)
        };
        let counted = Counted { source, read: read.clone() };
        let reader: Box<dyn BufRead> = if path.extension().is_some_and(|extension| extension == "gz") {
            Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(BufReader::new(counted))))
        } else {
            Box::new(BufReader::with_capacity(1 << 16, counted))
        };
        let name = path.display().to_string();
        Ok((Self { name, reader, line: 0, last: None, read, buffer: Vec::new() }, bytes))
    }

    /// Returns a request unless its time is far beyond that of the line before. All others would be decided at its time.
    fn plausible(&mut self, request: LoggedRequest) -> Result<LoggedRequest, String> {
        if self.last.is_some_and(|last| request.at > last + MAX_GAP) {
            return Err("the time is more than 30 days after that of the line before".to_owned());
        }
        self.last = Some(request.at);
        Ok(request)
    }

    /// Returns the next line. Bytes that are not UTF-8 are replaced.
    fn next_line(&mut self) -> anyhow::Result<Option<String>> {
        self.buffer.clear();
        let at = |line: u64| format!("{}:{line}", self.name);
        let mut limited = (&mut self.reader).take(MAX_LINE as u64);
        if limited.read_until(b'\n', &mut self.buffer).with_context(|| at(self.line + 1))? == 0 {
            return Ok(None);
        }
        self.line += 1;
        if !self.buffer.ends_with(b"\n") && self.buffer.len() == MAX_LINE {
            self.reader.skip_until(b'\n').with_context(|| at(self.line))?;
        }
        Ok(Some(String::from_utf8_lossy(&self.buffer).into_owned()))
    }
}

/// Counts the bytes that are read.
struct Counted {
    source: Box<dyn Read>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.source.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
