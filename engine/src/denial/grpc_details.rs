//! The details of a gRPC status, which clients read from the trailer `grpc-status-details-bin`: when to try again
//! (`google.rpc.RetryInfo`), and which limits denied the request (`google.rpc.QuotaFailure`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use http::HeaderValue;
use prost::Message;

/// A limit that denied the request.
pub(super) struct Violated<'a> {
    /// Name of the limit.
    pub(super) limit: &'a str,
    /// Sentence about the requests that it admits.
    pub(super) rule: &'a str,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// `google.rpc.RetryInfo`.
#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    retry_delay: Option<Duration>,
}

/// `google.protobuf.Duration`.
#[derive(Clone, PartialEq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

/// `google.rpc.QuotaFailure`.
#[derive(Clone, PartialEq, Message)]
struct QuotaFailure {
    #[prost(message, repeated, tag = "1")]
    violations: Vec<Violation>,
}

/// `google.rpc.QuotaFailure.Violation`.
#[derive(Clone, PartialEq, Message)]
struct Violation {
    #[prost(string, tag = "1")]
    subject: String,
    #[prost(string, tag = "2")]
    description: String,
}

/// Encodes the details of a status. `wait` is the number of seconds after which the request would be admitted; `None` if
/// no wait helps.
pub(super) fn encode(
    code: i32,
    message: &str,
    wait: Option<u64>,
    violated: &[Violated<'_>],
) -> Option<HeaderValue> {
    let mut details = Vec::with_capacity(2);
    if let Some(seconds) = wait {
        let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
        details.push(any("google.rpc.RetryInfo", &RetryInfo { retry_delay: Some(Duration { seconds }) }));
    }
    let violations = violated.iter().map(|violated| Violation {
        subject: violated.limit.to_owned(),
        description: violated.rule.trim_end().to_owned(),
    });
    let violations: Vec<_> = violations.collect();
    if !violations.is_empty() {
        details.push(any("google.rpc.QuotaFailure", &QuotaFailure { violations }));
    }
    let status = Status { code, message: message.to_owned(), details };
    HeaderValue::from_str(&STANDARD_NO_PAD.encode(status.encode_to_vec())).ok()
}

fn any(name: &str, message: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}
