//! Logs, on standard error: one line for each event, as text or JSON. Nothing that happens there stops or ends a process. A thread of
//! its own writes the lines, so that no request waits for a reader that does not read. Lines that find no room, or that cannot be
//! written, are dropped and counted.

use std::error::Error;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Bytes that wait for standard error at most.
const MAX_WAITING: usize = 1 << 20;
/// Time that the last lines of a process have.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Bytes of lines that wait.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// Lines that were dropped.
static DROPPED: AtomicU64 = AtomicU64::new(0);

/// The format of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object.
    Json,
}

/// A log filter that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("invalid log filter {filter:?} ({error}): write for example info, debug, or info,sluice_store=debug")]
pub struct InvalidLogFilter {
    filter: String,
    error: tracing_subscriber::filter::ParseError,
}

/// Starts to log. Only the first call in a process has an effect. The last lines are written when the guard is dropped.
pub fn init(format: LogFormat, filter: &str) -> Result<LastLines, InvalidLogFilter> {
    let parsed = EnvFilter::try_new(filter);
    let parsed = parsed.map_err(|error| InvalidLogFilter { filter: filter.to_owned(), error })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parsed)
        .with_writer(Lines::to(io::stderr()))
        // Otherwise it reports a line that cannot be written to standard error, and panics.
        .log_internal_errors(false);
    let _ = match format {
        LogFormat::Text => builder.with_ansi(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
    };
    Ok(LastLines(()))
}

/// Returns the text of an error with its causes, each of them once. Some libraries repeat the causes of an error in its own text, in
/// several forms.
#[must_use]
pub fn told(error: &(dyn Error + 'static)) -> String {
    let mut causes = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        causes.push(error.to_string());
        cause = error.source();
    }
    let own = causes.iter().enumerate().map(|(n, text)| match causes.get(n + 1) {
        Some(cause) if cause == text => "",
        Some(cause) => text.split_once(&format!(": {cause}")).map_or(text.as_str(), |(own, _)| own),
        None => text,
    });
    own.filter(|own| !own.is_empty()).collect::<Vec<_>>().join(": ")
}

/// Says something on standard error that is no line of the log, such as why a process ends. A failure changes nothing.
pub fn say(text: &str) {
    say_part(&format_args!("{text}\n"));
}

/// Says something on standard error that has its line breaks. A failure changes nothing.
pub fn say_part(text: &dyn Display) {
    let _ = write!(io::stderr(), "{text}");
}

/// Waits for the last lines of a process, but not for a reader that does not read.
#[derive(Debug)]
#[must_use]
pub struct LastLines(());

impl Drop for LastLines {
    fn drop(&mut self) {
        let end = Instant::now() + LAST_LINES;
        while WAITING.load(Relaxed) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The number of lines that were dropped, as a metric.
#[derive(Debug)]
pub struct DroppedLines;

impl Collector for DroppedLines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let help = "Lines of the log that were dropped, because standard error took no more";
        let counter = ConstCounter::new(DROPPED.load(Relaxed));
        let metric = encoder.encode_descriptor("log_lines_dropped", help, None, MetricType::Counter)?;
        counter.encode(metric)
    }
}

/// Lines on their way to an output.
#[derive(Debug)]
struct Lines(Option<Sender<Vec<u8>>>);

impl Lines {
    /// Starts to write to an output. Without a thread, each line is written by whoever logs it.
    fn to(output: impl Write + Send + 'static) -> Self {
        let (sender, lines) = channel();
        let writer = thread::Builder::new().name("log".to_owned());
        Self(writer.spawn(move || write_all(&lines, output)).is_ok().then_some(sender))
    }

    /// Passes a line on, or drops it.
    fn push(&self, line: &[u8]) {
        let Some(sender) = &self.0 else {
            count_dropped(io::stderr().write_all(line).is_err());
            return;
        };
        let is_full = WAITING.fetch_add(line.len(), Relaxed) + line.len() > MAX_WAITING;
        // Lines are few, so that the memory of one is nothing that a request notices.
        if is_full || sender.send(line.to_vec()).is_err() {
            WAITING.fetch_sub(line.len(), Relaxed);
            count_dropped(true);
        }
    }
}

fn count_dropped(is_dropped: bool) {
    DROPPED.fetch_add(u64::from(is_dropped), Relaxed);
}

/// Writes lines until there are no more. What cannot be written is dropped: the output may be a full disk, or a pipe whose reader has
/// gone, and either may be back for the next line.
fn write_all(lines: &Receiver<Vec<u8>>, mut output: impl Write) {
    while let Ok(line) = lines.recv() {
        count_dropped(output.write_all(&line).and_then(|()| output.flush()).is_err());
        WAITING.fetch_sub(line.len(), Relaxed);
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

/// A line. It comes in one piece.
struct Line<'a>(&'a Lines);

impl Write for Line<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    /// An output whose writes wait for a test, and fail if it says so.
    struct Slow(Receiver<bool>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.recv() {
                Ok(true) => Ok(bytes.len()),
                Ok(false) | Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Waits for a number of dropped lines. Other tests of this process log nothing.
    fn dropped(lines: u64) {
        let end = Instant::now() + Duration::from_secs(60);
        while DROPPED.load(Relaxed) != lines {
            assert!(Instant::now() < end, "{} of {lines}", DROPPED.load(Relaxed));
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// An error as those of the client of Kubernetes.
    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("no right: Forbidden")]
        Status,
        #[error("ApiError: {0} ({0:?})")]
        Api(#[source] Box<Self>),
        #[error("cannot list: {0}")]
        Watch(#[source] Box<Self>),
        #[error(transparent)]
        Plain(Box<Self>),
        #[error("the policies could not be read")]
        Context(#[source] Box<Self>),
    }

    #[test]
    fn each_cause_of_an_error_is_told_once() {
        let api = || Failure::Api(Box::new(Failure::Status));
        assert_eq!(told(&api()), "ApiError: no right: Forbidden");
        let watch = Failure::Watch(Box::new(Failure::Plain(Box::new(api()))));
        assert_eq!(told(&watch), "cannot list: ApiError: no right: Forbidden");
        let context = Failure::Context(Box::new(watch));
        assert_eq!(
            told(&context),
            "the policies could not be read: cannot list: ApiError: no right: Forbidden"
        );
    }

    #[test]
    fn a_writer_that_waits_keeps_nobody_waiting_and_what_finds_no_room_is_dropped() {
        let (allow, allowed) = sync_channel(0);
        let lines = Lines::to(Slow(allowed));
        let line = vec![b'a'; MAX_WAITING / 4];
        for _ in 0..7 {
            assert_eq!(lines.make_writer().write(&line).unwrap(), line.len());
        }
        dropped(3);
        // A line that cannot be written is dropped, and the next one is written.
        for is_written in [false, true, true, false] {
            allow.send(is_written).unwrap();
        }
        dropped(5);
        lines.make_writer().write_all(b"again").unwrap();
        allow.send(true).unwrap();
        drop(LastLines(()));
        assert_eq!(WAITING.load(Relaxed), 0);
        dropped(5);
    }
}
