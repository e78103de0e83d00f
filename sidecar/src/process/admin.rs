//! The admin port: liveness, readiness, startup and metrics. Nothing else. The debug port, on an address of the pod alone, answers
//! questions about clients. Both have the same timeouts as the proxy and few connections, of which the longest idle one makes
//! room for a probe.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Empty, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use sluice_config::exposition::ExpositionFormat;
use sluice_engine::{Engine, Page as ClientPage};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

use crate::inbound::client_stream::ClientStream;
use crate::inbound::head_timeout::HeadTimeouts;
use crate::inbound::protocol::Protocol;
use crate::inbound::table::exchange::{Exchange, WatchedBody};
use crate::inbound::table::{ConnectionTable, Place, Timeouts};
use crate::inbound::validate::{InvalidRequest, validate};
use crate::metrics::ended::EndedStreams;
use crate::metrics::registry::Metrics;
use crate::process::serve::http1;
use crate::socket;
use crate::upstream::hop_by_hop::strip_request;
use sluice_host::drain::{self, DrainWatch};

/// Maximum number of connections: more than kubelet and several Prometheus servers use.
const MAX_CONNECTIONS: usize = 64;
/// Time in which a client must read a part of a page.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest question to the debug port, in bytes: more than the head of a request that the proxy accepts.
const MAX_QUESTION: usize = 256 * 1024;
/// Pause after a failed accept.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// The state that the pages report: everything that the handlers read.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    pub(crate) engine: Engine,
    pub(crate) metrics: Metrics,
    pub(crate) drain: DrainWatch,
    /// Set when the time to wait for the first policies is over.
    pub(crate) startup_over: Arc<AtomicBool>,
    /// The client connections of the proxy.
    pub(crate) table: Arc<ConnectionTable>,
    pub(crate) timeouts: HeadTimeouts,
    pub(crate) pages: Pages,
}

/// The pages of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Probes and metrics.
    Admin,
    /// Clients. Only for who can forward a port of the pod, or run something in it.
    Debug,
}

type Page = Response<Full<Bytes>>;

impl Admin {
    /// Serves the pages until the end of the process, also while the sidecar drains.
    pub(crate) async fn serve(self, listener: TcpListener) {
        let table = ConnectionTable::new(MAX_CONNECTIONS, EndedStreams::default());
        let timeouts = Timeouts { body: Some(BODY_TIMEOUT), http2_idle: None, upgrade_idle: None };
        let _sweep = AbortOnDropHandle::new(tokio::spawn(table.clone().sweep(timeouts)));
        let (_signal, never_drains) = drain::channel();
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "the admin port cannot accept a connection");
                    tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                    continue;
                }
            };
            let Some(place) = table.place(peer.ip()).await else { return };
            tokio::spawn(self.clone().serve_connection(stream, place, never_drains.clone()));
        }
    }

    async fn serve_connection(self, stream: TcpStream, place: Place, mut drain: DrainWatch) {
        socket::prepare(&stream);
        let (activity, timeouts) = (place.activity.clone(), self.timeouts);
        let stream = ClientStream::new(stream, BytesMut::new(), Protocol::Http1, activity.clone());
        let Ok(stream) = stream else { return };
        let service = service_fn(move |request: Request<Incoming>| {
            let exchange = Exchange::begin(place.activity.clone());
            let admin = self.clone();
            async move {
                let page = admin.respond(request).await;
                let body = |body: Full<Bytes>| body.map_err(|never| match never {});
                Ok::<_, Infallible>(page.map(|page| WatchedBody::new(body(page), exchange)))
            }
        });
        if let Err(error) = http1::serve(stream, service, timeouts, &mut drain, &activity).await {
            tracing::debug!(%error, "a connection to the admin port failed");
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Page {
        match (self.pages, ClientPage::at(request.uri().path())) {
            (Pages::Debug, Some(page)) => self.clients(page, request).await,
            (Pages::Admin, _) | (Pages::Debug, None) => self.page(&request),
        }
    }

    /// Returns a page about clients.
    async fn clients(&self, page: ClientPage, request: Request<Incoming>) -> Page {
        let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
        let mut question = Bytes::new();
        if page.has_question() {
            if *request.method() != Method::POST {
                return method_not_allowed("POST");
            }
            match Limited::new(request.into_body(), MAX_QUESTION).collect().await {
                Ok(body) => question = body.to_bytes(),
                Err(error) if error.is::<LengthLimitError>() => {
                    return text(StatusCode::PAYLOAD_TOO_LARGE, "the question is too long\n");
                }
                Err(_) => return text(StatusCode::BAD_REQUEST, "the question broke off\n"),
            }
        } else if !is_get {
            return method_not_allowed("GET, HEAD");
        }
        let (status, page, kind) = match self.engine.page(page, &question, validated).await {
            Ok(page) => (StatusCode::OK, page, "application/json"),
            Err(error) => (StatusCode::BAD_REQUEST, error + "\n", "text/plain; charset=utf-8"),
        };
        let mut page = Response::new(Full::from(page));
        *page.status_mut() = status;
        page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        page
    }

    fn page(&self, request: &Request<Incoming>) -> Page {
        let mut page = match (self.pages, request.uri().path()) {
            (Pages::Admin, "/livez") => text(StatusCode::OK, "ok\n"),
            (Pages::Admin, "/readyz") => self.ready(),
            (Pages::Admin, "/startupz") => self.started(),
            (Pages::Admin, "/metrics") => self.metrics(request.headers()),
            _ => text(StatusCode::NOT_FOUND, ""),
        };
        if page.status() != StatusCode::NOT_FOUND && !matches!(*request.method(), Method::GET | Method::HEAD)
        {
            page = method_not_allowed("GET, HEAD");
        }
        page
    }

    fn ready(&self) -> Page {
        if self.drain.is_draining() {
            text(StatusCode::SERVICE_UNAVAILABLE, "draining\n")
        } else if self.engine.denies_all() {
            // Other pods may have policies.
            text(StatusCode::SERVICE_UNAVAILABLE, "no policies received: all requests are rejected\n")
        } else if self.table.is_saturated() {
            text(StatusCode::SERVICE_UNAVAILABLE, "saturated: all connections have requests in flight\n")
        } else {
            text(StatusCode::OK, "ok\n")
        }
    }

    fn started(&self) -> Page {
        if self.engine.publisher().has_published() {
            text(StatusCode::OK, "ok\n")
        } else if self.startup_over.load(Ordering::Relaxed) {
            let page = match self.engine.denies_all() {
                true => "no policies received: all requests are rejected\n",
                false => "no policies received: all requests pass without limits\n",
            };
            text(StatusCode::OK, page)
        } else {
            text(StatusCode::SERVICE_UNAVAILABLE, "waiting for the first policies\n")
        }
    }

    fn metrics(&self, headers: &HeaderMap) -> Page {
        let format = ExpositionFormat::accepted(headers);
        let mut page = Response::new(Full::from(format.page(self.metrics.text())));
        page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
        page
    }
}

/// Makes a request what the proxy makes of it, for a question about it.
fn validated(request: &mut Request<Empty<Bytes>>) -> Result<Option<Box<HeaderMap>>, &'static str> {
    validate(request, Protocol::Http1, false).map_err(InvalidRequest::detail)?;
    Ok(strip_request(request, "localhost"))
}

fn method_not_allowed(allowed: &'static str) -> Page {
    let mut page = text(StatusCode::METHOD_NOT_ALLOWED, "");
    page.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    page
}

fn text(status: StatusCode, text: &'static str) -> Page {
    let mut page = Response::new(Full::from(text));
    *page.status_mut() = status;
    page.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    page
}
