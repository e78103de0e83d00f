//! The attributes of a request that limits look at.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, COOKIE, HOST, ORIGIN};
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
    /// Address of the client that the peer has reported at the beginning of the connection.
    pub proxied: Option<IpAddr>,
    /// Length of the body in bytes, if it is known before the body; 0 without a body.
    pub body_bytes: Option<u64>,
    /// Whether errors that the request causes are counted. They are not if an operator only asks about a request.
    pub counts_errors: bool,
}

impl<'a> RequestAttributes<'a> {
    /// Adds one to the number of requests that have caused an error.
    pub(crate) fn count_error(&self, errors: &AtomicU64) {
        if self.counts_errors {
            errors.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the readings of the path. Callers compute them once per request.
    #[must_use]
    pub fn path_readings(&self) -> Readings<'a> {
        Readings::of(self.uri.path())
    }

    /// Reports whether the request is a preflight, which has no body: a browser asks whether a script of another site may
    /// send a request.
    #[must_use]
    pub fn is_preflight(&self) -> bool {
        *self.method == Method::OPTIONS
            && self.body_bytes == Some(0)
            && self.headers.contains_key(ORIGIN)
            && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
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

    /// Returns the values of a query parameter, decoded, and whether the parameter has exactly this name. Some
    /// applications ignore its case and brackets, or separate parameters by semicolons.
    pub fn parameters(&self, name: &str) -> impl Iterator<Item = (Text<'a>, bool)> {
        let query = self.uri.query().unwrap_or_default().as_bytes();
        query.split(|byte| *byte == b'&').flat_map(move |pair| {
            let whole = parameter(pair, name);
            // With semicolons, the first part may have been the whole.
            let parts = pair.contains(&b';').then(|| pair.split(|byte| *byte == b';'));
            let parts =
                parts.into_iter().flatten().filter_map(|part| Some((parameter(part, name)?.0, false)));
            whole.into_iter().chain(parts)
        })
    }

    /// Returns the values of a cookie without quotation marks (RFC 6265, section 4.2.1). HTTP/2 may send each cookie in a
    /// header of its own.
    pub fn written_cookies(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        self.raw_cookies(name).map(|value| unquoted(value).unwrap_or(value))
    }

    fn raw_cookies(&self, name: &str) -> impl Iterator<Item = &'a [u8]> {
        let pairs =
            self.headers.get_all(COOKIE).iter().flat_map(|header| header.as_bytes().split(|b| *b == b';'));
        pairs.filter_map(move |pair| {
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            (pair[..equals].trim_ascii() == name.as_bytes()).then(|| pair[equals + 1..].trim_ascii())
        })
    }

    /// Returns the values of a cookie, in all ways in which applications read it: as it is, without quotation marks,
    /// and decoded.
    pub fn cookies(&self, name: &str) -> impl Iterator<Item = (Text<'a>, bool)> {
        self.raw_cookies(name).flat_map(|value| {
            let unquoted = unquoted(value);
            let inner = unquoted.unwrap_or(value);
            let decoded = inner.contains(&b'%').then(|| Cow::from(percent_encoding::percent_decode(inner)));
            [Some(Cow::Borrowed(value)), unquoted.map(Cow::Borrowed), decoded]
                .into_iter()
                .flatten()
                .map(|value| (Text(value), true))
        })
    }
}

/// Returns the value of a cookie without quotation marks, if it has some.
fn unquoted(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""))
}

/// Returns the value of a parameter if it has a name, and whether it has exactly this name.
fn parameter<'a>(pair: &'a [u8], name: &str) -> Option<(Text<'a>, bool)> {
    let end = pair.iter().position(|byte| *byte == b'=').unwrap_or(pair.len());
    let found = || decoded(&pair[..end]);
    let is_exact = found().eq(name.bytes());
    let base = |byte: &u8| !matches!(byte, b'[' | b']');
    let is_similar = || {
        let found = found().filter(base).map(|byte| byte.to_ascii_lowercase());
        found.eq(name.bytes().filter(base).map(|byte| byte.to_ascii_lowercase()))
    };
    (is_exact || is_similar()).then(|| {
        let value = pair.get(end + 1..).unwrap_or_default();
        let is_plain = !value.contains(&b'%') && !value.contains(&b'+');
        (Text(if is_plain { Cow::Borrowed(value) } else { Cow::Owned(decoded(value).collect()) }), is_exact)
    })
}

/// Decodes a part of a query.
fn decoded(bytes: &[u8]) -> impl Iterator<Item = u8> {
    // An encoded plus stays one.
    bytes.split_inclusive(|byte| *byte == b'+').flat_map(|part| {
        let (text, plus) = match part.split_last() {
            Some((b'+', text)) => (text, true),
            _ => (part, false),
        };
        percent_encoding::percent_decode(text).chain(plus.then_some(b' '))
    })
}

/// The bytes of a value, decoded where that was necessary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text<'a>(Cow<'a, [u8]>);

impl<'a> Text<'a> {
    /// Returns the bytes.
    #[must_use]
    pub fn into_inner(self) -> Cow<'a, [u8]> {
        self.0
    }
}

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
