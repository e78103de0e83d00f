//! The head of a request that somebody else forwards. What a sidecar refuses in a request is refused here.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::uri::Scheme;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use sluice_config::prepared::charge::integer;
use sluice_config::request::is_valid_host;
use sluice_config::{RequestAttributes, path};

/// Most headers of a request.
pub(crate) const MAX_HEADERS: usize = 256;

/// A head.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    peer: IpAddr,
    body_bytes: Option<u64>,
}

/// The reason why a head is none of a request that a sidecar forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Malformed {
    Method,
    Target,
    LongPath,
    Headers,
    Host,
    Length,
}

impl Malformed {
    /// Returns the explanation.
    pub(crate) fn detail(self) -> &'static str {
        match self {
            Self::Method => "this is no method of HTTP",
            Self::Target => "this is neither a URL such as https://shop.example/orders nor a path",
            Self::LongPath => "no sidecar forwards a request with such a long path",
            Self::Headers => "a request has at most 256 headers, with valid names and values",
            Self::Host => "a request has one valid host",
            Self::Length => "this is no length of a body",
        }
    }

    /// Returns the status with which a sidecar answers.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::LongPath => StatusCode::URI_TOO_LONG,
            Self::Headers => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::Method | Self::Target | Self::Host | Self::Length => StatusCode::BAD_REQUEST,
        }
    }
}

impl Head {
    /// Reads a head. Its length of a body is the one that the headers say.
    pub(crate) fn new(
        method: &[u8],
        target: &[u8],
        headers: HeaderMap,
        peer: IpAddr,
    ) -> Result<Self, Malformed> {
        let method = Method::from_bytes(method).map_err(|_| Malformed::Method)?;
        let uri = Uri::try_from(&*readable(target)).map_err(|_| Malformed::Target)?;
        let is_tunnel = method == Method::CONNECT && uri.scheme().is_none() && uri.authority().is_some();
        if !(names_resource(&uri) || is_tunnel || method == Method::OPTIONS && uri.path() == "*") {
            return Err(Malformed::Target);
        }
        if path::is_too_long(uri.path()) {
            return Err(Malformed::LongPath);
        }
        if headers.len() > MAX_HEADERS {
            return Err(Malformed::Headers);
        }
        let mut hosts = headers.get_all(HOST).iter();
        if !hosts.next().is_none_or(is_valid_host) || hosts.next().is_some() {
            return Err(Malformed::Host);
        }
        let body_bytes = body_bytes(&headers).ok_or(Malformed::Length)?;
        let mut head = Self { method, uri, headers, peer, body_bytes };
        if let (Some(authority), false) = (head.uri.authority(), head.headers.contains_key(HOST)) {
            head.headers.extend(HeaderValue::from_str(authority.as_str()).ok().map(|host| (HOST, host)));
        }
        Ok(head)
    }

    /// Returns the head of a request whose gateway may leave out how long its body is.
    pub(crate) fn without_length(self) -> Self {
        let is_told =
            self.headers.contains_key(CONTENT_LENGTH) || self.headers.contains_key(TRANSFER_ENCODING);
        // None of these has a body that an application reads.
        let bodiless = [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::CONNECT];
        let body_bytes = self.body_bytes.filter(|_| is_told || bodiless.contains(&self.method));
        Self { body_bytes, ..self }
    }

    /// Returns the address of the client, as the gateway knows it.
    pub(crate) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Returns what limits look at.
    pub(crate) fn attributes(&self) -> RequestAttributes<'_> {
        let mut attributes = RequestAttributes::new(&self.method, &self.uri, &self.headers, self.peer);
        attributes.body_bytes = self.body_bytes;
        attributes
    }
}

/// Encodes the bytes of a target that applications serve and [`Uri`] refuses, as a sidecar does.
fn readable(target: &[u8]) -> Cow<'_, [u8]> {
    let is_refused = |byte: &u8| matches!(byte, b'"' | b'<' | b'>' | b'`');
    if !target.iter().any(is_refused) {
        return Cow::Borrowed(target);
    }
    let mut is_query = false;
    let mut out = Vec::with_capacity(target.len() + 16);
    for &byte in target {
        is_query |= byte == b'?';
        match (byte, is_query) {
            (b'<', _) => out.extend_from_slice(b"%3C"),
            (b'>', _) => out.extend_from_slice(b"%3E"),
            (b'"', true) => out.extend_from_slice(b"%22"),
            (b'`', false) => out.extend_from_slice(b"%60"),
            (other, _) => out.push(other),
        }
    }
    Cow::Owned(out)
}

/// Reports whether a target is a URL of HTTP or a path.
fn names_resource(uri: &Uri) -> bool {
    match (uri.scheme(), uri.authority()) {
        (Some(scheme), Some(authority)) => {
            (*scheme == Scheme::HTTP || *scheme == Scheme::HTTPS) && !authority.as_str().contains('@')
        }
        (None, None) => uri.path().starts_with('/'),
        // `orders` alone is an authority.
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Returns the length of the body that the headers say, as a sidecar reads them: 0 without one, and `None` inside for one of unknown
/// length. `None` if they say none that is valid.
fn body_bytes(headers: &HeaderMap) -> Option<Option<u64>> {
    match (headers.contains_key(TRANSFER_ENCODING), headers.contains_key(CONTENT_LENGTH)) {
        (false, false) => Some(Some(0)),
        (true, false) => Some(None),
        (false, true) => integer(headers, &CONTENT_LENGTH).map(Some),
        (true, true) => None,
    }
}
