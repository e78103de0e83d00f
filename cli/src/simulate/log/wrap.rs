//! Wrappers: what container runtimes, `kubectl logs`, stern, compose, syslog and journald write around a line.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::{Reason, json};

/// A wrapper around each line of a file. No part of it is chosen by clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrapper {
    /// Objects whose field `log`, `message` or `MESSAGE` is the line: files of Docker, `stern -o json`, `journalctl -o json`, Fluent Bit.
    Json,
    /// A prefix, by its position.
    Prefix(usize),
}

/// Returns all wrappers.
pub(super) fn wrappers() -> impl Iterator<Item = Wrapper> {
    std::iter::once(Wrapper::Json).chain((0..PREFIXES.len()).map(Wrapper::Prefix))
}

/// Prefixes, as regular expressions that match to the first byte of the line inside. `TIME` stands for a time, `COLOR` for colors of
/// terminals, and `NAME` for a name of Kubernetes (RFC 1123).
const PREFIXES: [&str; 8] = [
    // Files of containerd and CRI-O, where P is a piece of a line and F its last one.
    "^TIME (stdout|stderr) ([FP])(?::[A-Z:]+)? ",
    // `kubectl logs --timestamps` and `docker logs --timestamps`.
    "^TIME ",
    // `kubectl logs --prefix`.
    r"^COLOR\[pod/[^\]/\s]+/[^\]/\s]+\]COLOR ",
    // stern: pod and container.
    "^NAME NAME ",
    // stern with `--all-namespaces`: namespace, pod and container.
    "^NAME NAME NAME ",
    // `docker compose logs`.
    r"^COLOR[A-Za-z0-9][\w.-]* *COLOR *\|COLOR COLOR",
    // Syslog of RFC 3164 as rsyslog and journald write it, with either form of the time.
    r"^(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?|TIME) [\w.:-]+ [\w./@-]+(?:\[\d+\])?: ",
    // Syslog of RFC 5424.
    r#"^<\d{1,3}>1 (?:TIME|-) \S+ \S+ \S+ \S+ (?:-|(?:\[[^\]"]*(?:"(?:[^"\\]|\\.)*"[^\]"]*)*\])+) (?:\x{feff})?"#,
];

static COMPILED: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let time = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)";
    let color = r"(?:\x1b\[[0-9;]*m)*";
    let name = "COLOR[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?COLOR";
    let whole = |text: &str| text.replace("TIME", time).replace("NAME", name).replace("COLOR", color);
    PREFIXES.iter().filter_map(|prefix| Regex::new(&whole(prefix)).ok()).collect()
});

impl Wrapper {
    /// Returns the line inside.
    fn unwrap(self, line: &str) -> Result<Cow<'_, str>, Reason> {
        match self {
            Self::Json => json::wrapped(line).map(Cow::Owned).ok_or(Reason::Wrapped),
            Self::Prefix(0) if LinePiece::of(line).is_some_and(|piece| !piece.is_last) => Err(Reason::Piece),
            Self::Prefix(at) => {
                let found = COMPILED.get(at).and_then(|regex| regex.find(line)).ok_or(Reason::Wrapped)?;
                Ok(Cow::Borrowed(&line[found.end()..]))
            }
        }
    }
}

/// A piece of a line, as files of containerd and CRI-O have it.
pub(super) struct LinePiece {
    pub(super) is_stdout: bool,
    pub(super) is_last: bool,
    /// The position of its text.
    pub(super) begin: usize,
}

impl LinePiece {
    pub(super) fn of(line: &str) -> Option<Self> {
        let found = COMPILED.first()?.captures(line)?;
        let part = |n: usize| found.get(n).map_or("", |part| part.as_str());
        Some(Self { is_stdout: part(1) == "stdout", is_last: part(2) == "F", begin: found.get(0)?.end() })
    }
}

/// Removes wrappers, the outer one first.
pub(super) fn unwrap<'a>(line: &'a str, wrappers: &[Wrapper]) -> Result<Cow<'a, str>, Reason> {
    let [first, rest @ ..] = wrappers else { return Ok(Cow::Borrowed(line)) };
    match first.unwrap(line)? {
        Cow::Borrowed(inner) => unwrap(inner, rest),
        Cow::Owned(inner) => unwrap(inner.trim_end(), rest).map(|line| Cow::Owned(line.into_owned())),
    }
}
