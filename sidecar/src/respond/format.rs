//! The format of an error response: a problem over HTTP, or a gRPC status in the headers.

use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};

use super::problem::{self, ProblemType};
use crate::inbound::protocol::Protocol;
use crate::upstream::response_body::ResponseBody;

/// The value of `Cache-Control` in responses that the sidecar writes itself.
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// The gRPC status of an error response.
#[derive(Clone, Copy)]
pub(super) enum GrpcStatus {
    InvalidArgument = 3,
    ResourceExhausted = 8,
    Unavailable = 14,
}

/// The format that a client expects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResponseFormat {
    Http,
    /// A response to `HEAD`, which has no body.
    Head,
    Grpc,
}

impl ResponseFormat {
    /// Returns the format that a request expects. A gRPC status has the HTTP status 200, so only a request that no
    /// browser or HTTP client sends gets one: a POST over HTTP/2 with the content type of gRPC.
    pub(crate) fn of<B>(request: &Request<B>, protocol: Protocol) -> Self {
        let method = request.method();
        if method == Method::HEAD {
            return Self::Head;
        }
        let is_grpc = protocol == Protocol::Http2 && is_grpc(method, request.headers());
        if is_grpc { Self::Grpc } else { Self::Http }
    }

    /// Builds an error response.
    pub(super) fn error(
        self,
        status: StatusCode,
        grpc: GrpcStatus,
        problem: ProblemType,
        detail: &str,
        violated: &[&str],
    ) -> Response<ResponseBody> {
        if self == Self::Grpc {
            return self.grpc_status(grpc, detail);
        }
        let mut response = Response::new(ResponseBody::empty());
        *response.status_mut() = status;
        let content = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, content);
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        if self == Self::Http {
            *response.body_mut() = ResponseBody::own(problem::write(problem, status, detail, violated));
        }
        response
    }

    /// Builds a response that has only a gRPC status.
    pub(super) fn grpc_status(self, status: GrpcStatus, message: &str) -> Response<ResponseBody> {
        let mut response = Response::new(ResponseBody::empty());
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
pub(crate) fn is_grpc(method: &Method, headers: &HeaderMap) -> bool {
    let name = b"application/grpc";
    let content = headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
    method == Method::POST
        && content.split_at_checked(name.len()).is_some_and(|(start, rest)| {
            start.eq_ignore_ascii_case(name) && matches!(rest.first(), None | Some(b'+' | b';' | b' '))
        })
}
