//! The formats of HAProxy and of AWS Application Load Balancers.

use std::sync::LazyLock;

use regex::Regex;

use super::{Fields, time};

/// HAProxy's `option httplog` and `option httpslog`: client, time of the request, frontend, server, timers, status, bytes, cookies,
/// state, connections, queues, captured headers, request, and what TLS adds. HAProxy writes quotation marks, braces and bars in
/// values as `#XX`.
static HAPROXY: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r"^(\S+):\d+ \[(\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d\.\d{3})\] \S+ \S+/\S+ ",
        r"-?\d+/-?\d+/-?\d+/-?\d+/\+?\d+ (\d{3}|-1) \+?\d+ \S+ \S+ \S{4} \d+/\d+/\d+/\d+/\+?\d+ \d+/\d+ ",
        r#"(?:\{[^{}"]*\} ){0,2}"([^"]*)"(?: [^"]*)?$"#
    ))
    .ok()
});

/// Reads a line of HAProxy. It writes its local time without an offset, which is read as UTC.
pub(super) fn haproxy(line: &str) -> Option<Fields> {
    let found = HAPROXY.as_ref()?.captures(line)?;
    let part = |n: usize| found.get(n).map_or("", |part| part.as_str());
    let mut fields = Fields {
        at: time::without_offset(part(2)),
        client: Some(part(1).to_owned()),
        status: part(3).parse().ok(),
        ..Fields::default()
    };
    fields.request_line(part(4));
    Some(fields)
}

/// Type, time of the response, load balancer, client, target, three times, two statuses, two sizes, request, User-Agent, cipher, protocol,
/// target group, trace, server name, certificate, priority, time of the request, and more.
static ALB: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let quoted = r#""((?:[^"\\]|\\.)*)""#;
    Regex::new(&format!(
        "^(?:https?|h2|grpcs|wss?) (\\S+) \\S+ (\\S+):\\d+ \\S+ \\S+ \\S+ \\S+ (\\d{{3}}|-) \\S+ \\d+ \\d+ {quoted} {quoted} \
         \\S+ \\S+ \\S+ {quoted} {quoted} {quoted} \\S+ (\\S+) {quoted}(?: .*)?$"
    ))
    .ok()
});

/// Reads a line of an Application Load Balancer.
pub(super) fn alb(line: &str) -> Option<Fields> {
    let found = ALB.as_ref()?.captures(line)?;
    let part = |n: usize| found.get(n).map_or("", |part| part.as_str());
    let mut fields = Fields {
        at: time::rfc3339(part(9)).or_else(|| time::rfc3339(part(1))),
        client: Some(part(2).to_owned()),
        status: part(3).parse().ok(),
        ..Fields::default()
    };
    fields.request_line(part(4));
    let host = fields.target.as_deref().and_then(|target| target.split_once("://"));
    let host = host.map(|(_, rest)| rest.split(['/', '?']).next().unwrap_or_default().to_owned());
    fields.header("host", &host.unwrap_or_default());
    fields.header("user-agent", part(5));
    Some(fields)
}
