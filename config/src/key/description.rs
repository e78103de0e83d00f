//! The client of a request in words, for operators. Only the parts of a key that its policy calls public are shown.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::{KeyBuilder, PreparedPart};
use crate::path::Readings;
use crate::request::{Part, RequestAttributes};

/// Longest text of a value, in characters.
const MAX_VALUE: usize = 64;

impl KeyBuilder {
    /// Returns the builder with these parts public, by their indexes.
    #[must_use]
    pub fn with_public(self, public: Vec<usize>) -> Self {
        Self { public, ..self }
    }

    /// Describes the client of a request: `header x-tenant=acme, clientIP=192.0.2.0/24`. The value of a part that is not public
    /// is `hidden`.
    #[must_use]
    pub fn describe(&self, request: &RequestAttributes<'_>, path: &Readings<'_>, address: IpAddr) -> String {
        self.describe_with(|part, text| match part.network(address) {
            Some(network) if network.prefix_len() == network.max_prefix_len() => {
                let _ = write!(text, "{}", network.addr());
            }
            Some(network) => {
                let _ = write!(text, "{network}");
            }
            None => match part.read(request, path, || address, |_, value| write_value(text, value)) {
                Part::Value(()) => {}
                Part::Missing => text.push_str("missing"),
                Part::Unclear => text.push_str("unclear"),
            },
        })
    }

    /// Describes all clients, if no part of the key is public: `header x-tenant=hidden`.
    #[must_use]
    pub fn describe_all(&self) -> Option<String> {
        self.public.is_empty().then(|| self.describe_with(|_, _| {}))
    }

    /// Describes a client. `write` appends the value of a public part.
    fn describe_with(&self, mut write: impl FnMut(&PreparedPart, &mut String)) -> String {
        let mut text = String::new();
        for (n, part) in self.parts.iter().enumerate() {
            if n > 0 {
                text.push_str(", ");
            }
            part.write_label(&mut text);
            text.push('=');
            if self.public.contains(&n) {
                write(part, &mut text);
            } else {
                text.push_str("hidden");
            }
        }
        if self.parts.is_empty() {
            text.push_str("all clients");
        }
        text
    }
}

/// Appends a value that a client may have chosen: a part of it, without control characters.
fn write_value(text: &mut String, value: &[u8]) {
    let value = String::from_utf8_lossy(value);
    text.extend(value.chars().take(MAX_VALUE).flat_map(char::escape_debug));
    if value.chars().nth(MAX_VALUE).is_some() {
        text.push_str("...");
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Method};

    use super::*;
    use crate::key::{KeySource, OnMissing};

    fn describe(parts: &[KeySource], public: &[usize]) -> String {
        let mut headers = HeaderMap::new();
        headers.insert("x-tenant", HeaderValue::from_static("acme"));
        headers.insert("x-odd", HeaderValue::from_bytes(b"\xff\t\"").unwrap());
        headers.insert("x-long", HeaderValue::try_from("a".repeat(100)).unwrap());
        let (uri, peer) = ("/Orders?q=1".parse().unwrap(), "192.0.2.77".parse().unwrap());
        let request = RequestAttributes::new(&Method::GET, &uri, &headers, peer);
        let builder = KeyBuilder::new(parts, OnMissing::Shared).unwrap().with_public(public.to_vec());
        builder.describe(&request, &request.path_readings(), peer)
    }

    #[test]
    fn only_public_parts_are_shown() {
        let header = |name: &str| KeySource::Header { name: name.into(), verified_by: None };
        let ip = |ipv4_prefix| KeySource::ClientIp { ipv4_prefix, ipv6_prefix: 64 };
        let parts = [header("x-tenant"), ip(24), KeySource::Method {}];
        assert_eq!(describe(&parts, &[]), "header x-tenant=hidden, clientIP=hidden, method=hidden");
        assert_eq!(describe(&parts, &[0, 1, 2]), "header x-tenant=acme, clientIP=192.0.2.0/24, method=GET");
        assert_eq!(
            describe(&[ip(32), KeySource::Query { name: "q".into() }], &[0, 1]),
            "clientIP=192.0.2.77, query q=1"
        );
        assert_eq!(describe(&[header("x-none")], &[0]), "header x-none=missing");
        assert_eq!(describe(&[header("x-odd")], &[0]), "header x-odd=\u{fffd}\\t\\\"");
        assert_eq!(describe(&[header("x-long")], &[0]), format!("header x-long={}...", "a".repeat(64)));
        assert_eq!(describe(&[], &[]), "all clients");
    }
}
