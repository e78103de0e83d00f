//! The default log format of Envoy, and that of Istio.

use std::sync::LazyLock;

use regex::Regex;

use super::{Fields, time};

/// Time, request, status; then, among others, five texts in quotation marks that end with X-Forwarded-For, User-Agent,
/// the id of the request, the host, and the server that answered.
static LINE: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r#"^\[(\d{4}-[^\]]+)\] "(\S+) (\S+) [^"]*" (\d+) (.*)$"#).ok());

/// Reads a line. Returns `None` if it has another format.
pub(super) fn read(line: &str) -> Option<Result<Fields, String>> {
    let found = LINE.as_ref()?.captures(line)?;
    let texts: Vec<_> = found.get(5)?.as_str().split('"').skip(1).step_by(2).collect();
    let Some([forwarded, agent, _id, host, _server]) = texts.last_chunk() else {
        return Some(Err("the line ends before the host".to_owned()));
    };
    let mut fields = Fields {
        at: time::rfc3339(found.get(1)?.as_str()),
        method: Some(found.get(2)?.as_str().to_owned()),
        target: Some(found.get(3)?.as_str().to_owned()),
        // Envoy appends the address of its own client.
        client: forwarded.rsplit(',').next().map(|last| last.trim().to_owned()),
        status: found.get(4)?.as_str().parse().ok(),
        headers: Vec::new(),
    };
    fields.header("x-forwarded-for", forwarded);
    fields.header("user-agent", agent);
    fields.header("host", host);
    Some(Ok(fields))
}
