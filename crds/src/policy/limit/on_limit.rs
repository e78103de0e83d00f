//! Treatment of requests that a limit denies.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::policy::{self as compiled, ResetFormat};
use sluice_config::prepared::rejection::Rejection;

use crate::compile::field::Field;

/// The treatment of a request that a limit denies. Exactly one field is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum OnLimit {
    /// Rejects the request with a response that Sluice writes. If several limits deny a request, the one with the longest
    /// wait describes the response.
    Reject(Reject),
}

/// The response to a request that a limit denies.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Reject {
    /// HTTP status, 400 to 599. Default: 429, or 503 for an adaptive limit. gRPC clients get the status RESOURCE_EXHAUSTED, or
    /// UNAVAILABLE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 400, max = 599))]
    pub status_code: Option<i32>,
    /// Further headers, such as Access-Control-Allow-Origin for browsers, which otherwise hide the response from scripts of
    /// other sites. Headers that Sluice sets itself are not allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub headers: Vec<Header>,
    /// The body. Default: problem.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Body>,
    /// Format of the time of renewal in the body, and of X-RateLimit-Reset where X-RateLimit-* describe this limit. RateLimit and Retry-After always have seconds until then.
    /// - DeltaSeconds (default): the number of seconds until then.
    /// - EpochSeconds: the number of seconds since 1970-01-01T00:00:00Z.
    /// - EpochMillis: the number of milliseconds since then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ResetFormat")]
    pub reset_format: Option<ResetFormat>,
    /// Percentage by which Retry-After is extended at most, at random, so that clients that were denied together do not
    /// return together. Default: 0, the exact time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub jitter_percent: Option<i32>,
}

/// A header of a response.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Header {
    /// Name of the header.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
    /// Value of the header: visible ASCII characters and spaces.
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^[!-~]([ -~]*[!-~])?$"))]
    pub value: String,
}

/// The body of a response. Exactly one field is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum Body {
    /// Problem details (RFC 9457) with the content type application/problem+json.
    Problem(Problem),
    /// An object with the content type application/json:
    /// `{"error":{"code":"...","message":"...","context":{"renewal":...}}}`. The time of renewal is missing if no wait
    /// helps.
    Envelope(Envelope),
    /// A text with placeholders.
    Template(Template),
}

/// Has no fields: write {}.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
pub struct Problem {}

/// The object of an envelope.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Envelope {
    /// The code. Default: rate_limit_exceeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    pub code: Option<String>,
}

/// A text with placeholders.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// The text. These placeholders stand for values: `${message}`, `${limit}`, `${policy}`, `${namespace}`,
    /// `${requests}` (admitted per period), `${period}` (in seconds), `${retryAfter}` (in seconds), `${renewal}` (in the
    /// format of resetFormat). In JSON, HTML and XML the values are escaped.
    #[schemars(length(max = 4096))]
    pub text: String,
    /// Content type. Default: text/plain; charset=utf-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 128),
        regex(pattern = "^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[ -~]*)?$")
    )]
    pub content_type: Option<String>,
}

impl OnLimit {
    pub(crate) fn compile(&self, at: &Field<'_>) -> Option<compiled::Reject> {
        match self {
            Self::Reject(reject) => reject.compile(&at.at("reject")),
        }
    }
}

impl Reject {
    fn compile(&self, at: &Field<'_>) -> Option<compiled::Reject> {
        let compiled = compiled::Reject {
            status: self.status_code.and_then(|status| status.try_into().ok()),
            headers: self
                .headers
                .iter()
                .map(|Header { name, value }| (name.clone(), value.clone()))
                .collect(),
            body: self.body.as_ref().map(Body::compile).unwrap_or_default(),
            reset_format: self.reset_format.unwrap_or_default(),
            jitter_percent: self
                .jitter_percent
                .and_then(|percent| percent.try_into().ok())
                .filter(|p| *p > 0),
        };
        if let Err(nack) = Rejection::new(&compiled) {
            // The error begins with the field.
            match nack.0.split_once(": ") {
                Some((field, problem)) => at.at(field).violation(problem),
                None => at.violation(nack),
            }
        }
        (compiled != compiled::Reject::default()).then_some(compiled)
    }
}

impl Body {
    fn compile(&self) -> compiled::RejectBody {
        match self {
            Self::Problem(Problem {}) => compiled::RejectBody::Problem,
            Self::Envelope(Envelope { code }) => compiled::RejectBody::Envelope {
                code: code.clone().unwrap_or_else(|| "rate_limit_exceeded".to_owned()),
            },
            Self::Template(Template { text, content_type }) => compiled::RejectBody::Template {
                content_type: content_type.clone().unwrap_or_else(|| "text/plain; charset=utf-8".to_owned()),
                text: text.clone(),
            },
        }
    }
}
