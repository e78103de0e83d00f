//! To the application and back: the request as the client sent it, over a pooled connection; the response as the
//! application sent it. Bodies, trailers and upgraded connections stream both ways.
//!
//! The application sees the sidecar as its peer, so the client's address is added to `X-Forwarded-For` as every proxy
//! does: one entry at the end of what the client sent. Only that last entry is known to be true.

use std::io;
use std::sync::Arc;

use http::header::{CONNECTION, EXPECT, HOST, UPGRADE};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::inbound::accept::Permit;
use crate::limit::slots::Slot;
use crate::upstream::body::{Broken, Reply, RequestBody};
use crate::upstream::hop_headers;
use crate::upstream::pool::{Lease, Own, Pool};

/// Why there is no response of the application.
#[derive(Debug)]
pub(crate) enum Failed {
    /// No connection.
    Unreachable(io::Error),
    /// The connection ended, or what came is no HTTP.
    NoAnswer(hyper::Error),
    /// The client broke off its own request.
    BrokenRequest,
}

impl Failed {
    /// A word for metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable(error) if error.kind() == io::ErrorKind::TimedOut => "connect_timeout",
            Self::Unreachable(_) => "connect",
            Self::NoAnswer(error) if error.is_parse() => "nonsense",
            Self::NoAnswer(_) => "closed",
            Self::BrokenRequest => "broken_request",
        }
    }

    fn no_answer(error: hyper::Error, broken: Option<&Broken>) -> Self {
        if broken.is_some_and(Broken::is) { Self::BrokenRequest } else { Self::NoAnswer(error) }
    }
}

/// Forwards an HTTP/1 request that `peer` sent. What is `kept` lives as long as an upgraded connection does.
pub(crate) async fn http1(
    pool: &Arc<Pool>,
    mut request: Request<Incoming>,
    peer: &HeaderValue,
    kept: (&Arc<Permit>, &mut Vec<Slot>),
) -> Result<Response<Reply>, Failed> {
    let wanted = hop_headers::upgrade(request.headers());
    let client = wanted.as_ref().map(|_| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    parts.extensions.clear();
    parts.version = Version::HTTP_11;
    let headers = &mut parts.headers;
    hop_headers::strip_request(headers);
    hop_headers::forwarded_for(headers, peer);
    // The expectation is met here: hyper answers 100 when the body is first read.
    headers.remove(EXPECT);
    if !headers.contains_key(HOST)
        && let Ok(host) = HeaderValue::from_str(&pool.upstream.to_string())
    {
        headers.insert(HOST, host);
    }
    if let Some(protocol) = wanted {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol);
    }
    let (body, broken) = RequestBody::new(body);
    let request = Request::from_parts(parts, body);
    let (mut response, lease) = exchange(pool, request, broken.as_ref()).await?;
    *response.version_mut() = Version::HTTP_11;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let (permit, places) = kept;
        return Ok(switch(response, client, (permit.clone(), std::mem::take(places))));
    }
    hop_headers::strip_response(response.headers_mut());
    Ok(response.map(|body| attach(body, lease)))
}

/// The body of a response; its connection is free at once when there is none.
fn attach(body: Incoming, lease: Lease) -> Reply {
    if hyper::body::Body::is_end_stream(&body) {
        lease.give_back();
        return Reply::upstream(body, None);
    }
    Reply::upstream(body, Some(lease))
}

/// One request and its response. A connection that the application closed while it was idle is found out only by
/// using it: what was not sent is sent again on a new one, and so is what may be repeated (RFC 9110, 9.2.2).
async fn exchange(
    pool: &Arc<Pool>,
    mut request: Request<RequestBody>,
    broken: Option<&Broken>,
) -> Result<(Response<Incoming>, Lease), Failed> {
    if let Some(mut lease) = pool.idle() {
        let copy = repeatable(&request).then(|| copy(&request));
        match lease.sender.try_send_request(request).await {
            Ok(response) => return Ok((response, lease)),
            Err(mut error) => match error.take_message().or(copy) {
                Some(again) if !error.error().is_parse() => request = again,
                _ => return Err(Failed::no_answer(error.into_error(), broken)),
            },
        }
    }
    let mut lease = pool.connect().await.map_err(Failed::Unreachable)?;
    match lease.sender.try_send_request(request).await {
        Ok(response) => Ok((response, lease)),
        Err(error) => Err(Failed::no_answer(error.into_error(), broken)),
    }
}

fn repeatable(request: &Request<RequestBody>) -> bool {
    request.method().is_idempotent()
        && matches!(request.body(), RequestBody::Empty)
        && !request.headers().contains_key(UPGRADE)
}

fn copy(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::Empty);
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    copy
}

/// Joins the client's and the application's connection, now of another protocol.
fn switch(
    mut response: Response<Incoming>,
    client: Option<OnUpgrade>,
    kept: (Arc<Permit>, Vec<Slot>),
) -> Response<Reply> {
    let application = hyper::upgrade::on(&mut response);
    let protocol = response.headers().get(UPGRADE).cloned();
    hop_headers::strip_response(response.headers_mut());
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(UPGRADE, protocol);
    }
    if let Some(client) = client {
        tokio::spawn(async move {
            let _kept = kept;
            if let Ok((client, application)) = futures::future::try_join(client, application).await {
                let (mut client, mut application) = (TokioIo::new(client), TokioIo::new(application));
                let _ = tokio::io::copy_bidirectional(&mut client, &mut application).await;
            }
        });
    }
    response.map(|_| Reply::empty())
}

/// Forwards an HTTP/2 request that `peer` sent.
pub(crate) async fn http2(
    pool: &Pool,
    own: &Own,
    request: Request<Incoming>,
    peer: &HeaderValue,
) -> Result<Response<Reply>, Failed> {
    let (mut parts, body) = request.into_parts();
    parts.extensions.clear();
    parts.uri = absolute(&parts.uri, parts.headers.get(HOST), pool);
    hop_headers::forwarded_for(&mut parts.headers, peer);
    let (body, broken) = RequestBody::new(body);
    let mut request = Request::from_parts(parts, body);
    let mut failed = None;
    loop {
        let (mut sender, number, reused) = own.get(failed).await.map_err(Failed::Unreachable)?;
        match sender.try_send_request(request).await {
            Ok(response) => return Ok(response.map(|body| Reply::upstream(body, None))),
            Err(mut error) => match error.take_message() {
                Some(again) if reused && failed.is_none() => (request, failed) = (again, Some(number)),
                _ => return Err(Failed::no_answer(error.into_error(), broken.as_ref())),
            },
        }
    }
}

/// The target as HTTP/2 needs it: with scheme and authority.
fn absolute(uri: &Uri, host: Option<&HeaderValue>, pool: &Pool) -> Uri {
    if uri.authority().is_some() && uri.scheme().is_some() {
        return uri.clone();
    }
    let mut parts = uri.clone().into_parts();
    parts.scheme = Some(Scheme::HTTP);
    if parts.authority.is_none() {
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        parts.authority = host.or_else(|| pool.upstream.to_string().parse().ok());
    }
    if parts.path_and_query.is_none() {
        parts.path_and_query = Some(http::uri::PathAndQuery::from_static("/"));
    }
    Uri::from_parts(parts).unwrap_or_else(|_| uri.clone())
}
