//! The attributes of a request that limits look at.

use std::net::IpAddr;

use http::header::HOST;
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
