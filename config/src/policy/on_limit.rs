//! The treatment of requests that a limit denies: a response, a queue, a mark for the application, or a block of their client.

use serde::{Deserialize, Serialize};
use sluice_limiter::{Rate, Requests};

use crate::duration::Duration;
#[cfg(feature = "schema")]
use crate::schema::{CONTENT_TYPE, HEADER, HEADER_VALUE};

/// The treatment of requests that a limit denies. At least one field is required.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "schema", schemars(extend("x-kubernetes-validations" = [
    {"rule": "has(self.reject) || has(self.queue) || has(self.mark) || has(self.block)", "message": "at least one of reject, queue, mark, block must be set"},
    {"rule": "!has(self.mark) || !(has(self.reject) || has(self.queue) || has(self.block))", "message": "mark is not allowed with reject, queue or block, because it lets every request pass"},
    {"rule": "!has(self.queue) || !has(self.block)", "message": "queue is not allowed with block"},
])))]
pub struct OnLimit {
    /// The response to a request that is rejected: because there is no queue, because the queue has no room, or because the
    /// client is blocked. If several limits deny a request, the one with the longest wait describes the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reject: Option<Reject>,
    /// Lets requests wait until the limit admits them. If another limit without a queue denies a request, it is rejected
    /// immediately, and so is a request that meets a limit with countDenied. A request that waits holds a connection or a stream, and
    /// no slot of a concurrency limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Queue>,
    /// Forwards requests that the limit denies, and names the limit to the application in a header. The application decides what
    /// to do with them. Not allowed with the other fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    /// Blocks a client that the limit denies too often: all its requests to which the limit applies are rejected for some time.
    /// Blocked requests do not count, so a client that keeps trying does not lengthen its block. Only for limits of rates. Not allowed
    /// with queue, nor with countDenied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<Block>,
}

/// A queue of requests in each pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Longest wait of a request: a duration from 1ms to 5m. A request that the limit cannot admit within that time, even if no other
    /// request waited, is rejected immediately.
    pub max_wait: Duration,
    /// Largest number of requests of all clients that wait in a pod, 1 to 10000. Default: 100.
    #[serde(default = "default_max_length")]
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 10_000)))]
    pub max_length: u64,
    /// Order of the requests of a client, in a pod. Clients do not wait for each other, but share maxLength.
    /// - Fifo (default): the request that has waited longest is next. If the queue is full, a new request is rejected.
    /// - Lifo: the newest request is next. If the queue is full, the request that has waited longest is rejected.
    #[serde(default)]
    pub order: QueueOrder,
}

/// The request that leaves a queue next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum QueueOrder {
    /// The one that has waited longest.
    #[default]
    Fifo,
    /// The newest.
    Lifo,
}

/// A header that names the limits that deny a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Name of the header, which begins with x-, such as x-rate-limited. Its value is the name of the policy, a slash and the
    /// name of the limit; if several limits mark a request, the header has several values. A header of this name in a request
    /// of a client is removed.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = HEADER)))]
    pub header: String,
}

/// A block of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// Number of requests of a client that the limit denies before it blocks the client, 1 to 1000. All pods count together.
    #[cfg_attr(feature = "schema", schemars(with = "i64", range(min = 1, max = 1000)))]
    pub after: Requests,
    /// Time within which these requests are denied, whenever it begins: a duration from 1ms to 8784h.
    pub within: Duration,
    /// Time for which the client is blocked: a duration from 1ms to 8784h.
    #[serde(rename = "for")]
    pub duration: Duration,
}

fn default_max_length() -> u64 {
    100
}

impl Block {
    /// Returns the block as the last rate of its limit. The error says what is allowed.
    pub fn rate(self) -> Result<Rate, String> {
        let (within, lasts) = (self.within.period()?, self.duration.period()?);
        Rate::block(self.after, within, lasts).map_err(|error| error.to_string())
    }
}

/// The response to a request that a limit denies.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Reject {
    /// HTTP status, 400 to 599. Default: 429, or 503 for an adaptive limit. gRPC clients get the status RESOURCE_EXHAUSTED, or
    /// UNAVAILABLE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "i32", range(min = 400, max = 599)))]
    pub status_code: Option<u16>,
    /// Further headers, such as Access-Control-Allow-Origin for browsers, which otherwise hide the response from scripts of
    /// other sites. Headers that Sluice sets itself are not allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 16)))]
    pub headers: Vec<Header>,
    /// The body. Default: problem.
    #[serde(default)]
    pub body: Body,
    /// Format of the time of renewal in the body, and of X-RateLimit-Reset where X-RateLimit-* describe this limit. RateLimit
    /// and Retry-After always have seconds until then.
    /// - DeltaSeconds (default): the number of seconds until then.
    /// - EpochSeconds: the number of seconds since 1970-01-01T00:00:00Z.
    /// - EpochMillis: the number of milliseconds since then.
    #[serde(default)]
    pub reset_format: ResetFormat,
    /// Percentage by which Retry-After is extended at most, at random, so that clients that were denied together do not
    /// return together. Default: 0, the exact time.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "i32", range(min = 0, max = 100)))]
    pub jitter_percent: u8,
}

/// A header of a response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Name of the header.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = HEADER)))]
    pub name: String,
    /// Value of the header: visible ASCII characters and spaces.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024), regex(pattern = HEADER_VALUE)))]
    pub value: String,
}

/// The body of a response. Exactly one field is required.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Body {
    /// Problem details (RFC 9457) with the content type application/problem+json.
    Problem(Empty),
    /// An object with the content type application/json:
    /// `{"error":{"code":"...","message":"...","context":{"renewal":...}}}`. The time of renewal is missing if no wait
    /// helps.
    Envelope(Envelope),
    /// A text with placeholders.
    Template(Template),
}

/// The object of an envelope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// The code. Default: rate_limit_exceeded.
    #[serde(default = "default_code")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128)))]
    pub code: String,
}

/// A text with placeholders.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// The text. These placeholders stand for values: `${message}`, `${limit}`, `${policy}`, `${namespace}`,
    /// `${requests}` (admitted per period), `${period}` (in seconds), `${retryAfter}` (in seconds), `${renewal}` (in the
    /// format of resetFormat). In JSON, HTML and XML the values are escaped.
    #[cfg_attr(feature = "schema", schemars(length(max = 4096)))]
    pub text: String,
    /// Content type. Default: text/plain; charset=utf-8.
    #[serde(default = "default_content_type")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = CONTENT_TYPE)))]
    pub content_type: String,
}

/// Has no fields: write {}.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Empty {}

fn default_code() -> String {
    "rate_limit_exceeded".to_owned()
}

fn default_content_type() -> String {
    "text/plain; charset=utf-8".to_owned()
}

impl Default for Body {
    fn default() -> Self {
        Self::Problem(Empty {})
    }
}

/// The format of the time at which a limit has room again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum ResetFormat {
    /// The number of seconds until then.
    #[default]
    DeltaSeconds,
    /// The number of seconds since the Unix epoch.
    EpochSeconds,
    /// The number of milliseconds since the Unix epoch.
    EpochMillis,
}

/// A family of headers that report the state of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum StatusHeaders {
    /// `RateLimit` and `RateLimit-Policy` of the IETF draft.
    RateLimit,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset`.
    XRateLimit,
}

impl StatusHeaders {
    /// All families, which is the default.
    pub const ALL: [Self; 2] = [Self::RateLimit, Self::XRateLimit];
}
