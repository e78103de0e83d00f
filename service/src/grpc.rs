//! The methods of gRPC: the door `rls`, the health of the service, and what it tells about its methods.

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use sluice_engine::trace::Tracer;
use sluice_host::serve::{BodyError, Received};
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_prost::ProstCodec;

use crate::callers::{Callers, NotPermitted, Sender};
use crate::messages::{DEFINITIONS, RateLimitRequest, RateLimitResponse};
use crate::rls::Rls;
use crate::work::Whose;

/// The method of the door `rls`.
pub(crate) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Largest question in bytes. A longer one is an error of the call, after which a gateway lets the request pass: this is more than
/// gateways make of the headers that they accept.
const MAX_QUESTION: usize = 4 << 20;

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
        "no such method: the service has envoy.service.ratelimit.v3, grpc.health.v1 and grpc.reflection.v1",
    )
    .into_http()
}

/// The method of the door `rls`.
#[derive(Debug, Clone)]
pub(crate) struct ShouldRateLimit {
    pub(crate) rls: Arc<Rls>,
    pub(crate) tracer: Option<Arc<Tracer>>,
    /// Who may ask, if that is checked.
    pub(crate) callers: Option<Callers>,
}

impl ShouldRateLimit {
    /// Answers a call.
    pub(crate) async fn answer(self, request: Request<Received>, sender: Sender) -> Response<Body> {
        let request = request.map(|body| body.map_err(|error| of_body(&error)));
        let mut grpc =
            Grpc::new(ProstCodec::default()).apply_max_message_size_config(Some(MAX_QUESTION), None);
        grpc.unary(Call { method: self, sender }, request).await
    }
}

fn of_body(error: &BodyError) -> Status {
    match error {
        BodyError::NoRoom(_) => Status::resource_exhausted(error.to_string()),
        BodyError::TimedOut => Status::deadline_exceeded(error.to_string()),
        BodyError::Broken(_) => Status::unknown(error.to_string()),
    }
}

/// A call of the method.
struct Call {
    method: ShouldRateLimit,
    sender: Sender,
}

impl UnaryService<RateLimitRequest> for Call {
    type Response = RateLimitResponse;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<RateLimitResponse>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<RateLimitRequest>) -> Self::Future {
        let (ShouldRateLimit { rls, tracer, callers }, sender) = (self.method.clone(), self.sender.clone());
        Box::pin(async move {
            let (metadata, _, question) = request.into_parts();
            let headers = metadata.into_headers();
            let caller = if let Some(callers) = callers {
                let checked = callers.check(&sender.names, &headers, &question.domain);
                let caller = checked.map_err(|refused| {
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
                Some(caller)
            } else {
                None
            };
            let whose = Whose::of(caller.as_ref(), sender.peer.ip());
            let mut span = tracer.and_then(|tracer| tracer.call(&headers, &SHOULD_RATE_LIMIT[1..]));
            let answer = rls.answer(&question, &headers, whose, span.as_deref_mut()).await;
            // The code is ratelimit's.
            answer.map(tonic::Response::new).map_err(|error| Status::new(Code::Unknown, error.to_string()))
        })
    }
}
