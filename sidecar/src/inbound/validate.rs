//! Requests that hyper takes and a proxy must not pass on: two ways to read one, or no way to say where it goes.

use http::header::{HOST, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderValue, Method, Request, StatusCode, Uri, Version};

use crate::inbound::protocol::Protocol;

/// Why a request is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bad {
    /// Its end can be read in two ways.
    Length,
    /// Its body is coded in a way that would be lost.
    Coding,
    /// No host, two, or no valid one.
    Host,
    /// Its target names no resource.
    Target,
    /// It asks for a tunnel.
    Connect,
    /// Its body broke off or is not framed as announced.
    Body,
}

impl Bad {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Coding | Self::Connect => StatusCode::NOT_IMPLEMENTED,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    pub(crate) fn detail(self) -> &'static str {
        match self {
            Self::Length => {
                "the length of the request is ambiguous: send one Content-Length, or chunks, not both"
            }
            Self::Coding => "the only transfer coding of requests is chunked",
            Self::Host => "exactly one valid Host is needed",
            Self::Target => "the target must be a path, * or an absolute http URI",
            Self::Connect => "CONNECT is not served here",
            Self::Body => "the body of the request broke off or its chunks are malformed",
        }
    }

    /// A word for metrics.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Coding => "coding",
            Self::Host => "host",
            Self::Target => "target",
            Self::Connect => "connect",
            Self::Body => "body",
        }
    }
}

/// Looks a request over, and brings an absolute target into the form that an application expects.
pub(crate) fn check<B>(request: &mut Request<B>, protocol: Protocol, suspicious: bool) -> Result<(), Bad> {
    if suspicious {
        return Err(Bad::Length);
    }
    if request.method() == Method::CONNECT {
        return Err(Bad::Connect);
    }
    if protocol == Protocol::Http2 {
        // HTTP/2 frames have one length, and :authority is checked by the h2 crate.
        return Ok(());
    }
    let mut codings = request.headers().get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next()
        && (!coding.as_bytes().eq_ignore_ascii_case(b"chunked") || codings.next().is_some())
    {
        return Err(Bad::Coding);
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) if valid_host(host) => {}
        (None, None) if request.version() == Version::HTTP_10 => {}
        _ => return Err(Bad::Host),
    }
    origin_form(request)
}

/// An authority, or empty as RFC 9112 (3.2) allows where a target has none.
fn valid_host(host: &HeaderValue) -> bool {
    host.is_empty()
        || host.to_str().is_ok_and(|host| {
            host.parse::<http::uri::Authority>().is_ok_and(|host| !host.as_str().contains('@'))
        })
}

/// RFC 9112, 3.2.2: the host of an absolute target replaces `Host`.
fn origin_form<B>(request: &mut Request<B>) -> Result<(), Bad> {
    let uri = request.uri();
    let Some(authority) = uri.authority() else {
        let asterisk = uri.path() == "*";
        let fits = if asterisk { request.method() == Method::OPTIONS } else { uri.path().starts_with('/') };
        return if fits { Ok(()) } else { Err(Bad::Target) };
    };
    if uri.scheme().is_none() || authority.as_str().contains('@') {
        return Err(Bad::Target);
    }
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| Bad::Target)?;
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    request.headers_mut().insert(HOST, host);
    *request.uri_mut() = Uri::from(path);
    Ok(())
}
