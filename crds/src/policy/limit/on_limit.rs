//! Treatment of requests that a limit denies.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::policy::{self as compiled, QueueOrder, ResetFormat};
use sluice_config::prepared::rejection::{Rejection, mark_header};
use sluice_limiter::Requests;

use crate::checks::field::{Field, number};
use crate::duration;

/// Default `maxLength` of a queue.
const DEFAULT_MAX_LENGTH: u64 = 100;
/// Largest `maxWait` of a queue, in milliseconds.
const MAX_WAIT_MILLIS: u64 = 300_000;

/// The treatment of requests that a limit denies. At least one field is required.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.reject) || has(self.queue) || has(self.mark) || has(self.block)").message("at least one of reject, queue, mark, block must be set"))]
#[x_kube(validation = Rule::new("!has(self.mark) || !(has(self.reject) || has(self.queue) || has(self.block))").message("mark is not allowed with reject, queue or block, because it lets every request pass"))]
#[x_kube(validation = Rule::new("!has(self.queue) || !has(self.block)").message("queue is not allowed with block"))]
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
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Queue {
    /// Longest wait of a request: a duration from 1ms to 5m. A request that the limit cannot admit within that time, even if no other
    /// request waited, is rejected immediately.
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub max_wait: String,
    /// Largest number of requests of all clients that wait in a pod, 1 to 10000. Default: 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_length: Option<i64>,
    /// Order of the requests of a client, in a pod. Clients do not wait for each other, but share maxLength.
    /// - Fifo (default): the request that has waited longest is next. If the queue is full, a new request is rejected.
    /// - Lifo: the newest request is next. If the queue is full, the request that has waited longest is rejected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "QueueOrder")]
    pub order: Option<QueueOrder>,
}

/// A header that names the limits that deny a request.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Name of the header, which begins with x-, such as x-rate-limited. Its value is the name of the policy, a slash and the
    /// name of the limit; if several limits mark a request, the header has several values. A header of this name in a request
    /// of a client is removed.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub header: String,
}

/// A block of a client.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Block {
    /// Number of requests of a client that the limit denies before it blocks the client, 1 to 1000. All pods count together.
    #[schemars(range(min = 1, max = 1000))]
    pub after: i64,
    /// Time within which these requests are denied, whenever it begins: a duration from 1ms to 8784h.
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub within: String,
    /// Time for which the client is blocked: a duration from 1ms to 8784h.
    #[serde(rename = "for")]
    #[schemars(length(min = 2, max = 32), regex(pattern = duration::PATTERN))]
    pub duration: String,
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
    /// Format of the time of renewal in the body, and of X-RateLimit-Reset where X-RateLimit-* describe this limit. RateLimit
    /// and Retry-After always have seconds until then.
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

/// An [`OnLimit`] in compiled form.
#[derive(Default)]
pub(crate) struct CompiledOnLimit {
    pub(crate) reject: Option<compiled::Reject>,
    pub(crate) queue: Option<compiled::Queue>,
    pub(crate) mark: Option<String>,
    pub(crate) block: Option<compiled::Block>,
}

impl OnLimit {
    pub(crate) fn compile(&self, at: &Field<'_>) -> CompiledOnLimit {
        let Self { reject, queue, mark, block } = self;
        if mark.is_some() {
            let others =
                [("reject", reject.is_some()), ("queue", queue.is_some()), ("block", block.is_some())];
            for (name, _) in others.into_iter().filter(|(_, is_set)| *is_set) {
                at.at(name).violation("is not allowed with mark, which lets every request pass: remove it");
            }
        }
        if queue.is_some() && block.is_some() {
            at.at("block").violation("is not allowed with queue: remove one of them");
        }
        if [reject.is_some(), queue.is_some(), mark.is_some(), block.is_some()] == [false; 4] {
            at.violation("at least one of reject, queue, mark, block must be set");
        }
        CompiledOnLimit {
            reject: reject.as_ref().and_then(|reject| reject.compile(&at.at("reject"))),
            queue: queue.as_ref().and_then(|queue| queue.compile(&at.at("queue"))),
            mark: mark.as_ref().map(|mark| {
                at.at("mark.header").accept(mark_header(&mark.header));
                mark.header.clone()
            }),
            block: block.as_ref().and_then(|block| block.compile(&at.at("block"))),
        }
    }
}

impl Queue {
    fn compile(&self, at: &Field<'_>) -> Option<compiled::Queue> {
        Some(compiled::Queue {
            max_wait_millis: at.at("maxWait").millis(&self.max_wait, MAX_WAIT_MILLIS)?,
            max_length: self.max_length.map_or(DEFAULT_MAX_LENGTH, number),
            order: self.order.unwrap_or_default(),
        })
    }
}

impl Block {
    fn compile(&self, at: &Field<'_>) -> Option<compiled::Block> {
        let within = at.at("within").accept(duration::period(&self.within));
        let lasts = at.at("for").accept(duration::period(&self.duration));
        let after = at.at("after").accept(Requests::new(number(self.after)));
        let block = compiled::Block { after: after?, within: within?, lasts: lasts? };
        at.at("after").accept(block.rate())?;
        Some(block)
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
