//! The response to a request that a limit denies.

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use crate::schema::{CONTENT_TYPE, HEADER, HEADER_VALUE};

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
