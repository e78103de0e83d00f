//! How the lines of a file are read. Its first lines choose the wrappers; the format of each line is recognized.

use std::borrow::Cow;

use super::json::FieldName;
use super::reason::Reason;
use super::wrap::{WRAPPERS, Wrapper, unwrap};
use super::{LoggedRequest, clf, envoy, json};

/// Number of wrappers around each other at most.
const MAX_WRAPPERS: usize = 2;

/// How the lines of a file are read.
#[derive(Debug, Default)]
pub(in crate::simulate) struct Reader {
    wrappers: Vec<Wrapper>,
    /// Whether the first lines can be read in two ways.
    is_unclear: bool,
}

impl Reader {
    /// Chooses the wrappers with which most of the first lines can be read, or else the fewest wrappers. Clients choose parts of
    /// lines, but neither the wrappers nor those of other lines.
    pub(in crate::simulate) fn choose(first: &[impl AsRef<str>], named: &[FieldName]) -> Self {
        let mut chosen = (0, Self::default(), Vec::new());
        let mut chains = vec![Vec::new()];
        let mut next = 0;
        while let Some(wrappers) = chains.get(next).cloned() {
            next += 1;
            let reader = Self { wrappers, is_unclear: false };
            let requests: Vec<_> = first.iter().map(|line| reader.read(line.as_ref(), named).ok()).collect();
            let read = requests.iter().flatten().count();
            if read > chosen.0 {
                chosen = (read, Self { wrappers: reader.wrappers.clone(), is_unclear: false }, requests);
            } else if read > 0 && read == chosen.0 {
                let mut pairs = requests.iter().flatten().zip(chosen.2.iter().flatten());
                chosen.1.is_unclear |= pairs.any(|(a, b)| !a.is_same(b));
            }
            if reader.wrappers.len() < MAX_WRAPPERS {
                let outer = WRAPPERS.iter().map(|&wrapper| [&reader.wrappers[..], &[wrapper]].concat());
                let is_wrapped = |wrappers: &Vec<_>| {
                    first.iter().any(|line| unwrap(line.as_ref().trim(), wrappers).is_ok())
                };
                chains.extend(outer.filter(is_wrapped));
            }
        }
        chosen.1
    }

    /// Reads a line.
    pub(in crate::simulate) fn read(&self, line: &str, named: &[FieldName]) -> Result<LoggedRequest, Reason> {
        if self.is_unclear {
            return Err(Reason::TwoWays);
        }
        let line = self.unwrap(line)?;
        let line = line.trim();
        if line.starts_with('{') {
            return json::read(line, named)?.request();
        }
        match envoy::read(line) {
            Some(fields) => fields.request(),
            None => clf::read(line).unwrap_or(Err(Reason::Format))?.request(),
        }
    }

    /// Removes the wrappers of a line.
    pub(in crate::simulate) fn unwrap<'a>(&self, line: &'a str) -> Result<Cow<'a, str>, Reason> {
        unwrap(line.trim(), &self.wrappers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(line: &str, named: &[&str]) -> String {
        let named: Vec<_> = named.iter().map(|name| name.parse().unwrap()).collect();
        match Reader::choose(&[line], &named).read(line, &named) {
            Err(reason) => reason.text().to_owned(),
            Ok(LoggedRequest { at, request, client, status }) => {
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
        let own = r#"{"when":{"at":1795428000},"user":{"ip":"[2001:db8::1]:80","id":7},"what":"/x"}"#;
        let names = ["time=when.at", "client=user.ip", "target=what", "header:X-Customer=user.id"];
        assert_eq!(summary(own, &names), "1795428000000000 2001:db8::1 GET /x 0 - - - 7");
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
