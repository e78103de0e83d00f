//! The ports of callers, which speak HTTP and gRPC: the doors `rls`, `authz`, `auth` and `checks`, the health of the service, and what
//! it tells about its methods. And the ports of pages.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{HeaderMap, Request, Response, StatusCode};
use rustls::pki_types::CertificateDer;
use sluice_host::drain::DrainWatch;
use sluice_host::serve::table::{Maxima, NoRoom, PortMetrics, Table};
use sluice_host::serve::{Answer, ConnectionAge, Failure, Http2, Port, Received, Routes, Times};
use tonic::Status;
use tower::ServiceExt as _;

use crate::auth::{self, AUTH};
use crate::callers::{Sender, names_of};
use crate::checks::problem;
use crate::grpc::{CHECK, Methods, SHOULD_RATE_LIMIT};
use crate::tls::Certificates;

/// Envoy copies headers of its client into the head of a call, such as `tracestate`, and lets requests pass whose call fails: this is more
/// than a gateway accepts of a client. A gateway has a stream for each request that waits for its answer.
const HTTP2: Http2 = Http2 { max_head: 8 << 20, streams: 1024 };
/// Largest head of HTTP/1: a gateway shows that of its client, with its own headers.
const MAX_HEAD: usize = 256 << 10;
/// Bytes of heads and bodies that all callers may have waiting together: those of a gateway whose streams all wait, with the heads of
/// ordinary clients.
const MAX_BYTES: usize = 64 << 20;
/// Time in which a client must send a head of HTTP/1, also the next one of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which it must send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Most connections of a port of pages: more than kubelet, several Prometheus servers and those who ask by JSON use. And the bytes of
/// their requests and answers.
const MAX_PAGE_CONNECTIONS: usize = 256;
const MAX_PAGE_BYTES: usize = 32 << 20;
const MAX_PAGE_HEAD: usize = 16 << 10;
const PAGE_HTTP2: Http2 = Http2 { max_head: 16 << 10, streams: 16 };
/// Time for the head of a request for a page.
const PAGE_HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Age at which a connection to a port of pages ends, and the time that its requests then have.
const PAGE_AGE: ConnectionAge =
    ConnectionAge { max: Some(Duration::from_secs(600)), grace: Some(Duration::from_secs(10)) };

/// The routes for a connection of a caller.
#[derive(Debug, Clone)]
pub(crate) struct Door {
    shared: Arc<Shared>,
    sender: Sender,
}

#[derive(Debug)]
struct Shared {
    routes: Router,
    methods: Arc<Methods>,
    certificates: Option<Certificates>,
    /// Whether the names of certificates are looked at.
    has_callers: bool,
}

impl Door {
    pub(crate) fn new(
        routes: Router,
        methods: Arc<Methods>,
        certificates: Option<Certificates>,
        has_callers: bool,
    ) -> Self {
        Self {
            shared: Arc::new(Shared { routes, methods, certificates, has_callers }),
            sender: Sender::local(),
        }
    }

    /// Returns the port of this door, whose callers have `first` to begin.
    pub(crate) fn port(
        self,
        table: Arc<Table>,
        first: Duration,
        age: ConnectionAge,
        drain: DrainWatch,
    ) -> Port<Self> {
        let tls = self.shared.certificates.as_ref().map(Certificates::tls);
        let times = Times { first, head: HEAD_TIMEOUT, body: BODY_TIMEOUT };
        Port { answer: self, table, times, age, max_head: MAX_HEAD, http2: Some(HTTP2), tls, drain }
    }
}

impl Answer for Door {
    type Body = Body;

    fn of_connection(&self, peer: SocketAddr, certificate: Option<&CertificateDer<'_>>) -> Option<Self> {
        let Shared { certificates, has_callers, .. } = &*self.shared;
        if certificates.as_ref().is_some_and(|certificates| !certificates.accepts(certificate)) {
            return None;
        }
        let names = certificate.filter(|_| *has_callers).map(names_of).unwrap_or_default();
        let sender = Sender { names: names.into(), peer };
        Some(Self { shared: self.shared.clone(), sender })
    }

    async fn answer(&self, mut request: Request<Received>) -> Response<Body> {
        let Self { shared, sender } = self;
        // Not by the router, which costs a part of what a question does.
        match request.uri().path() {
            SHOULD_RATE_LIMIT => {
                let methods = shared.methods.clone();
                return methods.should_rate_limit(request, sender.clone()).await.map(Body::new);
            }
            CHECK => {
                let methods = shared.methods.clone();
                return methods.check(request, sender.clone()).await.map(Body::new);
            }
            path if path.starts_with(AUTH) => {
                return auth::answer(&shared.methods.heads, request.into_parts().0, sender).await;
            }
            _ => {}
        }
        request.extensions_mut().insert(sender.clone());
        match shared.routes.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }

    fn failed(&self, failure: Failure, is_grpc: bool) -> Response<Body> {
        match (failure, is_grpc) {
            (Failure::Panicked, true) => Status::internal("a defect of the service").into_http(),
            (Failure::NoRoom, true) => Status::resource_exhausted(NoRoom.to_string()).into_http(),
            (Failure::Panicked, false) => {
                problem(StatusCode::INTERNAL_SERVER_ERROR, "this is a defect of the service")
            }
            (Failure::NoRoom, false) => problem(StatusCode::SERVICE_UNAVAILABLE, NoRoom.to_string()),
        }
    }
}

/// Returns the table of the ports of callers, with at most so many connections.
pub(crate) fn table(connections: usize, metrics: &PortMetrics) -> Arc<Table> {
    Table::new(Maxima::new(connections, MAX_BYTES), metrics.clone())
}

/// Returns a port of pages, which is served until the end of the process.
pub(crate) fn page_port(pages: Router, metrics: &PortMetrics, drain: DrainWatch) -> Port<Routes<Router>> {
    Port {
        answer: Routes::new(pages),
        table: Table::new(Maxima::new(MAX_PAGE_CONNECTIONS, MAX_PAGE_BYTES), metrics.uncounted()),
        times: Times { first: PAGE_HEAD_TIMEOUT, head: PAGE_HEAD_TIMEOUT, body: BODY_TIMEOUT },
        age: PAGE_AGE,
        max_head: MAX_PAGE_HEAD,
        http2: Some(PAGE_HTTP2),
        tls: None,
        drain,
    }
}

/// Refuses what a page in a browser sends: it may be any page that somebody on this machine looks at.
pub(crate) async fn refuse_browsers(
    headers: HeaderMap,
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> Response<Body> {
    let is_of_page = |site: &http::HeaderValue| site != "none";
    if headers.contains_key(http::header::ORIGIN) || headers.get("sec-fetch-site").is_some_and(is_of_page) {
        return problem(
            StatusCode::FORBIDDEN,
            "web pages may not ask: ask from a program, without the header origin",
        );
    }
    next.run(request).await
}
