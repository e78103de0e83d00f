//! Refuses requests that hyper accepts and a proxy must not forward, because they can be read in two ways or
//! name no destination.

use http::header::{HOST, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Method, Request, StatusCode, Uri, Version};
use sluice_config::path;
use sluice_config::request::host_of;

use crate::inbound::protocol::Protocol;

/// Longest path in bytes. It bounds the time that limits take to compare a path in all its readings.
const MAX_PATH: usize = 8192;
/// Longest path that has many readings, in bytes.
const MAX_AMBIGUOUS_PATH: usize = 2048;

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InvalidRequest {
    /// The end of the request can be read in two ways.
    AmbiguousLength,
    /// The transfer coding of the body would be lost.
    TransferCoding,
    /// `Host` is missing, repeated or invalid.
    Host,
    /// The target names no resource.
    Target,
    /// The path is longer than any application needs.
    LongPath,
    /// The path can be read in several ways, and a policy refuses such paths.
    AmbiguousPath,
    /// The request meets more limits than one check holds.
    TooManyLimits,
    /// The method is CONNECT, which opens a tunnel.
    Connect,
    /// The body broke off, or its framing is invalid.
    Body,
}

impl InvalidRequest {
    /// Returns the status of the response.
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::TransferCoding | Self::Connect => StatusCode::NOT_IMPLEMENTED,
            Self::LongPath => StatusCode::URI_TOO_LONG,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns the explanation in the response.
    pub(crate) fn detail(self) -> &'static str {
        match self {
            Self::AmbiguousLength => {
                "The length of the request is ambiguous: send either one Content-Length or a chunked body."
            }
            Self::TransferCoding => "The only transfer coding accepted in requests is chunked.",
            Self::Host => "The request must have exactly one valid Host header.",
            Self::Target => "The target of the request must be a path, * or an absolute http URI.",
            Self::LongPath => {
                "The path must not be longer than 8192 bytes, or 2048 with encoded slashes, backslashes or dot segments."
            }
            Self::AmbiguousPath => "The path must not contain encoded slashes, backslashes or dot segments.",
            Self::TooManyLimits => {
                "The request meets more limits than any request should: repeat no parameter or header."
            }
            Self::Connect => "CONNECT is not supported.",
            Self::Body => "The body of the request broke off, or its chunks are malformed.",
        }
    }

    /// Returns the value of the metric label `reason`.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::AmbiguousLength => "length",
            Self::TransferCoding => "coding",
            Self::Host => "host",
            Self::Target => "target",
            Self::LongPath => "path_length",
            Self::AmbiguousPath => "path",
            Self::TooManyLimits => "limits",
            Self::Connect => "connect",
            Self::Body => "body",
        }
    }
}

/// Checks a request, and rewrites an absolute target to the origin form that applications expect.
/// `is_ambiguous` comes from the framing of the connection, which the parsed request no longer shows.
pub(crate) fn validate<B>(
    request: &mut Request<B>,
    protocol: Protocol,
    is_ambiguous: bool,
) -> Result<(), InvalidRequest> {
    if is_ambiguous {
        return Err(InvalidRequest::AmbiguousLength);
    }
    if request.method() == Method::CONNECT {
        return Err(InvalidRequest::Connect);
    }
    let target = request.uri().path();
    if target.len() > MAX_PATH || target.len() > MAX_AMBIGUOUS_PATH && path::is_ambiguous(target) {
        return Err(InvalidRequest::LongPath);
    }
    if protocol == Protocol::Http2 {
        // HTTP/2 frames have one length, and the h2 crate checks :authority.
        return has_one_host(request).then_some(()).ok_or(InvalidRequest::Host);
    }
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next()
        && (!coding.as_bytes().eq_ignore_ascii_case(b"chunked") || codings.next().is_some())
    {
        return Err(InvalidRequest::TransferCoding);
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_valid_host(host) => {}
        (None, None) if request.version() == Version::HTTP_10 => {}
        _ => return Err(InvalidRequest::Host),
    }
    to_origin_form(request)
}

/// Reports whether a request of HTTP/2 names one host: `:authority`, and `Host` only if it is the same (RFC 9113,
/// 8.3.1). Otherwise a limit on one of them could be evaded by the other.
fn has_one_host<B>(request: &Request<B>) -> bool {
    let authority = request.uri().authority().map(Authority::as_str);
    if authority.is_some_and(|authority| authority.contains('@')) {
        return false;
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next(), authority) {
        (None, _, _) => true,
        (Some(host), None, None) => is_valid_host(host),
        (Some(host), None, Some(authority)) => {
            host.to_str().is_ok_and(|host| host_of(host).eq_ignore_ascii_case(host_of(authority)))
        }
        (Some(_), Some(_), _) => false,
    }
}

/// Reports whether this is an authority, or empty, as RFC 9112 (3.2) allows for a target without an
/// authority.
fn is_valid_host(host: &HeaderValue) -> bool {
    host.is_empty()
        || host
            .to_str()
            .is_ok_and(|host| host.parse::<Authority>().is_ok_and(|host| !host.as_str().contains('@')))
}

/// Replaces an absolute target by its path, and `Host` by its authority (RFC 9112, 3.2.2).
fn to_origin_form<B>(request: &mut Request<B>) -> Result<(), InvalidRequest> {
    let uri = request.uri();
    let Some(authority) = uri.authority() else {
        let is_valid = match uri.path() {
            "*" => request.method() == Method::OPTIONS,
            path => path.starts_with('/'),
        };
        return if is_valid { Ok(()) } else { Err(InvalidRequest::Target) };
    };
    if uri.scheme().is_none() || authority.as_str().contains('@') {
        return Err(InvalidRequest::Target);
    }
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| InvalidRequest::Target)?;
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    request.headers_mut().insert(HOST, host);
    *request.uri_mut() = Uri::from(path);
    Ok(())
}
