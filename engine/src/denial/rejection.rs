//! The response to a request that a limit denies, as the limit's `onLimit` describes it.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use sluice_config::policy::ResetFormat;
use sluice_config::prepared::rejection::{Escape, Piece, Placeholder, Rejection, RejectionBody};
use smallvec::SmallVec;

use super::format::{GrpcStatus, NO_STORE, ResponseFormat};
use super::grpc_details::{self, Violated};
use super::problem::{self, ProblemType, write_string};

/// Headers that the response to a denied request has, with those of hyper.
const HEADERS: usize = 12;

/// The reason of a denial, which decides about the status unless the limit does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The client has used what it may use.
    Client,
    /// The application has too many requests. A client may try another pod immediately.
    Capacity,
}

impl Cause {
    fn status(self) -> StatusCode {
        match self {
            Self::Client => StatusCode::TOO_MANY_REQUESTS,
            Self::Capacity => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn grpc_status(self) -> GrpcStatus {
        match self {
            Self::Client => GrpcStatus::ResourceExhausted,
            Self::Capacity => GrpcStatus::Unavailable,
        }
    }
}

/// The denial of a request.
pub(super) struct Denial<'a> {
    /// Who has to wait: this client, or all of them.
    pub(super) cause: Cause,
    /// Type of the problem.
    pub(super) problem: ProblemType,
    /// A sentence about each limit that denies, and when to try again.
    pub(super) message: String,
    /// The limits that deny.
    pub(super) violated: SmallVec<[Violated<'a>; 2]>,
    /// Namespace and name of the policy of the limit that decides about the response.
    pub(super) namespace: &'a str,
    pub(super) policy: &'a str,
    /// Name of this limit.
    pub(super) limit: &'a str,
    /// The rate that denies: number of requests, and period in milliseconds; 0 if there is none.
    pub(super) requests: u64,
    pub(super) period: u64,
    /// Number of seconds after which the request would be admitted; `None` if no wait helps.
    pub(super) wait: Option<u64>,
    /// Time at which it would be admitted, in the format of the limit.
    pub(super) renewal: Option<u64>,
}

/// Returns a time in the format of a limit. `at` is the present time, in microseconds since the Unix epoch, and `wait` a
/// number of microseconds.
pub(super) fn time(format: ResetFormat, at: u64, wait: u64) -> u64 {
    match format {
        ResetFormat::DeltaSeconds => wait.div_ceil(1_000_000),
        ResetFormat::EpochSeconds => at.saturating_add(wait).div_ceil(1_000_000),
        ResetFormat::EpochMillis => at.saturating_add(wait).div_ceil(1_000),
    }
}

impl ResponseFormat {
    /// Builds the response to a denied request, without the headers that report the state of its limits.
    pub(super) fn rejection(self, rejection: &Rejection, denial: &Denial<'_>) -> Response<Bytes> {
        if self == Self::Grpc {
            let status = denial.cause.grpc_status();
            let mut response = self.grpc_status(status, &denial.message);
            let details = grpc_details::encode(status as i32, &denial.message, denial.wait, &denial.violated);
            if let Some(details) = details {
                response.headers_mut().insert("grpc-status-details-bin", details);
            }
            add_headers(rejection, &mut response);
            return response;
        }
        let status = rejection.status.unwrap_or(denial.cause.status());
        let (content_type, body) = body(rejection, status, denial);
        let mut response = Response::new(Bytes::new());
        *response.status_mut() = status;
        *response.headers_mut() = HeaderMap::with_capacity(HEADERS);
        response.headers_mut().insert(CONTENT_TYPE, content_type);
        response.headers_mut().insert(CACHE_CONTROL, NO_STORE);
        add_headers(rejection, &mut response);
        if self == Self::Http {
            *response.body_mut() = body.into();
        }
        response
    }
}

fn add_headers(rejection: &Rejection, response: &mut Response<Bytes>) {
    for (name, value) in &rejection.headers {
        response.headers_mut().append(name, value.clone());
    }
}

/// Returns the body and its content type.
fn body(rejection: &Rejection, status: StatusCode, denial: &Denial<'_>) -> (HeaderValue, Vec<u8>) {
    match &rejection.body {
        RejectionBody::Problem => {
            let violated: SmallVec<[&str; 2]> = denial.violated.iter().map(|one| one.limit).collect();
            let body = problem::write(denial.problem, status, &denial.message, &violated);
            (HeaderValue::from_static("application/problem+json"), body)
        }
        RejectionBody::Envelope { code } => {
            let mut body = Vec::with_capacity(256);
            body.extend_from_slice(b"{\"error\":{\"code\":");
            write_string(&mut body, code);
            body.extend_from_slice(b",\"message\":");
            write_string(&mut body, &denial.message);
            body.extend_from_slice(b",\"context\":{");
            if let Some(renewal) = denial.renewal {
                body.extend_from_slice(b"\"renewal\":");
                body.extend_from_slice(itoa::Buffer::new().format(renewal).as_bytes());
            }
            body.extend_from_slice(b"}}}");
            (HeaderValue::from_static("application/json"), body)
        }
        RejectionBody::Template { content_type, pieces, escape } => {
            let mut body = Vec::with_capacity(512);
            for piece in pieces {
                match piece {
                    Piece::Text(text) => body.extend_from_slice(text.as_bytes()),
                    Piece::Value(placeholder) => write_value(&mut body, *placeholder, *escape, denial),
                }
            }
            (content_type.clone(), body)
        }
    }
}

fn write_value(body: &mut Vec<u8>, placeholder: Placeholder, escape: Escape, denial: &Denial<'_>) {
    let mut digits = itoa::Buffer::new();
    let text = match placeholder {
        Placeholder::Message => &denial.message,
        Placeholder::Limit => denial.limit,
        Placeholder::Policy => denial.policy,
        Placeholder::Namespace => denial.namespace,
        Placeholder::Requests => digits.format(denial.requests),
        Placeholder::Period => digits.format(denial.period.div_ceil(1_000)),
        Placeholder::RetryAfter => digits.format(denial.wait.unwrap_or(0)),
        Placeholder::Renewal => digits.format(denial.renewal.unwrap_or(0)),
    };
    match escape {
        Escape::Plain => body.extend_from_slice(text.as_bytes()),
        Escape::Json => {
            let start = body.len();
            write_string(body, text);
            // The template has the quotation marks.
            body.pop();
            body.remove(start);
        }
        Escape::Markup => {
            for byte in text.bytes() {
                match byte {
                    b'&' => body.extend_from_slice(b"&amp;"),
                    b'<' => body.extend_from_slice(b"&lt;"),
                    b'>' => body.extend_from_slice(b"&gt;"),
                    b'"' => body.extend_from_slice(b"&quot;"),
                    b'\'' => body.extend_from_slice(b"&#39;"),
                    other => body.push(other),
                }
            }
        }
    }
}
