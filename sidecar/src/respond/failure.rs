//! Responses to requests that no limit has denied.

use bytes::Bytes;
use http::header::CONNECTION;
use http::{HeaderValue, Response, StatusCode};
use sluice_engine::{GrpcStatus, ResponseFormat};

use crate::inbound::validate::InvalidRequest;

/// Rejects a request that cannot be served safely, and closes its connection.
pub(crate) fn invalid(format: ResponseFormat, request: InvalidRequest) -> Response<Bytes> {
    let mut response = format.failure(request.status(), GrpcStatus::InvalidArgument, request.detail());
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Reports that the application processed nothing of the request.
pub(crate) fn unprocessed(format: ResponseFormat) -> Response<Bytes> {
    let detail = "The application has refused the request.";
    format.failure(StatusCode::SERVICE_UNAVAILABLE, GrpcStatus::Unavailable, detail)
}

/// Reports that the application did not respond.
pub(crate) fn bad_gateway(format: ResponseFormat, detail: &str) -> Response<Bytes> {
    format.failure(StatusCode::BAD_GATEWAY, GrpcStatus::Unavailable, detail)
}
