//! The default log format of Envoy, and that of Istio.

use std::sync::LazyLock;

use regex::Regex;

use super::{Fields, time};

/// Time, request, status, flags; of Istio details and a text; four numbers; then five texts: X-Forwarded-For, User-Agent, the id of the
/// request, the host, and the server that answered. Envoy escapes nothing, so a line with another number of quotation marks is
/// not read: a client could have chosen its parts.
static LINE: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let texts = r#""([^"]*)" "([^"]*)" "[^"]*" "([^"]*)" "[^"]*"(?: \S+ \S+ \S+ ([^"\s]+) [^"]*| [^"]*)?$"#;
    let numbers = r"\d+ \d+ \d+ (?:\d+|-)";
    let line = format!(
        r#"^\[(\d{{4}}-[^\]]+)\] "(\S+) (\S+) [^"]*" (\d+) \S+ (?:\S+ \S+ "[^"]*" )?{numbers} {texts}"#
    );
    Regex::new(&line).ok()
});

/// Reads a line. Returns `None` if it has another format.
pub(super) fn read(line: &str) -> Option<Fields> {
    let found = LINE.as_ref()?.captures(line)?;
    let part = |n: usize| found.get(n).map_or("", |part| part.as_str());
    let forwarded = part(5);
    let mut fields = Fields {
        at: time::rfc3339(part(1)),
        method: Some(part(2).to_owned()),
        target: Some(part(3).to_owned()),
        // Envoy appends the address of its own client. Istio has it also as the fourth value after the server.
        client: Some(if forwarded == "-" { part(8) } else { forwarded }.to_owned()),
        status: part(4).parse().ok(),
        ..Fields::default()
    };
    fields.header("x-forwarded-for", forwarded);
    fields.header("user-agent", part(6));
    fields.header("host", part(7));
    Some(fields)
}
