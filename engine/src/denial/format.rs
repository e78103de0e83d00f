//! The format of an error response: a problem over HTTP, or a gRPC status in the headers.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};

use super::problem::{self, ProblemType};

/// The value of `Cache-Control` in responses that do not come from the application.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The gRPC status of an error response.
#[derive(Debug, Clone, Copy)]
pub enum GrpcStatus {
    /// The request cannot be served as it is.
    InvalidArgument = 3,
    /// The client has used what it may use.
    ResourceExhausted = 8,
    /// Another attempt may succeed.
    Unavailable = 14,
}

/// The format that a client expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponseFormat {
    /// A body over HTTP.
    Http,
    /// A response to `HEAD`, which has no body.
    Head,
    /// A gRPC status in the headers.
    Grpc,
}

impl ResponseFormat {
    /// Returns the format that a request expects. A gRPC status has the HTTP status 200, so only a request that no
    /// browser or HTTP client sends gets one: a POST over HTTP/2 with the content type of gRPC.
    #[must_use]
    pub fn of(method: &Method, headers: &HeaderMap, is_http2: bool) -> Self {
        if method == Method::HEAD {
            return Self::Head;
        }
        let is_grpc = is_http2 && is_grpc(method, headers);
        if is_grpc { Self::Grpc } else { Self::Http }
    }

    /// Builds the response to a request that fails for another reason than its limits. The status and the detail explain it
    /// completely.
    #[must_use]
    pub fn failure(self, status: StatusCode, grpc: GrpcStatus, detail: &str) -> Response<Bytes> {
        self.error(status, grpc, ProblemType::blank(status), detail, &[])
    }

    /// Builds an error response.
    pub(super) fn error(
        self,
        status: StatusCode,
        grpc: GrpcStatus,
        problem: ProblemType,
        detail: &str,
        violated: &[&str],
    ) -> Response<Bytes> {
        if self == Self::Grpc {
            return self.grpc_status(grpc, detail);
        }
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = status;
        let content = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, content);
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        if self == Self::Http {
            *response.body_mut() = problem::write(problem, status, detail, violated).into();
        }
        response
    }

    /// Builds a response that has only a gRPC status.
    pub(super) fn grpc_status(self, status: GrpcStatus, message: &str) -> Response<Bytes> {
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", HeaderValue::from(status as u16));
        // Visible ASCII without a percent sign needs no encoding.
        let message: String =
            message.chars().filter(|&c| (c.is_ascii_graphic() || c == ' ') && c != '%').collect();
        if let Ok(message) = HeaderValue::from_str(&message) {
            headers.insert("grpc-message", message);
        }
        response
    }
}

/// Reports whether a request over HTTP/2 is one of gRPC: a POST whose content type is `application/grpc`, alone or with
/// `+proto` or a parameter.
#[must_use]
pub fn is_grpc(method: &Method, headers: &HeaderMap) -> bool {
    let name = b"application/grpc";
    let content = headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    method == Method::POST
        && content.split_at_checked(name.len()).is_some_and(|(start, rest)| {
            start.eq_ignore_ascii_case(name) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
        })
}
