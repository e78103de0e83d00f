//! The response to a request that a limit denies.

use serde::{Deserialize, Serialize};

/// The response to a request that a limit denies. An absent field has the default of all limits.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reject {
    /// HTTP status. Default: 429, or 503 if an adaptive limit sheds the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Names and values of further headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<(String, String)>,
    /// The body.
    #[serde(default, skip_serializing_if = "RejectBody::is_default")]
    pub body: RejectBody,
    /// The format of `X-RateLimit-Reset` and of times in the body.
    #[serde(default, skip_serializing_if = "ResetFormat::is_default")]
    pub reset_format: ResetFormat,
    /// Percentage by which `Retry-After` is extended at most, at random.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_percent: Option<u8>,
}

/// The body of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum RejectBody {
    /// Problem details (RFC 9457).
    #[default]
    Problem,
    /// `{"error":{"code":CODE,"message":TEXT,"context":{"renewal":TIME}}}`.
    Envelope {
        /// The code.
        code: String,
    },
    /// A text with placeholders.
    Template {
        /// The content type.
        content_type: String,
        /// The text.
        text: String,
    },
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

impl RejectBody {
    fn is_default(&self) -> bool {
        *self == Self::Problem
    }
}

impl ResetFormat {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_default(&self) -> bool {
        *self == Self::DeltaSeconds
    }
}
