//! The attributes of a request that limits look at.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{COOKIE, HOST};
use http::{HeaderMap, HeaderValue, Method, Uri};

use crate::path::Readings;

/// The attributes of a request that limits look at.
#[derive(Debug, Clone, Copy)]
pub struct RequestAttributes<'a> {
    /// Method of the request.
    pub method: &'a Method,
    /// Target of the request as the client wrote it.
    pub uri: &'a Uri,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
    /// Address of the peer that opened the connection.
    pub peer: IpAddr,
}

impl<'a> RequestAttributes<'a> {
    /// Returns the readings of the path. Callers compute them once per request.
    #[must_use]
    pub fn path_readings(&self) -> Readings<'a> {
        Readings::of(self.uri.path())
    }

    /// Returns the host, without a port and a last dot, in the case in which the client wrote it. In HTTP/2 it is in
    /// the target.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        let authority = match self.uri.authority() {
            Some(authority) => authority.as_str(),
            None => std::str::from_utf8(self.headers.get(HOST).map(HeaderValue::as_bytes)?).ok()?,
        };
        Some(host_of(authority))
    }

    /// Returns the values of a query parameter, decoded.
    pub fn parameters(&self, name: &str) -> impl Iterator<Item = Text<'a>> {
        let query = self.uri.query().unwrap_or_default();
        let named = form_urlencoded::parse(query.as_bytes()).filter(move |(found, _)| found == name);
        named.map(|(_, value)| {
            Text(match value {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            })
        })
    }

    /// Returns the values of a cookie, in all ways in which applications read it: as it is, without quotation marks,
    /// and decoded.
    pub fn cookies(&self, name: &str) -> impl Iterator<Item = Text<'a>> {
        let pairs =
            self.headers.get_all(COOKIE).iter().flat_map(|header| header.as_bytes().split(|b| *b == b';'));
        let values = pairs.filter_map(move |pair| {
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            (pair[..equals].trim_ascii() == name.as_bytes()).then(|| pair[equals + 1..].trim_ascii())
        });
        values.flat_map(|value| {
            let unquoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
            let inner = unquoted.unwrap_or(value);
            let decoded = inner.contains(&b'%').then(|| Cow::from(percent_encoding::percent_decode(inner)));
            [Some(Cow::Borrowed(value)), unquoted.map(Cow::Borrowed), decoded].into_iter().flatten().map(Text)
        })
    }
}

/// The bytes of a value, decoded where that was necessary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a>(Cow<'a, [u8]>);

impl AsRef<[u8]> for Text<'_> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the host of an authority, without a port and a last dot.
#[must_use]
pub fn host_of(authority: &str) -> &str {
    // The colons of an IPv6 address stand in brackets.
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
}
