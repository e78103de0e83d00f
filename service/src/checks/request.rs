//! Requests that an application thinks of.

use std::net::{IpAddr, Ipv4Addr};

use http::header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING};
use http::uri::Scheme;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use sluice_config::prepared::charge::integer;
use sluice_config::request::is_valid_host;
use sluice_config::{RequestAttributes, path};

use crate::checks::body::{HeaderBody, RequestBody};
use crate::checks::problem::Problem;

/// Most headers of a request.
const MAX_HEADERS: usize = 256;

/// A request, read from a body.
pub(super) struct ReadRequest {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    peer: IpAddr,
    body_bytes: Option<u64>,
}

impl ReadRequest {
    pub(super) fn of(body: &RequestBody) -> Result<Self, Problem> {
        let wrong =
            |field: &str, detail: &str| Problem::of_field(format!("/request/{field}"), detail.to_owned());
        let method = body.method.as_deref().unwrap_or("GET");
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| wrong("method", "this is no method of HTTP"))?;
        let uri: Uri = body.url.parse().ok().filter(names_resource).ok_or_else(|| {
            wrong("url", "this is neither a URL such as https://shop.example/orders nor a path")
        })?;
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
                let value =
                    HeaderValue::from_str(value).or_else(|_| HeaderValue::from_bytes(value.as_bytes()));
                let value = value.map_err(|_| wrong(&field, "no header has such a value"))?;
                if headers.len() >= MAX_HEADERS {
                    return Err(wrong("headers", "a request has at most 256 headers"));
                }
                headers.append(parsed.clone(), value);
            }
        }
        if path::is_too_long(uri.path()) {
            return Err(wrong("url", "no sidecar forwards a request with such a long path"));
        }
        let mut hosts = headers.get_all(HOST).iter();
        if !hosts.next().is_none_or(is_valid_host) || hosts.next().is_some() {
            return Err(wrong("headers/host", "a request has one valid host"));
        }
        let body_bytes = body_bytes(&headers)
            .ok_or_else(|| wrong("headers/content-length", "this is no length of a body"))?;
        if let (Some(authority), false) = (uri.authority(), headers.contains_key(HOST)) {
            headers.extend(HeaderValue::from_str(authority.as_str()).ok().map(|host| (HOST, host)));
        }
        let peer = body.client_address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok(Self { method, uri, headers, peer, body_bytes })
    }

    pub(super) fn attributes(&self) -> RequestAttributes<'_> {
        let mut attributes = RequestAttributes::new(&self.method, &self.uri, &self.headers, self.peer);
        attributes.body_bytes = self.body_bytes;
        attributes
    }
}

/// Reports whether a target is a URL of HTTP or a path.
fn names_resource(uri: &Uri) -> bool {
    match (uri.scheme(), uri.authority()) {
        (Some(scheme), Some(authority)) => {
            (*scheme == Scheme::HTTP || *scheme == Scheme::HTTPS) && !authority.as_str().contains('@')
        }
        (None, None) => uri.path().starts_with('/'),
        // `orders` alone is an authority.
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// Returns the length of the body that the headers say, as a sidecar reads them: 0 without one, and `None` inside for one of unknown
/// length. `None` if they say none that is valid.
fn body_bytes(headers: &HeaderMap) -> Option<Option<u64>> {
    match (headers.contains_key(TRANSFER_ENCODING), headers.contains_key(CONTENT_LENGTH)) {
        (false, false) => Some(Some(0)),
        (true, false) => Some(None),
        (false, true) => integer(headers, &CONTENT_LENGTH).map(Some),
        (true, true) => None,
    }
}
