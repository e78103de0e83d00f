//! Forwards a request to the application over a pooled or dedicated connection, and returns its response as
//! it was sent.
//!
//! The application sees the sidecar as its peer, so the client's address is appended to `X-Forwarded-For`, as
//! every proxy does. Only that last entry is known to be true.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HOST, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderValue, Request, Response, StatusCode, Uri, Version};
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use sluice_limiter::adaptive::SampleOutcome;
use tokio::io::AsyncWriteExt as _;

use crate::inbound::client_body::ClientBody;
use crate::inbound::table::activity::{Activity, Stage};
use crate::inbound::table::exchange::Waiting;
use crate::memory::BUDGET;
use crate::metrics::ended::EndReason;
use crate::upstream::abandoned::Abandoned;
use crate::upstream::address::Upstream;
use crate::upstream::application::Application;
use crate::upstream::application::body::{ApplicationBody, ExchangeError};
use crate::upstream::expectation::Expectation;
use crate::upstream::http2::Failed;
use crate::upstream::http2::dedicated::DedicatedConnection;
use crate::upstream::pinned::{Pinned, asks_to_authenticate, authenticates};
use crate::upstream::pool::{Pool, PooledConnection};
use crate::upstream::request_body::{BrokenMark, RequestBody};
use crate::upstream::response_body::ResponseBody;
use crate::upstream::{hop_by_hop, http2};
use sluice_engine::{Marks, NoResponse, UploadMeter, is_grpc};

/// Number of times that an HTTP/2 request is sent that the application has not processed.
const MAX_ATTEMPTS: u32 = 3;

/// The reason why the application sent no response.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// No connection to the application could be opened.
    Unreachable(io::Error),
    /// The connection ended before a response, or the response was not HTTP.
    NoResponse(ExchangeError),
    /// The application has refused the request, and not processed any of it.
    Unprocessed,
    /// The client broke off its own request.
    BrokenRequest,
    /// The process ends.
    Stopped,
}

/// Marks a response to a request of which the application has processed nothing: over HTTP/2 the client learns that it may send
/// it again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unprocessed;

/// The result of forwarding a request.
pub(crate) type Forwarded = Result<Response<ResponseBody>, ForwardError>;

/// Returns the meaning of a result for an adaptive limit. A server error does not measure the load: if it counted as
/// a success, quick errors would raise the limit of an application that cannot work at all.
pub(crate) fn sample_outcome(forwarded: &Forwarded) -> SampleOutcome {
    match forwarded {
        Ok(response) if response.status().is_server_error() => SampleOutcome::Ignored,
        Ok(_) => SampleOutcome::Success,
        Err(ForwardError::Unreachable(_) | ForwardError::NoResponse(_) | ForwardError::Unprocessed) => {
            SampleOutcome::Dropped
        }
        Err(ForwardError::BrokenRequest | ForwardError::Stopped) => SampleOutcome::Ignored,
    }
}

impl ForwardError {
    /// All values of the metric label `reason`.
    pub(crate) const REASONS: [&str; 7] =
        ["connect_timeout", "connect", "nonsense", "closed", "unprocessed", "broken_request", "stopped"];

    /// Returns the value of the metric label `reason`, one of [`Self::REASONS`].
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Unreachable(error) if error.kind() == io::ErrorKind::TimedOut => "connect_timeout",
            Self::Unreachable(_) => "connect",
            Self::NoResponse(error) if error.is_parse() => "nonsense",
            Self::NoResponse(_) => "closed",
            Self::Unprocessed => "unprocessed",
            Self::BrokenRequest => "broken_request",
            Self::Stopped => "stopped",
        }
    }

    /// Returns the meaning of the error for the charges of the request.
    pub(crate) fn no_response(&self) -> NoResponse {
        match self {
            Self::Unreachable(_) => NoResponse::Unreachable(StatusCode::BAD_GATEWAY),
            Self::Unprocessed => NoResponse::Unreachable(StatusCode::SERVICE_UNAVAILABLE),
            Self::NoResponse(_) | Self::BrokenRequest | Self::Stopped => NoResponse::Unknown,
        }
    }

    fn ended(error: ExchangeError, broken: Option<&BrokenMark>) -> Self {
        if broken.is_some_and(BrokenMark::is_set) { Self::BrokenRequest } else { Self::NoResponse(error) }
    }
}

/// The client of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client<'a> {
    /// Entry of `X-Forwarded-For` with its address.
    pub(crate) forwarded_for: &'a HeaderValue,
    /// State of its connection.
    pub(crate) activity: &'a Arc<Activity>,
    /// The connection to the application that is its own.
    pub(crate) pinned: &'a Arc<Pinned<RequestBody>>,
}

impl Client<'_> {
    /// Returns the mark that is set while the body of a request waits for the client.
    fn waiting(&self, is_grpc: bool) -> Waiting {
        Waiting::new(self.activity.clone(), is_grpc)
    }
}

/// Forwards an HTTP/1 request of a client, whose head is [that of the application](hop_by_hop::strip_request) already. If the
/// connection changes its protocol, the result of `keep` is dropped when the connection ends.
pub(crate) async fn over_http1<K: Keep>(
    pool: &Arc<Pool<RequestBody>>,
    mut request: Request<ClientBody>,
    client: Client<'_>,
    broken: Option<BrokenMark>,
    keep: impl FnOnce() -> K,
) -> Forwarded {
    let upgraded = request.headers().contains_key(UPGRADE).then(|| hyper::upgrade::on(&mut request));
    let (mut parts, body) = request.into_parts();
    let meter = parts.extensions.remove::<Arc<UploadMeter>>();
    let marks = parts.extensions.remove::<Marks>();
    parts.extensions.clear();
    parts.version = Version::HTTP_11;
    let headers = &mut parts.headers;
    hop_by_hop::append_forwarded_for(headers, client.forwarded_for);
    marks.into_iter().for_each(|marks| marks.write(headers));
    if authenticates(headers) {
        client.pinned.pin();
    }
    let (body, broken) = RequestBody::new(body, broken, meter, || client.waiting(false));
    let mut request = Request::from_parts(parts, body);
    let expectation = Expectation::of(&mut request);
    if let Some(expectation) = &expectation {
        request = request.map(|body| body.wanted(expectation.clone()));
    }
    let (mut response, mut connection) = exchange(pool, request, client.pinned, broken.as_ref()).await?;
    *response.version_mut() = Version::HTTP_11;
    let status = response.status();
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return match upgraded {
            Some(upgraded) => Ok(switch_protocols(response, upgraded, client.activity.clone(), keep())),
            None => Err(ForwardError::NoResponse(ExchangeError::SwitchedUnasked)),
        };
    }
    if asks_to_authenticate(response.headers()) {
        connection.pin(client.pinned);
    }
    hop_by_hop::strip_response(status, response.headers_mut());
    expectation.iter().for_each(|expectation| expectation.responded(status));
    if expectation.as_ref().is_some_and(|expectation| expectation.is_unwanted()) {
        // The client may or may not send its body now, so the end of its request is unknown.
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    connection.expect(expectation);
    Ok(response.map(|body| return_at_end(body, connection)))
}

/// Makes the connection return to the pool at the end of the body, or now if there is no body.
fn return_at_end(body: Incoming, connection: PooledConnection<RequestBody>) -> ResponseBody {
    if body.is_end_stream() {
        connection.give_back();
        return ResponseBody::upstream(ApplicationBody::Http1(body), None);
    }
    ResponseBody::upstream(ApplicationBody::Http1(body), Some(connection))
}

/// Sends a request and waits for the head of its response. Only using an idle connection shows that the
/// application has closed it. A request that was not sent, or that may be repeated (RFC 9110, 9.2.2), is then
/// sent on a new connection.
async fn exchange(
    pool: &Arc<Pool<RequestBody>>,
    mut request: Request<RequestBody>,
    client: &Arc<Pinned<RequestBody>>,
    broken: Option<&BrokenMark>,
) -> Result<(Response<Incoming>, PooledConnection<RequestBody>), ForwardError> {
    if let Some(mut connection) = pool.take_idle(client)
        && connection.is_ready().await
    {
        let copy = is_repeatable(&request).then(|| copy(&request));
        match connection.sender.try_send_request(request).await {
            Ok(response) => return Ok((response, connection)),
            Err(mut error) => match error.take_message().or(copy) {
                Some(again) if !error.error().is_parse() => request = again,
                _ => return Err(ForwardError::ended(ExchangeError::Http1(error.into_error()), broken)),
            },
        }
    }
    let mut connection = pool.connect(client).await.map_err(ForwardError::Unreachable)?;
    match connection.sender.try_send_request(request).await {
        Ok(response) => Ok((response, connection)),
        Err(error) => Err(ForwardError::ended(ExchangeError::Http1(error.into_error()), broken)),
    }
}

fn is_repeatable(request: &Request<RequestBody>) -> bool {
    request.method().is_idempotent()
        && matches!(request.body(), RequestBody::Empty)
        && !request.headers().contains_key(UPGRADE)
}

fn copy(request: &Request<RequestBody>) -> Request<RequestBody> {
    copy_head(request).map(|()| RequestBody::Empty)
}

fn copy_head<B>(request: &Request<B>) -> Request<()> {
    let mut copy = Request::new(());
    copy.method_mut().clone_from(request.method());
    copy.uri_mut().clone_from(request.uri());
    copy.headers_mut().clone_from(request.headers());
    copy
}

/// Guards that an upgraded connection keeps until it ends.
pub(crate) trait Keep: Send + 'static {
    /// Drops what belongs to the client's connection.
    fn client_left(&mut self);

    /// Returns the time for which the connection to the application stays open when the client has left.
    fn abandoned_for(&self) -> Duration;

    /// Notes that the sidecar ends the connection.
    fn evicted(&self, reason: EndReason);
}

/// Joins the connections of the client and the application, which now speak another protocol.
fn switch_protocols<K: Keep>(
    mut response: Response<Incoming>,
    client: OnUpgrade,
    activity: Arc<Activity>,
    mut kept: K,
) -> Response<ResponseBody> {
    let application = hyper::upgrade::on(&mut response);
    let protocol = response.headers().get(UPGRADE).cloned();
    hop_by_hop::strip_response(response.status(), response.headers_mut());
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(UPGRADE, protocol);
    }
    activity.set_stage(Stage::Upgraded);
    tokio::spawn(async move {
        let (client, application) = futures::future::join(client, application).await;
        let Ok(application) = application else { return };
        let mut application = TokioIo::new(application);
        if let Ok(client) = client {
            let mut client = TokioIo::new(client);
            tokio::select! {
                _ = tokio::io::copy_bidirectional(&mut client, &mut application) => {}
                reason = activity.ended() => kept.evicted(reason),
            }
        }
        kept.client_left();
        finish(&mut application, kept.abandoned_for()).await;
    });
    response.map(|_| ResponseBody::empty())
}

/// Reads what the application still sends on an upgraded connection whose client has left, and discards it.
async fn finish(application: &mut TokioIo<Upgraded>, time: Duration) {
    if let Some(abandoned) = Some(time).filter(|time| !time.is_zero()).and_then(Abandoned::now) {
        let rest = async {
            let _ = application.shutdown().await;
            let _ = tokio::io::copy(application, &mut tokio::io::sink()).await;
        };
        abandoned.wait_for(rest).await;
    }
}

/// Forwards an HTTP/2 request of a client, whose target is [complete](complete_target).
pub(crate) async fn over_http2(
    application: &Application,
    connection: &DedicatedConnection,
    request: Request<ClientBody>,
    client: Client<'_>,
    broken: Option<BrokenMark>,
) -> Forwarded {
    let (mut parts, body) = request.into_parts();
    let meter = parts.extensions.remove::<Arc<UploadMeter>>();
    let marks = parts.extensions.remove::<Marks>();
    parts.extensions.clear();
    hop_by_hop::append_forwarded_for(&mut parts.headers, client.forwarded_for);
    marks.into_iter().for_each(|marks| marks.write(&mut parts.headers));
    let is_grpc = is_grpc(&parts.method, &parts.headers);
    let (body, broken) = RequestBody::new(body, broken, meter, || client.waiting(is_grpc));
    let (mut body, mut failed) = (body, None);
    let head = Request::from_parts(parts, ());
    for attempt in 1.. {
        let mut opened = connection.open(application, failed).await.map_err(ForwardError::Unreachable)?;
        // Many requests may have waited for the connection.
        BUDGET.ready().await;
        let ready = poll_fn(|cx| opened.sender.poll_ready(cx)).await;
        let result = match ready {
            // The application has closed the connection since its last request, or said that it would.
            Err(error) => Err(Failed { error: error.into(), again: Some(body) }),
            Ok(()) => http2::exchange(&mut opened, copy_head(&head), body, client.activity.stalled()).await,
        };
        match result {
            Ok(response) => return Ok(response.map(|body| ResponseBody::upstream(body, None))),
            Err(Failed { again: Some(again), error }) if attempt < MAX_ATTEMPTS => {
                tracing::debug!(%error, "a request that the application has not processed is sent again");
                body = again;
                if !error.is_refused() {
                    failed = Some(opened.number);
                }
            }
            Err(Failed { error, .. }) if error.is_unprocessed() => return Err(ForwardError::Unprocessed),
            Err(Failed { error, .. }) => {
                return Err(ForwardError::ended(ExchangeError::Http2(error), broken.as_ref()));
            }
        }
    }
    Err(ForwardError::Unprocessed)
}

/// Makes the target of a request that which the application receives over HTTP/2, before anything decides by it: with scheme and
/// authority.
pub(crate) fn complete_target<B>(request: &mut Request<B>, upstream: &Upstream) {
    let uri = request.uri();
    if uri.authority().is_some() && uri.scheme().is_some() {
        return;
    }
    let host = request.headers().get(HOST);
    let mut parts = uri.clone().into_parts();
    parts.scheme = Some(Scheme::HTTP);
    if parts.authority.is_none() {
        let host = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
        parts.authority = host.or_else(|| upstream.authority().parse().ok());
    }
    if parts.path_and_query.is_none() {
        parts.path_and_query = Some(PathAndQuery::from_static("/"));
    }
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_counted_from_0() {
        let unreachable = |kind: io::ErrorKind| ForwardError::Unreachable(kind.into());
        for error in [
            unreachable(io::ErrorKind::TimedOut),
            unreachable(io::ErrorKind::ConnectionRefused),
            ForwardError::Unprocessed,
            ForwardError::BrokenRequest,
            ForwardError::Stopped,
        ] {
            assert!(ForwardError::REASONS.contains(&error.reason()), "{error:?}");
        }
    }

    #[test]
    fn adaptive_limits_ignore_server_errors() {
        let response = |status| {
            let mut response = Response::new(ResponseBody::empty());
            *response.status_mut() = status;
            sample_outcome(&Ok(response))
        };
        assert!(matches!(response(StatusCode::OK), SampleOutcome::Success));
        assert!(matches!(response(StatusCode::NOT_FOUND), SampleOutcome::Success));
        assert!(matches!(response(StatusCode::INTERNAL_SERVER_ERROR), SampleOutcome::Ignored));
        let refused = ForwardError::Unreachable(io::ErrorKind::ConnectionRefused.into());
        assert!(matches!(sample_outcome(&Err(refused)), SampleOutcome::Dropped));
        assert!(matches!(sample_outcome(&Err(ForwardError::BrokenRequest)), SampleOutcome::Ignored));
    }
}
