//! Requests that an application thinks of.

use std::net::{IpAddr, Ipv4Addr};

use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use sluice_config::RequestAttributes;

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
}

impl ReadRequest {
    pub(super) fn of(body: &RequestBody) -> Result<Self, Problem> {
        let wrong =
            |field: &str, detail: &str| Problem::of_field(format!("/request/{field}"), detail.to_owned());
        let method = body.method.as_deref().unwrap_or("GET");
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| wrong("method", "this is no method of HTTP"))?;
        let uri: Uri = body
            .url
            .parse()
            .ok()
            .filter(|uri: &Uri| uri.authority().is_some() || uri.path().starts_with('/'))
            .ok_or_else(|| {
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
        if let (Some(authority), false) = (uri.authority(), headers.contains_key(HOST)) {
            headers.extend(HeaderValue::from_str(authority.as_str()).ok().map(|host| (HOST, host)));
        }
        let peer = body.client_address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        Ok(Self { method, uri, headers, peer })
    }

    pub(super) fn attributes(&self) -> RequestAttributes<'_> {
        RequestAttributes::new(&self.method, &self.uri, &self.headers, self.peer)
    }
}
