//! Requests that an application thinks of.

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderName, HeaderValue};

use crate::checks::body::{HeaderBody, RequestBody};
use crate::checks::problem::Problem;
use crate::head::{Head, MAX_HEADERS, Malformed};

/// Reads a request from a body.
pub(super) fn read(body: &RequestBody) -> Result<Head, Problem> {
    let wrong = |field: &str, detail: &str| Problem::of_field(format!("/request/{field}"), detail.to_owned());
    let mut headers = HeaderMap::new();
    for (name, values) in &body.headers {
        let field = format!("headers/{}", name.replace('~', "~0").replace('/', "~1"));
        let parsed = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| wrong(&field, "this is no name of a header"))?;
        let values = match values {
            HeaderBody::One(value) => std::slice::from_ref(value),
            HeaderBody::Several(values) => values,
        };
        for value in values {
            let value = HeaderValue::from_str(value).or_else(|_| HeaderValue::from_bytes(value.as_bytes()));
            let value = value.map_err(|_| wrong(&field, "no header has such a value"))?;
            if headers.len() >= MAX_HEADERS {
                return Err(wrong("headers", Malformed::Headers.detail()));
            }
            headers.append(parsed.clone(), value);
        }
    }
    let (method, target) = (body.method.as_deref().unwrap_or("GET"), body.url.as_bytes());
    let peer = body.client_address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    Head::new(method.as_bytes(), target, headers, peer).map_err(|malformed| {
        let field = match malformed {
            Malformed::Method => "method",
            Malformed::Target | Malformed::LongPath => "url",
            Malformed::Headers => "headers",
            Malformed::Host => "headers/host",
            Malformed::Length => "headers/content-length",
        };
        wrong(field, malformed.detail())
    })
}
