//! The methods of gRPC: the doors `rls` and `authz`, the health of the service, and what it tells about its methods.

use std::marker::PhantomData;
use std::sync::Arc;

use axum::Router;
use bytes::Buf as _;
use http::{HeaderMap, Request, Response};
use http_body_util::BodyExt as _;
use sluice_engine::trace::{RequestSpan, Tracer};
use sluice_host::serve::{BodyError, Received};
use tonic::body::Body;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic::server::Grpc;
use tonic::{Code, Status};
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_prost::ProstEncoder;

use crate::authz;
use crate::callers::{Callers, Sender};
use crate::heads::Heads;
use crate::messages::{CheckRequest, DEFINITIONS, RateLimitRequest};
use crate::rls::Rls;
use crate::work::Whose;

/// The method of the door `rls`.
pub(crate) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The method of the door `authz`.
pub(crate) const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
/// Largest question in bytes. A longer one is an error of the call, after which a gateway lets the request pass: this is more than
/// gateways make of the headers that they accept.
const MAX_QUESTION: usize = 4 << 20;

/// Returns the buffers of a call: hardly any message has more than a KiB.
fn buffers() -> BufferSettings {
    BufferSettings::new(1 << 10, 32 << 10)
}

/// Returns the routes of the methods beside the doors'.
pub(crate) fn routes(health: HealthServer<impl Health>) -> Result<Router, tonic_reflection::server::Error> {
    let builder = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DEFINITIONS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    Ok(Router::new()
        .route_service("/grpc.health.v1.Health/{method}", health)
        .route_service("/grpc.reflection.v1.ServerReflection/{method}", builder().build_v1()?)
        // Older tools know this name only.
        .route_service("/grpc.reflection.v1alpha.ServerReflection/{method}", builder().build_v1alpha()?))
}

/// Returns the answer to a call of a method that there is not.
pub(crate) fn unimplemented() -> Response<axum::body::Body> {
    Status::unimplemented(
        "no such method: the service has envoy.service.ratelimit.v3, envoy.service.auth.v3, grpc.health.v1 and grpc.reflection.v1",
    )
    .into_http()
}

/// The methods of the doors.
#[derive(Debug)]
pub(crate) struct Methods {
    pub(crate) rls: Arc<Rls>,
    pub(crate) heads: Arc<Heads>,
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// Who may ask, if that is checked.
    pub(crate) callers: Option<Callers>,
}

impl Methods {
    /// Answers a call of the door `rls`.
    pub(crate) async fn should_rate_limit(
        self: Arc<Self>,
        request: Request<Received>,
        sender: Sender,
    ) -> Response<Body> {
        let method = move |headers: HeaderMap, question: RateLimitRequest| {
            let (methods, sender) = (self.clone(), sender.clone());
            async move {
                let Self { rls, tracer, callers, .. } = &*methods;
                let caller = callers.as_ref().map(|callers| {
                    callers.check(&sender.names, &headers, &question.domain).map_err(|refused| {
                        rls.metrics.refuse();
                        refused.to_status()
                    })
                });
                let whose = Whose::of(caller.transpose()?.as_ref(), sender.peer.ip());
                let mut span = span(tracer.as_ref(), &headers, SHOULD_RATE_LIMIT);
                let answer = rls.answer(&question, &headers, whose, span.as_deref_mut()).await;
                // The code is ratelimit's.
                answer.map_err(|error| Status::new(Code::Unknown, error.to_string()))
            }
        };
        unary(request, method).await
    }

    /// Answers a call of the door `authz`.
    pub(crate) async fn check(self: Arc<Self>, request: Request<Received>, sender: Sender) -> Response<Body> {
        let method = move |headers: HeaderMap, question: CheckRequest| {
            let (methods, sender) = (self.clone(), sender.clone());
            async move {
                let mut span = span(methods.tracer.as_ref(), &headers, CHECK);
                authz::answer(&methods.heads, question, &headers, &sender, span.as_deref_mut()).await
            }
        };
        unary(request, method).await
    }
}

fn span(tracer: Option<&Arc<Tracer>>, headers: &HeaderMap, method: &'static str) -> Option<Box<RequestSpan>> {
    tracer.and_then(|tracer| tracer.call(headers, &method[1..]))
}

/// Answers a call by a method, which takes the headers of the call and its message.
async fn unary<Q, A, F>(request: Request<Received>, method: impl Fn(HeaderMap, Q) -> F) -> Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
    F: Future<Output = Result<A, Status>> + Send,
{
    let request = request.map(|body| body.map_err(|error| of_body(&error)));
    let mut grpc = Grpc::new(InOnePiece(PhantomData::<fn(Q) -> A>))
        .apply_max_message_size_config(Some(MAX_QUESTION), None);
    let service = tower::service_fn(|request: tonic::Request<Q>| {
        let (metadata, _, question) = request.into_parts();
        // In memory of its own: the connection's future is not larger for it.
        let answer = Box::pin(method(metadata.into_headers(), question));
        async { answer.await.map(tonic::Response::new) }
    });
    grpc.unary(service, request).await
}

/// Decodes messages that lie in one piece of memory, of which their bytes are parts.
struct InOnePiece<T>(PhantomData<T>);

impl<Q, A> Codec for InOnePiece<fn(Q) -> A>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + 'static,
{
    type Encode = A;
    type Decode = Q;
    type Encoder = ProstEncoder<A>;
    type Decoder = Self;

    fn encoder(&mut self) -> ProstEncoder<A> {
        ProstEncoder::new(buffers())
    }

    fn decoder(&mut self) -> Self {
        Self(PhantomData)
    }
}

impl<Q: prost::Message + Default, A> Decoder for InOnePiece<fn(Q) -> A> {
    type Item = Q;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Q>, Status> {
        let message = Q::decode(buf.copy_to_bytes(buf.remaining()));
        message.map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        buffers()
    }
}

fn of_body(error: &BodyError) -> Status {
    match error {
        BodyError::NoRoom(_) => Status::resource_exhausted(error.to_string()),
        BodyError::TimedOut => Status::deadline_exceeded(error.to_string()),
        BodyError::Broken(_) => Status::unknown(error.to_string()),
    }
}
