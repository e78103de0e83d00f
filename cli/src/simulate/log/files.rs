//! Reads log files in the order of time: rotated files one after the other, and those of several pods side by side.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::format::{Hints, Reader};
use super::sorter::Sorter;
use super::wrap::LinePiece;
use super::{LoggedRequest, Reason};
use anyhow::Context as _;
use flate2::read::MultiGzDecoder;
use serde::Serialize;
use zstd::Decoder;

/// Longest line, in bytes. The rest of a longer one is skipped.
const MAX_LINE: usize = 256 * 1024;
/// The byte order mark, which some editors and exports write first.
const BOM: &[u8] = "\u{feff}".as_bytes();
/// Number of first lines that choose how a file is read, and of their bytes.
const FIRST_LINES: usize = 100;
const FIRST_BYTES: usize = 1024 * 1024;
/// Number of characters that are shown of a line that cannot be read.
const SHOWN: usize = 160;
/// Number of lines by which a line with a wild time is recognized.
const AHEAD: usize = 32;
/// How far the time of a line may be from those around it, in microseconds: it is later than the lines that follow, or earlier than
/// all others.
const FAR_AHEAD: u64 = 86_400_000_000;
const FAR_BEHIND: u64 = 30 * FAR_AHEAD;
/// Number of lines before the last line of a file by which its time is judged.
const ENOUGH: u64 = 10;

/// The requests of several files, in the order of time.
pub(in crate::simulate) struct Requests {
    files: Vec<LogFile>,
    /// The next request of each file, earliest first.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    waiting: Vec<Option<Box<LoggedRequest>>>,
    sorter: Sorter,
    hints: Hints,
    pub(in crate::simulate) incomplete: Vec<Incomplete>,
    /// Number of bytes of all files.
    pub(in crate::simulate) bytes: u64,
    pub(in crate::simulate) unreadable: Unreadable,
}

/// Lines that could not be read, by the reason.
#[derive(Debug, Default)]
pub(in crate::simulate) struct Unreadable {
    pub(in crate::simulate) lines: u64,
    pub(in crate::simulate) reasons: BTreeMap<Reason, UnreadableLines>,
}

/// Lines that could not be read for one reason.
#[derive(Debug)]
pub(in crate::simulate) struct UnreadableLines {
    pub(in crate::simulate) lines: u64,
    /// Place of the first: `access.log:17`.
    pub(in crate::simulate) at: String,
    /// Beginning of the first.
    pub(in crate::simulate) line: String,
}

impl Unreadable {
    fn add(&mut self, reason: Reason, file: &str, number: u64, line: &str) {
        self.lines += 1;
        let first = || UnreadableLines {
            lines: 0,
            at: format!("{file}:{number}"),
            line: line.trim().chars().take(SHOWN).collect(),
        };
        self.reasons.entry(reason).or_insert_with(first).lines += 1;
    }
}

/// A compressed file of which only the beginning could be read.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::simulate) struct Incomplete {
    file: String,
    /// Number of lines that were read.
    lines: u64,
    /// Error in the content. One that only ends too early has none.
    #[serde(skip_serializing_if = "Option::is_none")]
    corrupt: Option<String>,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, lines, corrupt } = self;
        match corrupt {
            Some(error) => {
                write!(f, "{file} is corrupt after line {lines} ({error}): only what precedes was read")
            }
            None => write!(f, "{file} ends in the middle, after line {lines}: only what precedes was read"),
        }
    }
}

struct LogFile {
    name: String,
    reader: Box<dyn BufRead>,
    is_compressed: bool,
    /// Whether the last line was read.
    has_ended: bool,
    incomplete: Option<Incomplete>,
    line: u64,
    /// First lines that are not read yet.
    first: VecDeque<RawLine>,
    /// The pieces of a line on standard error, and of one on standard output, of which more are to come.
    pieces: [Option<(RawLine, usize)>; 2],
    format: Reader,
    /// Requests that follow, and their lines.
    ahead: VecDeque<Ahead>,
    /// Number of requests so far, the first time and the latest one.
    requests: u64,
    begin: u64,
    last: Option<u64>,
    /// Number of bytes that were read from the disk.
    read: Arc<AtomicU64>,
    buffer: Vec<u8>,
}

/// A line as the file has it.
struct RawLine {
    text: String,
    /// Whether the file has more of it.
    is_cut: bool,
    /// Number of lines of the file.
    lines: u64,
}

/// A request, and the line that it is from.
struct Ahead {
    request: Box<LoggedRequest>,
    line: u64,
    text: String,
}

impl AsRef<str> for RawLine {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

impl Requests {
    /// Opens files; `-` is standard input. Files of gzip and zstd are decompressed.
    pub(in crate::simulate) fn open(files: &[impl AsRef<Path>], hints: Hints) -> anyhow::Result<Self> {
        let mut requests = Self {
            files: Vec::new(),
            next: BinaryHeap::new(),
            waiting: Vec::new(),
            sorter: Sorter::default(),
            hints,
            incomplete: Vec::new(),
            bytes: 0,
            unreadable: Unreadable::default(),
        };
        for path in files {
            let path = path.as_ref();
            let (mut file, bytes) = LogFile::open(path).with_context(|| path.display().to_string())?;
            file.choose_format(&requests.hints)?;
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
    pub(in crate::simulate) fn begin(&mut self) -> anyhow::Result<Option<u64>> {
        self.prepare()?;
        Ok(self.sorter.first())
    }

    /// Returns the next request.
    pub(in crate::simulate) fn next(&mut self) -> anyhow::Result<Option<Box<LoggedRequest>>> {
        self.prepare()?;
        Ok(self.sorter.take())
    }

    /// Reads requests until the next one is known.
    fn prepare(&mut self) -> anyhow::Result<()> {
        while !self.sorter.is_ready() {
            let next = self.next.pop();
            let request = next.and_then(|Reverse((_, number))| Some((number, self.waiting[number].take()?)));
            if let Some((number, _)) = &request {
                self.advance(*number)?;
            }
            self.sorter.add(request.map(|(_, request)| request));
        }
        Ok(())
    }

    /// Returns the number of bytes that were read.
    pub(in crate::simulate) fn read(&self) -> u64 {
        self.files.iter().map(|file| file.read.load(Ordering::Relaxed)).sum()
    }

    /// Reads the next request of a file.
    fn advance(&mut self, number: usize) -> anyhow::Result<()> {
        let file = &mut self.files[number];
        loop {
            while file.ahead.len() <= AHEAD
                && let Some(RawLine { text, is_cut, lines }) = file.next_line()?
            {
                file.line += lines;
                if text.trim().is_empty()
                    || file.format.unwrap(&text).is_ok_and(|line| line.trim().is_empty())
                {
                    continue;
                }
                let read = if is_cut { Err(Reason::TooLong) } else { file.format.read(&text, &self.hints) };
                match read {
                    Ok(request) => {
                        let text = beginning(text, 4 * SHOWN);
                        file.ahead.push_back(Ahead { request, line: file.line, text });
                    }
                    Err(reason) => self.unreadable.add(reason, &file.name, file.line, &text),
                }
            }
            let Some(Ahead { request, line, text }) = file.ahead.pop_front() else { break };
            if file.is_far_away(request.at) {
                self.unreadable.add(Reason::FarAway, &file.name, line, &text);
                continue;
            }
            file.begin = if file.requests == 0 { request.at } else { file.begin.min(request.at) };
            file.requests += 1;
            file.last = file.last.max(Some(request.at));
            self.next.push(Reverse((request.at, number)));
            self.waiting[number] = Some(request);
            return Ok(());
        }
        self.incomplete.extend(file.incomplete.take());
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
        let (reader, is_compressed) = decompressed(counted)?;
        let name = path.display().to_string();
        let file = Self {
            name,
            reader,
            is_compressed,
            has_ended: false,
            incomplete: None,
            line: 0,
            first: VecDeque::new(),
            pieces: [None, None],
            format: Reader::default(),
            ahead: VecDeque::new(),
            requests: 0,
            begin: 0,
            last: None,
            read,
            buffer: Vec::new(),
        };
        Ok((file, bytes))
    }

    /// Reports whether a time is far from that of the lines before and after. A gap that lasts is none.
    fn is_far_away(&self, at: u64) -> bool {
        let most = |is_so: &dyn Fn(u64) -> bool| {
            self.ahead.iter().filter(|ahead| is_so(ahead.request.at)).count() * 2 > self.ahead.len()
        };
        let is_later = || most(&|next| next + FAR_AHEAD < at);
        let Some(last) = self.last else { return is_later() || most(&|next| next > at + FAR_BEHIND) };
        if at > last + FAR_AHEAD {
            let is_end = self.ahead.is_empty() && self.requests >= ENOUGH;
            return is_later() || is_end && at - last > 10 * (last - self.begin);
        }
        last > at + FAR_BEHIND && most(&|next| next + FAR_AHEAD > last)
    }

    /// Chooses how the file is read, by its first lines.
    fn choose_format(&mut self, hints: &Hints) -> anyhow::Result<()> {
        let mut bytes = 0;
        while self.first.len() < FIRST_LINES
            && bytes < FIRST_BYTES
            && let Some(line) = self.read_line()?
        {
            bytes += line.text.len();
            self.first.push_back(line);
        }
        self.format = Reader::choose(self.first.make_contiguous(), hints);
        Ok(())
    }

    /// Ends a compressed file whose content cannot be decompressed further. Fails if the file itself cannot be read.
    fn end_early(&mut self, error: io::Error, number: u64) -> anyhow::Result<()> {
        if !self.is_compressed || error.raw_os_error().is_some() || error.kind() == ErrorKind::Unsupported {
            return Err(error).with_context(|| format!("{}:{number}", self.name));
        }
        let corrupt = (error.kind() != ErrorKind::UnexpectedEof).then(|| error.to_string());
        self.incomplete = Some(Incomplete { file: self.name.clone(), lines: number - 1, corrupt });
        self.has_ended = true;
        Ok(())
    }

    fn next_line(&mut self) -> anyhow::Result<Option<RawLine>> {
        match self.first.pop_front() {
            Some(line) => Ok(Some(line)),
            None => self.read_line(),
        }
    }

    /// Reads a line, and joins the pieces that the container runtime has made of it.
    fn read_line(&mut self) -> anyhow::Result<Option<RawLine>> {
        loop {
            let Some(mut line) = self.read_piece()? else {
                return Ok(self.pieces.iter_mut().find_map(Option::take).map(|(line, _)| line));
            };
            let Some(LinePiece { is_stdout, is_last, begin }) = LinePiece::of(&line.text) else {
                return Ok(Some(line));
            };
            let before = &mut self.pieces[usize::from(is_stdout)];
            match (before.take(), is_last) {
                (None, true) => return Ok(Some(line)),
                (None, false) => *before = Some((line, begin)),
                (Some((first, at)), true) => {
                    line.text.insert_str(begin, first.text[at..].trim_end_matches(['\r', '\n']));
                    line.lines += first.lines;
                    line.is_cut |= first.is_cut || line.text.len() > MAX_LINE;
                    return Ok(Some(line));
                }
                (Some((mut first, at)), false) => {
                    first.text.truncate(first.text.trim_end_matches(['\r', '\n']).len());
                    first.is_cut |= line.is_cut || first.text.len() + line.text.len() > MAX_LINE;
                    if !first.is_cut {
                        first.text.push_str(&line.text[begin..]);
                    }
                    first.lines += 1;
                    *before = Some((first, at));
                }
            }
        }
    }

    /// Reads a line from the file. Bytes that are not UTF-8 are replaced.
    fn read_piece(&mut self) -> anyhow::Result<Option<RawLine>> {
        if self.has_ended {
            return Ok(None);
        }
        self.buffer.clear();
        let number = self.line + self.first.iter().map(|line| line.lines).sum::<u64>() + 1;
        let mut limited = (&mut self.reader).take(MAX_LINE as u64);
        match limited.read_until(b'\n', &mut self.buffer) {
            Ok(0) => {
                self.has_ended = true;
                return Ok(None);
            }
            Ok(_) => {}
            // What was read of the last line is not all of it.
            Err(error) => {
                self.end_early(error, number)?;
                return Ok(None);
            }
        }
        let is_cut = !self.buffer.ends_with(b"\n") && self.buffer.len() == MAX_LINE;
        if is_cut && let Err(error) = self.reader.skip_until(b'\n') {
            self.end_early(error, number)?;
        }
        let bytes =
            if number == 1 { self.buffer.strip_prefix(BOM).unwrap_or(&self.buffer) } else { &self.buffer };
        Ok(Some(RawLine { text: String::from_utf8_lossy(bytes).into_owned(), is_cut, lines: 1 }))
    }
}

/// Returns the longest beginning of a text of at most so many bytes.
fn beginning(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.shrink_to_fit();
    }
    text
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
fn decompressed(mut source: impl Read + 'static) -> io::Result<(Box<dyn BufRead>, bool)> {
    let mut first = Vec::new();
    source.by_ref().take(5).read_to_end(&mut first)?;
    if let Some((_, what)) = OTHERS.iter().find(|(begin, _)| first.starts_with(begin)) {
        return Err(io::Error::new(ErrorKind::Unsupported, *what));
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
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer).map_err(|error| {
            // ZSTD_error_frameParameter_windowTooLarge, of which the crate passes on only the text.
            if error.to_string().contains("requires too much memory") {
                let what = "its zstd window is larger than 128 MiB: decompress it with zstd -d --long=31";
                return io::Error::new(ErrorKind::Unsupported, what);
            }
            error
        })
    }
}
