//! Formats as a table: of each a regular expression, whose groups have the names of fields.

use std::sync::LazyLock;

use regex::Regex;

use super::{Fields, time};

/// The default format of Envoy, and that of Istio: time, request, status, flags; of Istio details and a text; four numbers; then five
/// texts: X-Forwarded-For, User-Agent, the id of the request, the host, and the server that answered. Envoy escapes nothing, so a line
/// with another number of quotation marks is not read: a client could have chosen its parts. Envoy appends the address of its own client
/// to X-Forwarded-For, and Istio has it also as the fourth value after the server.
const ENVOY: &str = concat!(
    r#"^\[(?<at>\d{4}-[^\]]+)\] "(?<request>\S+ \S+ [^"]*)" (?<status>\d+) \S+ (?:\S+ \S+ "[^"]*" )?\d+ \d+ \d+ (?:\d+|-) "#,
    r#""(?<forwarded>[^"]*)" "(?<agent>[^"]*)" "[^"]*" "(?<host>[^"]*)" "[^"]*"(?: \S+ \S+ \S+ (?<client>[^"\s]+) [^"]*| [^"]*)?$"#
);

/// HAProxy's `option httplog` and `option httpslog`: client, time of the request, frontend, server, timers, status, bytes, cookies,
/// state, connections, queues, captured headers, request, and what TLS adds. HAProxy writes quotation marks, braces and bars in
/// values as `#XX`, and its local time without an offset, which is read as UTC.
const HAPROXY: &str = concat!(
    r"^(?<client>\S+):\d+ \[(?<at>\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d\.\d{3})\] \S+ \S+/\S+ ",
    r"-?\d+/-?\d+/-?\d+/-?\d+/\+?\d+ (?<status>\d{3}|-1) \+?\d+ \S+ \S+ \S{4} \d+/\d+/\d+/\d+/\+?\d+ \d+/\d+ ",
    r#"(?:\{[^{}"]*\} ){0,2}"(?<request>[^"]*)"(?: [^"]*)?$"#
);

/// AWS Application Load Balancers: type, time of the response, load balancer, client, target, three times, two statuses, two sizes,
/// request, User-Agent, cipher, protocol, target group, trace, server name, certificate, priority, time of the request, and more.
const ALB: &str = concat!(
    r"^(?:https?|h2|grpcs|wss?) (?<end>\S+) \S+ (?<client>\S+):\d+ \S+ \S+ \S+ \S+ (?<status>\d{3}|-) \S+ \d+ \d+ ",
    r#""(?<request>(?:[^"\\]|\\.)*)" "(?<agent>(?:[^"\\]|\\.)*)" \S+ \S+ \S+ (?:"(?:[^"\\]|\\.)*" ){3}\S+ (?<at>\S+) "#,
    r#""(?:[^"\\]|\\.)*"(?: .*)?$"#
);

/// A format.
#[derive(Debug, Clone, Copy)]
pub(in crate::simulate) enum Form {
    Envoy,
    Haproxy,
    Alb,
}

static FORMS: LazyLock<Vec<Regex>> =
    LazyLock::new(|| [ENVOY, HAPROXY, ALB].iter().filter_map(|form| Regex::new(form).ok()).collect());

/// Reads a line. Returns `None` if it has another format.
pub(super) fn read(form: Form, line: &str) -> Option<Fields> {
    let found = FORMS.get(form as usize)?.captures(line)?;
    let part = |name: &str| found.name(name).map(|part| part.as_str()).filter(|part| *part != "-");
    let time = |name: &&str| time::rfc3339(part(name)?).or_else(|| time::without_offset(part(name)?));
    let client = part("forwarded").or(part("client"));
    let mut fields = Fields {
        at: ["at", "end"].iter().find_map(time),
        client: client.map(str::to_owned),
        status: part("status").and_then(|status| status.parse().ok()),
        ..Fields::default()
    };
    fields.request_line(part("request").unwrap_or_default());
    let host = fields.target.as_deref().and_then(|target| target.split_once("://"));
    let host = host.and_then(|(_, rest)| rest.split(['/', '?']).next()).map(str::to_owned);
    fields.header("x-forwarded-for", part("forwarded").unwrap_or_default());
    fields.header("user-agent", part("agent").unwrap_or_default());
    fields.header("host", part("host").or(host.as_deref()).unwrap_or_default());
    Some(fields)
}
