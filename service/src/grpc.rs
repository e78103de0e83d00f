//! Serves gRPC on one connection: the door `rls`, the health of the service, and what it tells about its methods.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use sluice_engine::trace::Tracer;
use sluice_host::drain::DrainWatch;
use sluice_host::guard::guard;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_prost::ProstCodec;
use tower::Service as _;
use tower::util::BoxCloneSyncService;

use crate::callers::{Callers, NotPermitted, names_of};
use crate::incoming::{Counted, Room};
use crate::messages::{DEFINITIONS, RateLimitRequest, RateLimitResponse};
use crate::rls::Rls;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/";
const REFLECTION_ALPHA: &str = "/grpc.reflection.v1alpha.ServerReflection/";
/// Largest question in bytes. A longer one is an error of the call, after which a gateway lets the request pass: this is more than
/// gateways make of the headers that they accept.
const MAX_QUESTION: usize = 4 << 20;
/// Streams of a connection. A gateway has one for each request that waits for its answer.
const MAX_STREAMS: u32 = 1024;
/// Interval of pings to a caller that is silent, and the time that it has to answer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Largest head of a call, in bytes. Envoy copies headers of its client into it, such as `tracestate`, and lets requests pass whose
/// call fails: this is more than a gateway accepts of a client.
const MAX_HEAD: u32 = 8 << 20;
/// Time that a caller has to begin, after which pings find out whether it is there.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// The age at which connections end, so that callers move to other replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionAge {
    /// The age at which no new call is accepted, within 10 %; `None` for ever.
    pub max: Option<Duration>,
    /// Time that calls in flight then have; `None` for ever.
    pub grace: Option<Duration>,
}

type Boxed = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;
/// A service beside the doors.
type Other = BoxCloneSyncService<Request<Incoming>, Response<Body>, Infallible>;

/// The methods of the gRPC port.
#[derive(Debug, Clone)]
pub(crate) struct Methods {
    pub(crate) rls: Arc<Rls>,
    tracer: Option<Arc<Tracer>>,
    room: Room,
    /// Who may ask, if that is checked.
    callers: Option<Callers>,
    /// Names in the certificate of the connection's caller.
    names: Arc<[String]>,
    /// Services by the beginnings of their paths.
    others: Arc<[(&'static str, Other)]>,
}

impl Methods {
    pub(crate) fn new(
        rls: Arc<Rls>,
        tracer: Option<Arc<Tracer>>,
        callers: Option<Callers>,
        health: HealthServer<impl Health>,
    ) -> Result<Self, tonic_reflection::server::Error> {
        let builder = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DEFINITIONS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let others = [
            (HEALTH, Other::new(health)),
            (REFLECTION, Other::new(builder().build_v1()?)),
            // Older tools know this name only.
            (REFLECTION_ALPHA, Other::new(builder().build_v1alpha()?)),
        ];
        Ok(Self { rls, tracer, room: Room::new(), callers, names: Arc::default(), others: others.into() })
    }

    /// Returns the methods for a connection whose caller has shown a certificate.
    pub(crate) fn for_caller(&self, certificate: Option<&CertificateDer<'_>>) -> Self {
        let names = certificate.filter(|_| self.callers.is_some()).map(names_of).unwrap_or_default();
        Self { names: names.into(), ..self.clone() }
    }
}

struct ShouldRateLimit {
    rls: Arc<Rls>,
    tracer: Option<Arc<Tracer>>,
    callers: Option<Callers>,
    names: Arc<[String]>,
}

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<RateLimitResponse>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        let (rls, tracer) = (self.rls.clone(), self.tracer.clone());
        let (callers, names) = (self.callers.clone(), self.names.clone());
        Box::pin(async move {
            let (metadata, _, question) = request.into_parts();
            let headers = metadata.into_headers();
            if let Some(callers) = callers {
                let checked = callers.check(&names, &headers, &question.domain);
                checked.map_err(|refused| {
                    rls.metrics.refuse();
                    match refused {
                        NotPermitted::Unidentified | NotPermitted::Token => {
                            Status::unauthenticated(refused.to_string())
                        }
                        NotPermitted::WithoutKeys => Status::unavailable(refused.to_string()),
                        NotPermitted::Unknown(_)
                        | NotPermitted::Domain { .. }
                        | NotPermitted::Namespace { .. } => Status::permission_denied(refused.to_string()),
                    }
                })?;
            }
            let mut span = tracer.and_then(|tracer| tracer.call(&headers, &SHOULD_RATE_LIMIT[1..]));
            let answer = rls.answer(&question, &headers, span.as_deref_mut()).await;
            // The code is ratelimit's.
            answer.map(tonic::Response::new).map_err(|error| Status::new(Code::Unknown, error.to_string()))
        })
    }
}

impl hyper::service::Service<Request<Incoming>> for Methods {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Boxed;

    fn call(&self, request: Request<Incoming>) -> Boxed {
        let methods = self.clone();
        Box::pin(async move {
            let panics = methods.rls.metrics.panics.clone();
            let answering = guard(async move {
                let path = request.uri().path();
                if path == SHOULD_RATE_LIMIT {
                    let Methods { rls, tracer, room, callers, names, others: _ } = methods;
                    let request = request.map(|body| room.bound(body));
                    let mut grpc = Grpc::new(ProstCodec::default())
                        .apply_max_message_size_config(Some(MAX_QUESTION), None);
                    return grpc.unary(ShouldRateLimit { rls, tracer, callers, names }, request).await;
                }
                let other = methods.others.iter().find(|(beginning, _)| path.starts_with(beginning));
                let Some((_, other)) = other else {
                    return Status::unimplemented(
                        "no such method: the service has envoy.service.ratelimit.v3, grpc.health.v1 and grpc.reflection.v1",
                    )
                    .into_http();
                };
                match other.clone().call(request).await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            });
            Ok(answering.await.unwrap_or_else(|_| {
                panics.inc();
                Status::internal("a defect of the service").into_http()
            }))
        })
    }
}

/// Serves a connection until it ends.
pub(crate) async fn serve<S>(
    stream: S,
    methods: Methods,
    age: ConnectionAge,
    mut drain: DrainWatch,
    distrusted: impl Future<Output = ()> + Send,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let (stream, spoken) = Counted::new(stream);
    let connection = builder.serve_connection(TokioIo::new(stream), methods);
    tokio::pin!(connection);
    // Connections that begin together do not end together.
    let max = age.max.map(|max| max.mul_f64(rand::random_range(0.9..=1.1)));
    let silent = async {
        tokio::time::sleep(PREFACE_TIMEOUT).await;
        if spoken.has_begun() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = silent => return tracing::debug!("a caller did not begin to speak HTTP/2"),
        () = for_ever_or(max) => end(connection.as_mut(), age.grace).await,
        () = drain.draining() => end(connection.as_mut(), age.grace).await,
        () = distrusted => end(connection.as_mut(), age.grace).await,
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection of a gateway failed");
    }
}

/// Ends a connection after the calls in flight.
async fn end<S>(
    mut connection: Pin<&mut http2::Connection<TokioIo<Counted<S>>, Methods, TokioExecutor>>,
    grace: Option<Duration>,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        ended = connection => ended,
        () = for_ever_or(grace) => Ok(()),
    }
}

/// Sleeps so long, or for ever.
pub(crate) async fn for_ever_or(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}
