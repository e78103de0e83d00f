//! How the lines of a file are read. Its first lines choose the wrappers; the format of each line is recognized. A format that is a table
//! has a regular expression, whose groups have the names of fields.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::LazyLock;

use http::HeaderValue;
use regex::Regex;

use super::json::FieldName;
use super::template::Template;
use super::wrap::{Wrapper, unwrap, wrappers as all_wrappers};
use super::{Fields, LoggedRequest, Reason, clf, json, rfc3339, without_offset};

/// Number of wrappers around each other at most.
const MAX_WRAPPERS: usize = 2;

/// A format that the user names, or gives as a format string.
#[derive(Debug, Clone)]
pub(in crate::simulate) enum LogFormat {
    /// The common format and those that extend it: whether a virtual host is in front, and how many texts follow the size.
    Clf {
        has_host: bool,
        texts: usize,
    },
    Of(Form),
    Json,
    Template(Box<Template>),
}

/// Names of formats.
const NAMES: [(&str, LogFormat); 9] = [
    ("common", LogFormat::Clf { has_host: false, texts: 0 }),
    ("combined", LogFormat::Clf { has_host: false, texts: 2 }),
    // As the packages of nginx have it, with X-Forwarded-For.
    ("main", LogFormat::Clf { has_host: false, texts: 3 }),
    ("vhost_combined", LogFormat::Clf { has_host: true, texts: 2 }),
    ("envoy", LogFormat::Of(Form::Envoy)),
    ("istio", LogFormat::Of(Form::Envoy)),
    ("haproxy", LogFormat::Of(Form::Haproxy)),
    ("alb", LogFormat::Of(Form::Alb)),
    ("json", LogFormat::Json),
];

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((_, format)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Ok(format.clone());
        }
        if text.contains(['$', '%']) {
            return Ok(Self::Template(Box::new(text.parse()?)));
        }
        let names: Vec<_> = NAMES.iter().map(|(name, _)| *name).collect();
        Err(format!("write {}, or a format string of nginx or Apache httpd", names.join(", ")))
    }
}

/// Answers of the user to what a log does not say.
#[derive(Debug, Clone, Default)]
pub(in crate::simulate) struct Hints {
    pub(in crate::simulate) fields: Vec<FieldName>,
    pub(in crate::simulate) format: Option<LogFormat>,
}

/// How the lines of a file are read.
#[derive(Debug, Clone, Default)]
pub(in crate::simulate) struct Reader {
    wrappers: Vec<Wrapper>,
    /// Whether lines of the common format have a virtual host in front.
    has_host: bool,
    /// Number of texts after the size that lines of the common format have at most: a client could add one where quotation marks are
    /// not escaped.
    texts: Option<usize>,
    /// Whether the first lines can be read in two ways.
    is_unclear: bool,
}

impl Reader {
    /// Chooses the wrappers with which most of the first lines can be read, or else the fewest wrappers; and likewise whether a virtual
    /// host is in front. Clients choose parts of lines, but neither the wrappers nor most lines.
    pub(in crate::simulate) fn choose(first: &[impl AsRef<str>], hints: &Hints) -> Self {
        let mut chosen = (0, Self::default(), Vec::new());
        let mut chains = vec![Vec::new()];
        let mut next = 0;
        while let Some(wrappers) = chains.get(next).cloned() {
            next += 1;
            for has_host in [false, true] {
                let reader = Self { wrappers: wrappers.clone(), has_host, ..Self::default() };
                let requests: Vec<_> =
                    first.iter().map(|line| reader.read(line.as_ref(), hints).ok()).collect();
                // After a wrapper, a name without a dot is rather that of a container.
                let host = |logged: &LoggedRequest| logged.request.headers().get("host").cloned();
                let is_host = |host: HeaderValue| host.as_bytes().iter().any(|byte| b".:".contains(byte));
                if has_host
                    && !wrappers.is_empty()
                    && !requests.iter().flatten().filter_map(|logged| host(logged)).any(is_host)
                {
                    continue;
                }
                let read = requests.iter().flatten().count();
                if read > chosen.0 {
                    chosen = (read, reader, requests);
                } else if read > 0 && read == chosen.0 {
                    let mut pairs = requests.iter().zip(&chosen.2);
                    chosen.1.is_unclear |= pairs.any(|(a, b)| {
                        a.as_ref().zip(b.as_ref()).is_none_or(|(a, b)| !a.is_same(b)) && a.is_some()
                    });
                }
            }
            if wrappers.len() < MAX_WRAPPERS {
                let outer = all_wrappers().map(|wrapper| [&wrappers[..], &[wrapper]].concat());
                let is_wrapped = |wrappers: &Vec<_>| {
                    first.iter().any(|line| unwrap(line.as_ref().trim(), wrappers).is_ok())
                };
                chains.extend(outer.filter(is_wrapped));
            }
        }
        let (_, mut reader, _) = chosen;
        let texts =
            |line: &str| Some(clf::read(reader.unwrap(line).ok()?.trim(), reader.has_host)?.ok()?.texts);
        let mut counts = BTreeMap::<usize, usize>::new();
        first
            .iter()
            .filter_map(|line| texts(line.as_ref()))
            .for_each(|texts| *counts.entry(texts).or_default() += 1);
        reader.texts = counts.into_iter().max_by_key(|(_, lines)| *lines).map(|(texts, _)| texts);
        reader
    }

    /// Reads a line.
    pub(in crate::simulate) fn read(&self, line: &str, hints: &Hints) -> Result<Box<LoggedRequest>, Reason> {
        if self.is_unclear {
            return Err(Reason::TwoWays);
        }
        let line = self.unwrap(line)?;
        let line = line.trim_end().trim_start_matches(' ');
        let fields = self.fields(line, hints).map_err(|reason| match reason {
            Reason::Format if hints.format.is_some() => Reason::Other,
            reason => reason,
        });
        fields?.request()
    }

    fn fields(&self, line: &str, hints: &Hints) -> Result<Fields, Reason> {
        let clf = |has_host: bool, most: Option<usize>| {
            let fields = clf::read(line, has_host).unwrap_or(Err(Reason::Format))?;
            if most.is_some_and(|most| fields.texts > most) { Err(Reason::TwoWays) } else { Ok(fields) }
        };
        match &hints.format {
            Some(LogFormat::Clf { has_host, texts }) => clf(*has_host, Some(*texts)),
            Some(LogFormat::Of(form)) => read_table(*form, line).ok_or(Reason::Format),
            Some(LogFormat::Json) => json::read(line, &hints.fields),
            Some(LogFormat::Template(template)) => template.read(line).unwrap_or(Err(Reason::Format)),
            None if line.starts_with('{') => json::read(line, &hints.fields),
            None if line.starts_with('[') => read_table(Form::Envoy, line).ok_or(Reason::Format),
            // No line is in two of these formats: they differ before the first part that clients choose.
            None => match clf(self.has_host, self.texts) {
                Err(Reason::Format) => read_table(Form::Haproxy, line)
                    .or_else(|| read_table(Form::Alb, line))
                    .ok_or(Reason::Format),
                fields => fields,
            },
        }
    }

    /// Removes the wrappers of a line.
    pub(in crate::simulate) fn unwrap<'a>(&self, line: &'a str) -> Result<Cow<'a, str>, Reason> {
        unwrap(line.trim(), &self.wrappers)
    }
}

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
fn read_table(form: Form, line: &str) -> Option<Fields> {
    let found = FORMS.get(form as usize)?.captures(line)?;
    let part = |name: &str| found.name(name).map(|part| part.as_str()).filter(|part| *part != "-");
    let time = |name: &&str| rfc3339(part(name)?).or_else(|| without_offset(part(name)?));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(line: &str, named: &[&str]) -> String {
        let fields = named.iter().map(|name| name.parse().unwrap()).collect();
        let hints = Hints { fields, format: None };
        match Reader::choose(&[line], &hints).read(line, &hints) {
            Err(reason) => reason.text().to_owned(),
            Ok(logged) => {
                let LoggedRequest { at, request, client, status } = *logged;
                let header = |name: &str| {
                    let value = request.headers().get(name);
                    value.map_or("-", |value| value.to_str().unwrap_or("?")).to_owned()
                };
                let status = status.map_or(0, |status| status.as_u16());
                let (method, uri) = (request.method(), request.uri());
                let [host, agent, forwarded, customer] =
                    ["host", "user-agent", "x-forwarded-for", "x-customer"].map(header);
                format!("{at} {client} {method} {uri} {status} {host} {agent} {forwarded} {customer}")
            }
        }
    }

    #[test]
    fn lines_of_all_formats_are_read() {
        let cases = [
            (
                r#"192.0.2.7 - - [23/Nov/2026:10:00:00 +0000] "GET /a?b=1 HTTP/1.1" 200 2326"#,
                "1795428000000000 192.0.2.7 GET /a?b=1 200 - - - -",
            ),
            (
                r#"2001:db8::7 - bob smith [23/Nov/2026:11:00:00 +0100] "POST /a HTTP/2.0" 201 - "https://x/" "curl\"8\x22" "192.0.2.1""#,
                r#"1795428000000000 2001:db8::7 POST /a 201 - curl"8" 192.0.2.1 -"#,
            ),
            (
                r#"shop.example:443 192.0.2.7 - - [23/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "ua""#,
                "1795428000000000 192.0.2.7 GET / 200 shop.example:443 ua - -",
            ),
            (
                r#"[2026-11-23T10:00:00.250Z] "POST /api HTTP/2" 204 - 154 0 226 100 "198.51.100.9, 10.0.35.28" "grpc-go" "cc21" "locations" "tcp://10.0.2.1:80""#,
                "1795428000250000 10.0.35.28 POST /api 204 locations grpc-go 198.51.100.9, 10.0.35.28 -",
            ),
            (
                r#"[2026-11-23T10:00:00.250Z] "GET /s HTTP/1.1" 200 - via_upstream - "-" 0 5 1 1 "10.0.0.1" "ua" "id" "shop" "10.1.1.1:80" inbound 127.0.0.6 10.1.1.1:80 10.0.0.1:0 - default"#,
                "1795428000250000 10.0.0.1 GET /s 200 shop ua 10.0.0.1 -",
            ),
            (
                r#"{"ts":1795428000.25,"request":{"remote_ip":"192.0.2.7","method":"GET","host":"shop","uri":"/a","headers":{"User-Agent":["curl"],"X-Customer":["acme"]}},"status":200}"#,
                "1795428000250000 192.0.2.7 GET /a 200 shop curl - acme",
            ),
            (
                r#"{"time_iso8601":"2026-11-23T10:00:00+00:00","remote_addr":"192.0.2.7","request_method":"PUT","request_uri":"/a","status":"200","http_user_agent":"curl","http_x_customer":"acme"}"#,
                "1795428000000000 192.0.2.7 PUT /a 200 - curl - acme",
            ),
            (
                r#"{"ClientHost":"192.0.2.7","StartUTC":"2026-11-23T10:00:00Z","RequestMethod":"GET","RequestPath":"/a","DownstreamStatus":200,"RequestHost":"shop","request_X-Customer":"acme"}"#,
                "1795428000000000 192.0.2.7 GET /a 200 shop - - acme",
            ),
            (
                r#"{"time":"10:00","ts":1795428000,"remote_addr":"-","ip":"192.0.2.7","request":"PUT /a HTTP/1.1","status":"200"}"#,
                "1795428000000000 192.0.2.7 PUT /a 200 - - - -",
            ),
            (
                r#"192.0.2.7 - - [23/Nov/2026:10:00:00 +0000] "GET /?next=https://x/y HTTP/1.1" 200 5 "-" "u\x07a""#,
                "1795428000000000 192.0.2.7 GET /?next=https://x/y 200 - - - -",
            ),
            (
                r#"{"time":"2026-11-23T10:00:00Z","client_ip":"192.0.2.7:4242","url":"https://shop/a?b"}"#,
                "1795428000000000 192.0.2.7 GET /a?b 0 - - - -",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(summary(line, &[]), expected, "{line}");
        }
        // Other formats than those of web servers.
        let cases = [
            // Istio without X-Forwarded-For: the address of the peer.
            (
                r#"[2026-11-23T10:00:00.250Z] "GET /s HTTP/1.1" 200 - via_upstream - "-" 0 5 1 1 "-" "ua" "id" "shop" "10.1.1.1:80" inbound|80|| 127.0.0.6:4 10.1.1.1:80 10.0.0.9:7000 - default"#,
                "1795428000250000 10.0.0.9 GET /s 200 shop ua - -",
            ),
            // Envoy Gateway.
            (
                r#"{"start_time":"2026-11-23T10:00:00.250Z","method":"GET","x-envoy-origin-path":"/get?a","response_code":200,"duration":7000,"x-forwarded-for":"192.0.2.7","user-agent":"curl",":authority":"shop","downstream_remote_address":"192.0.2.7:5000"}"#,
                "1795428000250000 192.0.2.7 GET /get?a 200 shop curl 192.0.2.7 -",
            ),
            // ingress-nginx, as in its documentation of log-format-upstream: the end is 0.5 s later.
            (
                r#"{"time":"2026-11-23T10:00:00+00:00","remote_addr":"","x_forward_for":"198.51.100.9, 192.0.2.7","status":"200","vhost":"shop","request_time":0.5,"path":"/a","request_query":"b=1","method":"PUT","http_user_agent":"curl"}"#,
                "1795427999500000 192.0.2.7 PUT /a?b=1 200 shop curl 198.51.100.9 -",
            ),
            (
                r#"{"time":"2026-11-23T10:00:00Z","remote_addr":["198.51.100.9","192.0.2.7"],"path":"/"}"#,
                "1795428000000000 192.0.2.7 GET / 0 - - 198.51.100.9 -",
            ),
            (
                r#"192.0.2.7 - - [23/Nov/2026:10:00:02 +0000] "GET / HTTP/1.1" 200 5 "-" "ua" 120 1.500 [shop-web-80] [] 10.1.1.1:80 5 1.500 200 af2"#,
                "1795428000500000 192.0.2.7 GET / 200 - ua - -",
            ),
            // Traefik: the time is that of the begin.
            (
                r#"192.0.2.7 - - [23/Nov/2026:10:00:00 +0000] "GET / HTTP/2.0" - - "-" "-" 7 "web@docker" "-" 9ms"#,
                "1795428000000000 192.0.2.7 GET / 0 - - - -",
            ),
            (
                r#"192.0.2.7 - - [2026-11-23T10:00:00+00:00] "GET / HTTP/1.1" 200 5"#,
                "1795428000000000 192.0.2.7 GET / 200 - - - -",
            ),
            (
                r#"192.0.2.7 - - [23/Nov/2026:10:00:00.250 +0000] "GET / HTTP/1.1" 200 5"#,
                "1795428000250000 192.0.2.7 GET / 200 - - - -",
            ),
            (
                r#"shop.example 192.0.2.7 - - [23/Nov/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 5"#,
                "1795428000000000 192.0.2.7 GET / 200 shop.example - - -",
            ),
            (
                r#"192.0.2.7:33317 [23/Nov/2026:10:00:00.250] http-in~ static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {shop|a b} {} "GET /a?b HTTP/1.1""#,
                "1795428000250000 192.0.2.7 GET /a?b 200 - - - -",
            ),
            (
                r#"h2 2026-11-23T10:00:09.000000Z app/lb/5 192.0.2.7:2817 10.0.0.1:80 0.000 0.001 0.000 200 200 34 366 "GET https://shop.example:443/a?b HTTP/2.0" "curl" ECDHE TLSv1.3 arn:x "Root=1" "shop.example" "arn:y" 0 2026-11-23T10:00:00.250000Z "forward" "-" "-" "10.0.0.1:80" "200" "-" "-""#,
                "1795428000250000 192.0.2.7 GET /a?b 200 shop.example:443 curl - -",
            ),
        ];
        for (line, expected) in cases {
            assert_eq!(summary(line, &[]), expected, "{line}");
        }
        let own = r#"{"when":{"at":1795428000},"user":{"ip":"[2001:db8::1]:80","id":7},"what":"/x"}"#;
        let names = ["time=when.at", "client=user.ip", "target=what", "header:X-Customer=user.id"];
        assert_eq!(summary(own, &names), "1795428000000000 2001:db8::1 GET /x 0 - - - 7");
    }

    #[test]
    fn format_strings_of_nginx_and_apache_are_read() {
        let read = |format: &str, line: &str| {
            let hints = Hints { fields: Vec::new(), format: Some(format.parse().unwrap()) };
            let logged = Reader::choose(&[line], &hints).read(line, &hints);
            logged.map(|logged| {
                let header =
                    |name: &str| logged.request.headers().get(name).map_or("-", |v| v.to_str().unwrap());
                format!(
                    "{} {} {} {} {}",
                    logged.at,
                    logged.client,
                    logged.request.uri(),
                    header("host"),
                    header("x-key")
                )
            })
        };
        let cases = [
            (
                r#"log_format main '$remote_addr [$time_local] "$request" ' '$status "$http_x_key" $request_time $upstream_addr';"#,
                r#"192.0.2.7 [23/Nov/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 "k" 0.250 10.0.0.1:80, 10.0.0.2:80"#,
                "1795427999750000 192.0.2.7 /a - k",
            ),
            (
                "$msec|$remote_addr|$request_method|$scheme://$host$request_uri",
                "1795428000.250|192.0.2.7|GET|https://shop/a?b",
                "1795428000250000 192.0.2.7 /a?b shop -",
            ),
            (
                r#"%h %l %u %t \"%r\" %>s %b \"%{X-Key}i\" %D"#,
                r#"192.0.2.7 - - [23/Nov/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 5 "k\"l" 250"#,
                r#"1795428000000000 192.0.2.7 /a - k"l"#,
            ),
            (
                "%v:%p %a [%{%d/%b/%Y:%T}t.%{msec_frac}t %{%z}t] %m %U%q",
                "shop:443 192.0.2.7 [23/Nov/2026:11:00:00.250 +0100] GET /a?b",
                "1795428000250000 192.0.2.7 /a?b shop -",
            ),
        ];
        for (format, line, expected) in cases {
            assert_eq!(read(format, line).as_deref(), Ok(expected), "{format}");
        }
        // A client cannot add a value where quotation marks are missing.
        let agent = "$remote_addr $msec $request_uri $http_user_agent $http_x_key";
        assert!(read(agent, "192.0.2.7 1795428000 / ua k").is_ok());
        assert_eq!(read(agent, "192.0.2.7 1795428000 / ua forged k"), Err(Reason::Other));
        for wrong in ["$remote_addr$time_local $request", "%h %t", "$time_local", "unknown", "%{a"] {
            assert!(wrong.parse::<LogFormat>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_line_in_another_format_than_the_one_that_is_given_is_said_to_be() {
        let line = r#"{"time":1795428000,"ip":"192.0.2.1","path":"/"}"#;
        for format in ["common", "vhost_combined", "envoy", "haproxy", "alb", "%h %t %r"] {
            let hints = Hints { fields: Vec::new(), format: Some(format.parse().unwrap()) };
            let read = Reader::choose(&[line], &hints).read(line, &hints);
            assert_eq!(read.map(|logged| logged.at), Err(Reason::Other), "{format}");
        }
        let hints = Hints { fields: Vec::new(), format: Some(LogFormat::Json) };
        assert_eq!(
            Reader::choose(&["-"], &hints).read("-", &hints).map(|logged| logged.at),
            Err(Reason::Other)
        );
    }

    #[test]
    fn what_is_wrong_with_a_line_is_said() {
        for (line, expected) in [
            ("", "in no known format"),
            ("{}", "no time"),
            ("{", "in no known format"),
            ("[]", "in no known format"),
            (r#"{"time":1795428000,"path":"/"}"#, "no address of a client"),
            (r#"{"time":1795428000,"ip":"192.0.2.1"}"#, "no target"),
            (r#"{"time":1795428000,"ip":"unix:","path":"/"}"#, "the client is not an IP address"),
            (r#"{"time":1795428000,"ip":"192.0.2.1","path":"/ a"}"#, "not an HTTP request"),
            (r#"192.0.2.7 - - [23/Nov/2026:10:00:00 +0000] "\x16\x03\x01" 400 0"#, "not an HTTP request"),
            (
                r#"[2026-11-23T10:00:00Z] "GET / HTTP/2" 200 - 1 0 2 1 "192.0.2.1" "9.9.9.9" "x" "id" "host" "10.0.2.1:80""#,
                "in no known format",
            ),
            (r#"192.0.2.7 - - [yesterday] "GET / HTTP/1.1" 400 0"#, "no time"),
        ] {
            let found = summary(line, &[]);
            assert!(found.contains(expected), "{line}: {found}");
        }
        for name in ["x", "time=", "header:=a", "header:a b=c", "later:x=y", "later=y"] {
            assert!(name.parse::<FieldName>().is_err(), "{name}");
        }
    }
}
