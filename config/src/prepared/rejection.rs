//! The response to a request that a limit denies, ready to be written, and texts with placeholders, such as `Try again in ${retryAfter} s.`

use http::{HeaderName, HeaderValue, StatusCode};

use crate::nack::Nack;
use crate::policy::{Body, Header, Reject, ResetFormat, Template};

/// Largest extension of `Retry-After`, in percent.
const MAX_JITTER: u8 = 100;

/// Headers that Sluice, or the protocol, sets.
const RESERVED: [&str; 18] = [
    "cache-control",
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "date",
    "grpc-message",
    "grpc-status",
    "grpc-status-details-bin",
    "host",
    "keep-alive",
    "proxy-connection",
    "retry-after",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-sluice-store-failure",
];
/// Beginnings of the names of headers that Sluice sets.
const RESERVED_PREFIXES: [&str; 2] = ["ratelimit", "x-ratelimit"];

/// Headers with such a name that Sluice does set.
const SET: [&str; 6] = [
    "ratelimit",
    "ratelimit-policy",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-retry-after",
];

/// Headers of requests that others than Sluice set, among those that begin as a mark does.
const OTHER_MEANING: [&str; 7] =
    ["x-b3-", "x-envoy-", "x-forwarded-", "x-http-method", "x-method-override", "x-real-ip", "x-request-"];

/// The response to a request that a limit denies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection {
    /// HTTP status; `None` for that of the reason.
    pub status: Option<StatusCode>,
    /// Further headers.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The body.
    pub body: RejectionBody,
    /// The format of `X-RateLimit-Reset` and of times in the body.
    pub reset_format: ResetFormat,
    /// Percentage by which `Retry-After` is extended at most.
    pub jitter_percent: u8,
}

/// The body of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejectionBody {
    /// Problem details.
    Problem,
    /// An object with code, message and time.
    Envelope {
        /// The code.
        code: String,
    },
    /// A text with placeholders.
    Template {
        /// The content type.
        content_type: HeaderValue,
        /// The text.
        pieces: Vec<Piece>,
        /// How values are written.
        escape: Escape,
    },
}

/// The way in which values are written into a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escape {
    /// As they are.
    Plain,
    /// As a part of a JSON string.
    Json,
    /// As text of HTML or XML.
    Markup,
}

impl Rejection {
    /// Prepares the response of a limit. An error names the field.
    pub fn new(reject: &Reject) -> Result<Self, Nack> {
        let Reject { status_code, headers, body, reset_format, jitter_percent } = reject;
        let status = match *status_code {
            Some(status) if !(400..600).contains(&status) => {
                return Err(Nack(format!("statusCode: {status} is not an error: use 400 to 599")));
            }
            Some(status) => Some(StatusCode::from_u16(status).map_err(Nack::new)?),
            None => None,
        };
        let headers = headers.iter().map(|Header { name, value }| header(name, value));
        if *jitter_percent > MAX_JITTER {
            return Err(Nack(format!("jitterPercent: {jitter_percent} is more than {MAX_JITTER}")));
        }
        Ok(Self {
            status,
            headers: headers.collect::<Result<_, _>>()?,
            body: RejectionBody::new(body)?,
            reset_format: *reset_format,
            jitter_percent: *jitter_percent,
        })
    }
}

impl RejectionBody {
    fn new(body: &Body) -> Result<Self, Nack> {
        Ok(match body {
            Body::Problem(_) => Self::Problem,
            Body::Envelope(envelope) => Self::Envelope { code: envelope.code.clone() },
            Body::Template(Template { content_type, text }) => Self::Template {
                escape: Escape::of(content_type),
                content_type: HeaderValue::from_str(content_type)
                    .map_err(|_| Nack(format!("body.template.contentType: {content_type:?} is not valid")))?,
                pieces: parse(text).map_err(|nack| Nack(format!("body.template.text: {nack}")))?,
            },
        })
    }
}

impl Escape {
    fn of(content_type: &str) -> Self {
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        if essence == "application/json" || essence.ends_with("+json") {
            Self::Json
        } else if essence == "text/html" || essence.ends_with("/xml") || essence.ends_with("+xml") {
            Self::Markup
        } else {
            Self::Plain
        }
    }
}

fn header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), Nack> {
    let header = HeaderName::from_bytes(name.as_bytes());
    let header = header.map_err(|_| Nack(format!("headers: {name:?} is not the name of a header")))?;
    if is_reserved(&header) {
        return Err(Nack(
            match RESERVED_PREFIXES.iter().find(|prefix| header.as_str().starts_with(**prefix)) {
                Some(prefix) if !SET.contains(&header.as_str()) => format!(
                    "headers: {name} begins with {prefix}, as the headers do with which Sluice reports limits: choose another name"
                ),
                _ => format!("headers: {name} is set by Sluice"),
            },
        ));
    }
    let value = HeaderValue::from_str(value);
    let value = value.map_err(|_| Nack(format!("headers: the value of {name} is not valid")))?;
    Ok((header, value))
}

fn is_reserved(header: &HeaderName) -> bool {
    RESERVED.contains(&header.as_str())
        || RESERVED_PREFIXES.iter().any(|prefix| header.as_str().starts_with(prefix))
}

/// Returns the header with which a limit marks requests for the application.
pub fn mark_header(name: &str) -> Result<HeaderName, Nack> {
    let header = HeaderName::from_bytes(name.as_bytes());
    let header = header.map_err(|_| Nack(format!("{name:?} is not the name of a header")))?;
    // Some applications do not tell underscores from hyphens.
    let is_own = header.as_str().starts_with("x-") && !header.as_str().contains('_');
    if !is_own || is_reserved(&header) || OTHER_MEANING.iter().any(|other| header.as_str().starts_with(other))
    {
        return Err(Nack(format!(
            "{name:?} may have another meaning: use a name that begins with x-, such as x-rate-limited"
        )));
    }
    Ok(header)
}

/// A placeholder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placeholder {
    /// A sentence about the limit that denies the request, and when to try again.
    Message,
    /// Name of the limit.
    Limit,
    /// Name of the policy.
    Policy,
    /// Namespace of the policy.
    Namespace,
    /// Number of requests that the limit admits per period.
    Requests,
    /// Length of the period in seconds.
    Period,
    /// Number of seconds after which the request would be admitted; 0 if no wait helps.
    RetryAfter,
    /// Time at which the request would be admitted, in the format of the limit; 0 if no wait helps.
    Renewal,
}

impl Placeholder {
    /// All placeholders and their names.
    pub const ALL: [(&str, Self); 8] = [
        ("message", Self::Message),
        ("limit", Self::Limit),
        ("policy", Self::Policy),
        ("namespace", Self::Namespace),
        ("requests", Self::Requests),
        ("period", Self::Period),
        ("retryAfter", Self::RetryAfter),
        ("renewal", Self::Renewal),
    ];
}

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Text that stands for itself.
    Text(String),
    /// A placeholder.
    Value(Placeholder),
}

/// Splits a text at its placeholders, `${name}`. A dollar sign before another character stands for itself.
pub fn parse(text: &str) -> Result<Vec<Piece>, Nack> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        if !before.is_empty() {
            pieces.push(Piece::Text(before.to_owned()));
        }
        let Some((name, behind)) = after.split_once('}') else {
            return Err(Nack("has a placeholder without an end: write ${name}".into()));
        };
        let Some((_, value)) = Placeholder::ALL.iter().find(|(known, _)| *known == name) else {
            let known: Vec<_> = Placeholder::ALL.iter().map(|(name, _)| *name).collect();
            return Err(Nack(format!("has no placeholder {name:?}: there are {}", known.join(", "))));
        };
        pieces.push(Piece::Value(*value));
        rest = behind;
    }
    if !rest.is_empty() {
        pieces.push(Piece::Text(rest.to_owned()));
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_response_cannot_have_is_refused_with_its_field() {
        let header = |name: &str, value: &str| Reject {
            headers: vec![Header { name: name.into(), value: value.into() }],
            ..Reject::default()
        };
        let template = |content_type: &str, text: &str| Reject {
            body: Body::Template(Template { content_type: content_type.into(), text: text.into() }),
            ..Reject::default()
        };
        for (reject, expected) in [
            (Reject { status_code: Some(200), ..Reject::default() }, "statusCode: 200 is not an error"),
            (Reject { status_code: Some(600), ..Reject::default() }, "statusCode: 600"),
            (header("content-length", "5"), "headers: content-length is set by Sluice"),
            (header("X-RateLimit-Reset", "5"), "headers: X-RateLimit-Reset is set by Sluice"),
            (
                header("X-RateLimit-Limit-Minute", "5"),
                "headers: X-RateLimit-Limit-Minute begins with x-ratelimit, as",
            ),
            (header("a b", "5"), "\"a b\" is not the name of a header"),
            (header("a", "x\r\nb: c"), "the value of a is not valid"),
            (template("text/plain\r\n", ""), "contentType"),
            (template("text/plain", "${x}"), "body.template.text: has no placeholder"),
            (Reject { jitter_percent: 101, ..Reject::default() }, "jitterPercent: 101"),
        ] {
            let nack = Rejection::new(&reject).unwrap_err();
            assert!(nack.0.contains(expected), "{nack}");
        }
    }

    #[test]
    fn a_mark_has_a_header_of_its_own() {
        assert_eq!(mark_header("X-Rate-Limited").unwrap(), "x-rate-limited");
        for name in [
            "Authorization",
            "x-forwarded-for",
            "host",
            "x-ratelimit-limit",
            "Range",
            "x_rate_limited",
            "x-request-id",
        ] {
            assert!(mark_header(name).unwrap_err().0.contains("may have another meaning"), "{name}");
        }
        assert!(mark_header("a b").is_err());
    }

    #[test]
    fn values_are_escaped_as_the_content_type_needs() {
        for (content_type, expected) in [
            ("application/json", Escape::Json),
            ("Application/Problem+JSON; charset=utf-8", Escape::Json),
            ("text/html; charset=utf-8", Escape::Markup),
            ("application/xml", Escape::Markup),
            ("image/svg+xml", Escape::Markup),
            ("text/plain", Escape::Plain),
        ] {
            assert_eq!(Escape::of(content_type), expected, "{content_type}");
        }
    }

    #[test]
    fn a_text_is_split_at_its_placeholders() {
        let text = |text: &str| Piece::Text(text.into());
        let retry = Piece::Value(Placeholder::RetryAfter);
        assert_eq!(parse("").unwrap(), []);
        assert_eq!(parse("{\"a\": $5}").unwrap(), [text("{\"a\": $5}")]);
        assert_eq!(parse("in ${retryAfter} s").unwrap(), [text("in "), retry.clone(), text(" s")]);
        assert_eq!(parse("${limit}${retryAfter}").unwrap(), [Piece::Value(Placeholder::Limit), retry]);
        assert!(parse("${limit").unwrap_err().0.contains("without an end"));
        assert!(parse("${client}").unwrap_err().0.contains("no placeholder \"client\": there are message"));
    }
}
