//! Refuses requests that hyper accepts and a proxy must not forward, because they can be read in two ways or
//! name no destination.

use http::header::{COOKIE, HOST, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri, Version};
use sluice_config::path;
use sluice_config::request::{host_of, is_valid_host};
use sluice_engine::Refused;

use crate::inbound::protocol::Protocol;

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
    pub(crate) const ALL: [Self; 9] = [
        Self::AmbiguousLength,
        Self::TransferCoding,
        Self::Host,
        Self::Target,
        Self::LongPath,
        Self::AmbiguousPath,
        Self::TooManyLimits,
        Self::Connect,
        Self::Body,
    ];

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
            Self::Target => {
                "The target of the request must be a path, an absolute http URI, or * if the method is OPTIONS."
            }
            Self::LongPath => {
                "The path must not be longer than 8192 bytes, or a few hundred where it can be read in many ways: with encoded slashes, \
                 backslashes, semicolons and dot segments."
            }
            Self::AmbiguousPath => Refused::AmbiguousPath.detail(),
            Self::TooManyLimits => Refused::TooManyLimits.detail(),
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

/// Reasons for which requests are refused before there is a request: those of the parser of HTTP/1, of a head that is too large, and of
/// the streams of HTTP/2 that h2 resets because they are malformed.
pub(crate) const UNPARSED: [&str; 8] =
    ["method", "target", "version", "header", "length", "coding", HEAD_SIZE, MALFORMED];
/// The head of a request is too large.
pub(crate) const HEAD_SIZE: &str = "head_size";
/// A request is malformed in another way.
pub(crate) const MALFORMED: &str = "malformed";

/// Returns the reason for which the parser of HTTP/1 has refused a request, if it has. hyper answers such a request by itself, with a
/// status and without a body.
pub(crate) fn refused_by_parser(error: &hyper::Error) -> Option<&'static str> {
    if !error.is_parse() {
        return None;
    }
    // hyper tells kinds of errors apart only in words.
    let text = error.to_string();
    let words = [
        ("too l", HEAD_SIZE),
        ("method", "method"),
        ("URI", "target"),
        ("version", "version"),
        ("content-length", "length"),
        ("transfer-encoding", "coding"),
        ("header", "header"),
    ];
    let found = words.into_iter().find(|(word, _)| text.contains(word));
    Some(found.map_or(MALFORMED, |(_, reason)| reason))
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
    if path::is_too_long(request.uri().path()) {
        return Err(InvalidRequest::LongPath);
    }
    join_cookies(request.headers_mut());
    if protocol == Protocol::Http2 {
        // HTTP/2 frames have one length, and the h2 crate checks :authority.
        if !has_one_host(request) {
            return Err(InvalidRequest::Host);
        }
        if !is_http(request.uri()) || !names_resource(request) {
            return Err(InvalidRequest::Target);
        }
        trim_values(request.headers_mut());
        return Ok(());
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

/// Reports whether the scheme of a target, if it has one, is that of HTTP.
fn is_http(uri: &Uri) -> bool {
    uri.scheme().is_none_or(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS)
}

/// Reports whether the target of a request is a path, or `*` for OPTIONS. Applications answer a query alone in very different ways.
fn names_resource<B>(request: &Request<B>) -> bool {
    match request.uri().path_and_query().map(PathAndQuery::as_str) {
        Some("*") => request.method() == Method::OPTIONS,
        Some(path) => path.starts_with('/'),
        // An absolute target may end with its authority.
        None => request.uri().authority().is_some(),
    }
}

/// Removes white space around values, which HTTP/2 does not allow (RFC 9113, section 8.2.1) and applications do not all ignore.
fn trim_values(headers: &mut HeaderMap) {
    for value in headers.values_mut() {
        let trimmed = value.as_bytes().trim_ascii();
        if trimmed.len() != value.len()
            && let Ok(trimmed) = HeaderValue::from_bytes(trimmed)
        {
            *value = trimmed;
        }
    }
}

/// Joins cookies that came in several fields, as applications that speak HTTP/1 expect them (RFC 9113, section 8.2.3; RFC 6265, section
/// 5.4). Some read the first field alone, and others join them by a comma.
fn join_cookies(headers: &mut HeaderMap) {
    let mut cookies = headers.get_all(COOKIE).iter();
    if cookies.next().is_none() || cookies.next().is_none() {
        return;
    }
    let all: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

/// Replaces an absolute target by its path, and `Host` by its authority (RFC 9112, 3.2.2).
fn to_origin_form<B>(request: &mut Request<B>) -> Result<(), InvalidRequest> {
    if !is_http(request.uri()) || !names_resource(request) {
        return Err(InvalidRequest::Target);
    }
    let uri = request.uri();
    let Some(authority) = uri.authority() else { return Ok(()) };
    if uri.scheme().is_none() || authority.as_str().contains('@') {
        return Err(InvalidRequest::Target);
    }
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| InvalidRequest::Target)?;
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    request.headers_mut().insert(HOST, host);
    *request.uri_mut() = Uri::from(path);
    Ok(())
}
