//! The common and the combined log format of Apache httpd, nginx, Caddy and others.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::Regex;

use super::reason::Reason;
use super::{Fields, time};

/// Address, identity, user, time, request, status, bytes; then Referer, User-Agent and, as nginx's packages have it, X-Forwarded-For.
/// Some begin with the virtual host.
static LINE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let quoted = r#""((?:[^"\\]|\\.)*)""#;
    let more = format!("(?: {quoted} {quoted}(?: {quoted})?)?");
    Regex::new(&format!(
        r"^(?:([A-Za-z0-9][^\s:]*:\d+) )?(\S+) \S+ \S.*? \[([^\]]+)\] {quoted} (\d{{3}}) (?:\d+|-){more}"
    ))
    .ok()
});

/// Reads a line. Returns `None` if it has another format.
pub(super) fn read(line: &str) -> Option<Result<Fields, Reason>> {
    let found = LINE.as_ref()?.captures(line)?;
    let part = |n: usize| found.get(n).map(|part| part.as_str());
    let request = unescape(part(4)?);
    let mut words = request.split(' ');
    let (Some(method), Some(target)) = (words.next().filter(|word| !word.is_empty()), words.next()) else {
        return Some(Err(Reason::NotARequest));
    };
    let mut fields = Fields {
        at: time::clf(part(3)?),
        method: Some(method.to_owned()),
        target: Some(target.to_owned()),
        client: part(2).map(str::to_owned),
        status: part(5)?.parse().ok(),
        headers: Vec::new(),
        is_named: false,
    };
    if let Some(host) = part(1) {
        fields.header("host", host);
    }
    for (name, n) in [("referer", 6), ("user-agent", 7), ("x-forwarded-for", 8)] {
        if let Some(value) = part(n) {
            fields.header(name, &unescape(value));
        }
    }
    Some(Ok(fields))
}

/// Replaces `\"`, `\\` and `\xHH`.
fn unescape(text: &str) -> Cow<'_, str> {
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
