//! The common and the combined log format of Apache httpd, nginx, Caddy and others.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::reason::Reason;
use super::{Fields, time};

/// Address, identity, user, time, request, status, bytes; then Referer, User-Agent and, as nginx's packages have it, X-Forwarded-For;
/// then, as ingress-nginx has it, the length and time of the request, and the upstream in brackets. Some begin with the virtual host.
struct Lines {
    plain: Regex,
    with_host: Regex,
}

static LINES: LazyLock<Option<Lines>> = LazyLock::new(|| {
    let quoted = r#""(?:[^"\\]|\\.)*""#;
    let rest = format!(
        r#"\S+ \S.*? \[([^\[\]]+)\] ({quoted}) (\d{{3}}|-) (?:\d+|-)((?: {quoted})*)(?: \d+ (\d+\.\d{{3}}) \[)?(.*)$"#
    );
    Some(Lines {
        plain: Regex::new(&format!(r"^([\w.:-]+) {rest}")).ok()?,
        with_host: Regex::new(&format!(r"^(\S+) ([0-9A-Fa-f.:]+) {rest}")).ok()?,
    })
});

/// Reads a line, with a virtual host in front or without one. Returns `None` if it has another format.
pub(super) fn read(line: &str, has_host: bool) -> Option<Result<Fields, Reason>> {
    let lines = LINES.as_ref()?;
    let found = if has_host { &lines.with_host } else { &lines.plain }.captures(line)?;
    // A time in front is a wrapper.
    if has_host && found.get(1).is_some_and(|host| time::rfc3339(host.as_str()).is_some()) {
        return None;
    }
    let first = usize::from(has_host);
    let part = |n: usize| found.get(first + n).map_or("", |part| part.as_str());
    let request = unescape(&part(3)[1..part(3).len() - 1]).into_owned();
    // Whoever does not escape quotation marks lets clients end the request early.
    if !request.contains(" HTTP/") && part(7).contains(" HTTP/") {
        return Some(Err(Reason::TwoWays));
    }
    let mut fields = Fields {
        at: time::any(part(2)).map(|end| time::begin(end, part(6).parse().ok())),
        client: Some(part(1).to_owned()),
        status: part(4).parse().ok(),
        ..Fields::default()
    };
    fields.request_line(&request);
    if has_host {
        fields.header("host", found.get(1).map_or("", |host| host.as_str()));
    }
    let mut texts = texts(part(5));
    for name in ["referer", "user-agent", "x-forwarded-for"] {
        if let Some(value) = texts.next() {
            fields.texts += 1;
            fields.header(name, &unescape(value));
        }
    }
    fields.texts += texts.count();
    Some(Ok(fields))
}

/// Returns the texts of a list of texts in quotation marks.
fn texts(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = list;
    std::iter::from_fn(move || {
        let begun = rest.strip_prefix(" \"")?;
        let mut is_escaped = false;
        let end = begun.bytes().position(|byte| {
            let is_end = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        })?;
        rest = &begun[end + 1..];
        Some(&begun[..end])
    })
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
