//! Serves HTTP on one connection: the door `checks`.

use std::convert::Infallible;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::pki_types::CertificateDer;
use sluice_host::drain::DrainWatch;
use sluice_host::guard::guard;
use tokio::io::{AsyncRead, AsyncWrite};
use tower::ServiceExt as _;

use crate::callers::{CallerNames, names_of};
use crate::checks::{Checks, problem};
use crate::grpc::{ConnectionAge, for_ever_or};
use crate::incoming::{Counted, Room};
use crate::metrics::Metrics;

/// Time in which a client must send a head, also the next one of a connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which a client must send a body, and has the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Streams of a connection of HTTP/2.
const MAX_STREAMS: u32 = 1024;
/// Interval of pings to a caller of HTTP/2 that is silent, and the time that it has to answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Handlers that are served over HTTP.
#[derive(Debug, Clone)]
pub(crate) struct HttpDoor {
    routes: Router,
    metrics: Metrics,
    /// Whether certificates are looked at.
    has_callers: bool,
    names: CallerNames,
    /// Room for bodies that are not complete.
    room: Room,
}

impl HttpDoor {
    pub(crate) fn new(checks: Checks, json: Option<Router>) -> Self {
        let (metrics, has_callers) = (checks.metrics.clone(), checks.callers.is_some());
        let routes = checks.routes();
        let routes = match json {
            Some(json) => routes.merge(json),
            None => routes,
        };
        Self { routes, metrics, has_callers, names: CallerNames::default(), room: Room::new() }
    }

    /// Returns what answers, for a caller that has shown no certificate.
    pub(crate) fn routes(&self) -> Router {
        self.routes.clone().layer(axum::Extension(CallerNames::default()))
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the door for a connection whose caller has shown a certificate.
    pub(crate) fn for_caller(&self, certificate: Option<&CertificateDer<'_>>) -> Self {
        let names = certificate.filter(|_| self.has_callers).map(names_of).unwrap_or_default();
        Self { names: CallerNames(names.into()), ..self.clone() }
    }

    /// Serves a connection until it ends.
    pub(crate) async fn serve<S>(
        self,
        stream: S,
        age: ConnectionAge,
        mut drain: DrainWatch,
        distrusted: impl Future<Output = ()> + Send,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let (stream, spoken) = Counted::new(stream);
        let connection = builder.serve_connection(TokioIo::new(stream), self);
        tokio::pin!(connection);
        // Connections that begin together do not end together.
        let max = age.max.map(|max| max.mul_f64(rand::random_range(0.9..=1.1)));
        let silent = async {
            tokio::time::sleep(HEAD_TIMEOUT).await;
            if spoken.has_begun() {
                std::future::pending::<()>().await;
            }
        };
        let ended = tokio::select! {
            ended = connection.as_mut() => Some(ended),
            () = silent => return tracing::debug!("a caller did not begin to speak HTTP"),
            () = for_ever_or(max) => None,
            () = drain.draining() => None,
            () = distrusted => None,
        };
        let ended = match ended {
            Some(ended) => ended,
            None => {
                connection.as_mut().graceful_shutdown();
                tokio::select! {
                    ended = connection => ended,
                    () = for_ever_or(age.grace) => Ok(()),
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, "a connection of an application failed");
        }
    }

    async fn answer(self, mut request: Request<Incoming>) -> Response<Body> {
        let Self { routes, metrics, has_callers: _, names, room } = self;
        request.extensions_mut().insert(names);
        let answering = guard(routes.oneshot(request.map(|body| Body::new(room.bound(body)))));
        match tokio::time::timeout(ANSWER_TIMEOUT, answering).await {
            Ok(Ok(Ok(response))) => response,
            Ok(Ok(Err(never))) => match never {},
            Ok(Err(_)) => {
                metrics.panics.inc();
                problem(StatusCode::INTERNAL_SERVER_ERROR, "this is a defect of the service")
            }
            Err(_) => problem(StatusCode::REQUEST_TIMEOUT, "the request took too long"),
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for HttpDoor {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let door = self.clone();
        Box::pin(async move { Ok(door.answer(request).await) })
    }
}
