//! The common and the combined log format of Apache httpd, nginx, Caddy and others.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

use super::{Fields, Reason, any_time, begin_time, rfc3339};

/// Address, identity, user, time, request, status, bytes; then Referer, User-Agent and, as nginx's packages have it, X-Forwarded-For;
/// then, as ingress-nginx has it, the length and time of the request, and the upstream in brackets. Some begin with the virtual host.
struct Lines {
    plain: Line,
    with_host: Line,
}

/// A format, to the number of bytes.
struct Line {
    /// For users without `[`. It needs no backtracking, and is several times as fast as the other one.
    usual: Regex,
    any: Regex,
}

impl Line {
    /// `begin` is an expression for what precedes the identity.
    fn new(begin: &str) -> Option<Self> {
        let new = |user: &str| {
            let line = format!(
                r#"^{begin} [^ ]+ {user}\[(?<time>[^\[\]]+)\] ("(?:[^"\\]|\\.)*") ([0-9]{{3}}|-) (?:[0-9]+|-)"#
            );
            Regex::new(&line).ok()
        };
        Some(Self { usual: new(r"[^ \[][^\[]*")?, any: new(r"[^ ].*? ")? })
    }

    fn captures<'a>(&self, line: &'a str) -> Option<Captures<'a>> {
        let is_usual = |found: &Captures<'_>| {
            found.name("time").is_some_and(|time| line[..time.start()].ends_with(" ["))
        };
        self.usual.captures(line).filter(is_usual).or_else(|| self.any.captures(line))
    }
}

static LINES: LazyLock<Option<Lines>> = LazyLock::new(|| {
    Some(Lines { plain: Line::new(r"([\w.:-]+)")?, with_host: Line::new(r"([^ ]+) ([0-9A-Fa-f.:]+)")? })
});

/// Reads a line, with a virtual host in front or without one. Returns `None` if it has another format.
pub(super) fn read(line: &str, has_host: bool) -> Option<Result<Fields, Reason>> {
    let lines = LINES.as_ref()?;
    let found = if has_host { &lines.with_host } else { &lines.plain }.captures(line)?;
    // A time in front is a wrapper.
    if has_host && found.get(1).is_some_and(|host| rfc3339(host.as_str()).is_some()) {
        return None;
    }
    let first = usize::from(has_host);
    let part = |n: usize| found.get(first + n).map_or("", |part| part.as_str());
    let request = unescape(&part(3)[1..part(3).len() - 1]);
    let mut rest = &line[found.get_match().end()..];
    let mut fields =
        Fields { client: Some(part(1).to_owned()), status: part(4).parse().ok(), ..Fields::default() };
    fields.request_line(&request);
    if has_host {
        fields.header("host", found.get(1).map_or("", |host| host.as_str()));
    }
    while let Some((text, after)) = text(rest) {
        if let Some(name) = ["referer", "user-agent", "x-forwarded-for"].get(fields.texts) {
            fields.header(name, &unescape(text));
        }
        fields.texts += 1;
        rest = after;
    }
    // Whoever does not escape quotation marks lets clients end the request early.
    if !request.contains(" HTTP/") && rest.contains(" HTTP/") {
        return Some(Err(Reason::TwoWays));
    }
    fields.at = any_time(part(2)).map(|end| begin_time(end, took(rest)));
    Some(Ok(fields))
}

/// Returns the text in quotation marks at the beginning, after a space, and what follows it.
fn text(line: &str) -> Option<(&str, &str)> {
    let begun = line.strip_prefix(" \"")?;
    let mut is_escaped = false;
    let end = begun.bytes().position(|byte| {
        let is_end = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_end
    })?;
    Some((&begun[..end], &begun[end + 1..]))
}

/// Returns how many seconds a request took: ` LENGTH SECONDS [UPSTREAM]`, as ingress-nginx has it.
fn took(rest: &str) -> Option<f64> {
    let mut words = rest.strip_prefix(' ')?.split(' ');
    let (length, took, upstream) = (words.next()?, words.next()?, words.next()?);
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (seconds, fraction) = took.split_once('.')?;
    let is_so = is_number(length) && is_number(seconds) && is_number(fraction) && fraction.len() == 3;
    if is_so && upstream.starts_with('[') { took.parse().ok() } else { None }
}

/// Replaces `\"`, `\\` and `\xHH`.
pub(super) fn unescape(text: &str) -> Cow<'_, str> {
    if !text.contains('\\') {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match (first, after) {
            (b'\\', [b'x', high, low, after @ ..]) => {
                let hex =
                    std::str::from_utf8(&[*high, *low]).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok());
                bytes.push(hex.unwrap_or(b'?'));
                rest = after;
            }
            (b'\\', [escaped, after @ ..]) => {
                bytes.push(*escaped);
                rest = after;
            }
            (byte, _) => bytes.push(*byte),
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}
