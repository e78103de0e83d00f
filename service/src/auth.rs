//! The door `auth`: gateways ask over HTTP, at `/v1/auth/GATEWAY/NAMESPACE/POLICY`, before they forward a request.
//!
//! Nobody reads or sends a body. Of a request, only the headers count that the gateway sets itself: a client may send any other.

use std::net::IpAddr;

use axum::body::Body;
use axum::response::IntoResponse as _;
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, RETRY_AFTER, TE,
    TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, Uri, request::Parts};
use sluice_engine::ResponseFormat;
use sluice_engine::heads::NotChecked;

use crate::asker::Asker;
use crate::callers::Sender;
use crate::checks::problem;
use crate::checks::status_of;
use crate::head::{Head, Malformed};
use crate::heads::{Decided, Heads, Named, NotDecided, forbid_caching};

/// The beginning of the paths.
pub(crate) const AUTH: &str = "/v1/auth/";

/// The token of the gateway. `authorization` is its client's.
const TOKEN: HeaderName = HeaderName::from_static("sluice-authorization");
/// The head, as the configurations of nginx and HAProxy in `docs/gateways.md` set it, and the address for Envoy.
const METHOD: HeaderName = HeaderName::from_static("x-sluice-method");
const TARGET: HeaderName = HeaderName::from_static("x-sluice-target");
const REQUEST_HOST: HeaderName = HeaderName::from_static("x-sluice-host");
const ADDRESS: HeaderName = HeaderName::from_static("x-sluice-address");
const BODY_LENGTH: HeaderName = HeaderName::from_static("x-sluice-body-length");
/// The head, as Traefik and Caddy set it.
const FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// The headers that Envoy removes from the request.
const REMOVED: HeaderName = HeaderName::from_static("x-envoy-auth-headers-to-remove");
/// The status of a denial, for HAProxy and nginx; its body, for nginx, which reads headers alone.
const STATUS: HeaderName = HeaderName::from_static("x-sluice-status");
const BODY: HeaderName = HeaderName::from_static("x-sluice-body");

/// The headers of a denial that nginx reads, and the longest of its values.
const READ_BY_NGINX: [HeaderName; 5] = [
    CACHE_CONTROL,
    RETRY_AFTER,
    WWW_AUTHENTICATE,
    HeaderName::from_static("ratelimit"),
    HeaderName::from_static("ratelimit-policy"),
];
const MAX_HEADER: usize = 2 << 10;

/// A kind of gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gateway {
    Nginx,
    Traefik,
    Caddy,
    Haproxy,
    Envoy,
}

/// A gateway's question.
struct Question<'a> {
    gateway: Gateway,
    named: Named<'a>,
    /// The rest of the path behind the names. With Envoy it is the client's.
    rest: &'a str,
}

/// Something that the configuration of a gateway lacks.
struct Misconfigured(String);

/// Answers a gateway.
pub(crate) async fn answer(heads: &Heads, parts: Parts, sender: &Sender) -> Response<Body> {
    let mut response = decide(heads, parts, sender).await.unwrap_or_else(|(status, detail)| {
        heads.tell_nothing(&heads.metrics.auth, &detail);
        problem(status, detail)
    });
    forbid_caching(response.headers_mut());
    response
}

async fn decide(
    heads: &Heads,
    Parts { method, uri, mut headers, .. }: Parts,
    sender: &Sender,
) -> Result<Response<Body>, (StatusCode, String)> {
    let token = headers.remove(TOKEN).map(|token| (AUTHORIZATION, token));
    let asker = Asker::identify(heads.callers.as_ref(), sender, &token.into_iter().collect());
    let asker = asker.map_err(|refused| (status_of(&refused), refused.to_string()))?;
    let Question { gateway, named, rest } = question(&uri).ok_or_else(|| {
        let detail = "ask at /v1/auth/GATEWAY/NAMESPACE/POLICY, with nginx, traefik, caddy, haproxy or envoy as the gateway, and - in place \
                      of what is not named";
        (StatusCode::NOT_FOUND, detail.to_owned())
    })?;
    let head = gateway.read(&method, rest, headers);
    let head = head.map_err(|Misconfigured(detail)| (StatusCode::BAD_REQUEST, detail))?;
    let is_head = head.as_ref().is_ok_and(|head| head.method == Method::HEAD);
    // A denial of gRPC has the status 200, which lets requests pass.
    let format = if is_head { ResponseFormat::Head } else { ResponseFormat::Http };
    let decided =
        heads.decide(&asker, named, (head, format), (&heads.metrics.auth, heads.timeout * 3 / 4)).await;
    match decided {
        Ok(Decided::Admitted { request, removed, response, .. }) => {
            let mut admitted = StatusCode::OK.into_response();
            if gateway == Gateway::Envoy {
                let removed: Vec<_> = removed.iter().map(HeaderName::as_str).collect();
                let removed = HeaderValue::try_from(removed.join(",")).ok().filter(|names| !names.is_empty());
                admitted.headers_mut().extend(removed.map(|names| (REMOVED, names)));
            }
            admitted.headers_mut().extend(request);
            admitted.headers_mut().extend(response);
            Ok(admitted)
        }
        Ok(Decided::Denied { response, .. }) => Ok(gateway.denied(response)),
        Err(error) => {
            let status = match error {
                NotDecided::Unnamed | NotDecided::Policy => StatusCode::BAD_REQUEST,
                NotDecided::NotChecked(NotChecked::NoPolicies) => StatusCode::SERVICE_UNAVAILABLE,
                NotDecided::Namespace(_)
                | NotDecided::NotChecked(NotChecked::Policy(_) | NotChecked::AmbiguousPath) => {
                    StatusCode::NOT_FOUND
                }
            };
            Ok(problem(status, error.to_string()))
        }
    }
}

/// Reads the path of a question.
fn question(uri: &Uri) -> Option<Question<'_>> {
    let target = uri.path_and_query()?.as_str().strip_prefix(AUTH)?;
    let (gateway, target) = target.split_once('/')?;
    let (namespace, target) = target.split_once('/')?;
    let (policy, rest) = target.split_at(target.find(['/', '?']).unwrap_or(target.len()));
    let gateway = match gateway {
        "nginx" => Gateway::Nginx,
        "traefik" => Gateway::Traefik,
        "caddy" => Gateway::Caddy,
        "haproxy" => Gateway::Haproxy,
        "envoy" => Gateway::Envoy,
        _ => return None,
    };
    // Caddy keeps the query of its client.
    let is_known = rest.is_empty() || rest.starts_with('?') || gateway == Gateway::Envoy;
    let is_name = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
    };
    let name = |text| (text != "-").then_some(text);
    let named = Named { namespace: name(namespace), policy: name(policy) };
    (is_known && is_name(namespace) && is_name(policy)).then_some(Question { gateway, named, rest })
}

impl Gateway {
    /// Reads the head of the request. `method` is that of the question, and `rest` what follows in its path.
    fn read(
        self,
        method: &Method,
        rest: &str,
        mut headers: HeaderMap,
    ) -> Result<Result<Head, Malformed>, Misconfigured> {
        let (method, target, host, peer) = match self {
            Self::Nginx | Self::Haproxy => {
                let method = take(&mut headers, &METHOD)?;
                let target = take(&mut headers, &TARGET)?;
                // A request of HTTP/1.0 may have none.
                let host = headers.contains_key(REQUEST_HOST).then(|| take(&mut headers, &REQUEST_HOST));
                (method, target, host.transpose()?, address(&mut headers)?)
            }
            Self::Traefik | Self::Caddy => {
                let method = take(&mut headers, &FORWARDED_METHOD)?;
                let target = take(&mut headers, &FORWARDED_URI)?;
                let host = take(&mut headers, &FORWARDED_HOST)?;
                (method, target, Some(host), last_address(&mut headers)?)
            }
            Self::Envoy => {
                let method = HeaderValue::from_str(method.as_str()).map_err(|_| lacks(&METHOD))?;
                // The filter writes its prefix before the client's target.
                let target = HeaderValue::from_str(rest).map_err(|_| lacks(&TARGET))?;
                (method, target, headers.get(HOST).cloned(), address(&mut headers)?)
            }
        };
        // The others do not show it, and a client may send this header.
        let shows_length = matches!(self, Self::Nginx | Self::Haproxy);
        let length = headers.remove(BODY_LENGTH).filter(|length| shows_length && !length.is_empty());
        // They are about the question, and about its connection.
        for name in [CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION, EXPECT, TE, UPGRADE] {
            headers.remove(name);
        }
        headers.extend(length.map(|length| (CONTENT_LENGTH, length)));
        headers.remove(HOST);
        headers.extend(host.map(|host| (HOST, host)));
        Ok(Head::new(method.as_bytes(), target.as_bytes(), headers, peer).map(Head::without_length))
    }

    /// Returns a denial as the gateway takes it.
    fn denied(self, denial: Response<bytes::Bytes>) -> Response<Body> {
        let (mut parts, body) = denial.into_parts();
        let (status, headers) = (parts.status, &mut parts.headers);
        // Tells a denial from a failure.
        let decided = HeaderValue::from(status.as_u16());
        match self {
            Self::Traefik | Self::Caddy => {}
            Self::Haproxy => drop(headers.insert(STATUS, decided)),
            // What it takes for a failure may pass.
            Self::Envoy if status.is_server_error() => parts.status = StatusCode::TOO_MANY_REQUESTS,
            Self::Envoy => {}
            Self::Nginx => {
                // It reads few headers, and a large answer would be a failure.
                let is_read = |name: &HeaderName| READ_BY_NGINX.contains(name);
                let read = headers.iter().filter(|(name, value)| is_read(name) && value.len() <= MAX_HEADER);
                *headers = read.map(|(name, value)| (name.clone(), value.clone())).collect();
                headers.insert(STATUS, decided);
                // A body of several lines is no header.
                let body = HeaderValue::from_bytes(&body).ok().filter(|body| body.len() <= MAX_HEADER);
                headers.extend(body.map(|body| (BODY, body)));
                // It takes no other status for a denial.
                if status != StatusCode::UNAUTHORIZED {
                    parts.status = StatusCode::FORBIDDEN;
                }
                return Response::from_parts(parts, Body::empty());
            }
        }
        Response::from_parts(parts, Body::from(body))
    }
}

fn lacks(name: &HeaderName) -> Misconfigured {
    Misconfigured(format!(
        "the gateway must set the header {name}, once: see its configuration in docs/gateways.md"
    ))
}

/// Takes the value of a header that the gateway sets.
fn take(headers: &mut HeaderMap, name: &HeaderName) -> Result<HeaderValue, Misconfigured> {
    let is_one = headers.get_all(name).iter().nth(1).is_none();
    headers.remove(name).filter(|_| is_one).ok_or_else(|| lacks(name))
}

fn address(headers: &mut HeaderMap) -> Result<IpAddr, Misconfigured> {
    let value = take(headers, &ADDRESS)?;
    let parsed = value.to_str().ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| Misconfigured(format!("{ADDRESS} must have the address of the client")))
}

/// Takes the last address of those that proxies have reported: the gateway has written it.
fn last_address(headers: &mut HeaderMap) -> Result<IpAddr, Misconfigured> {
    let mut values: Vec<_> = headers.get_all(&FORWARDED_FOR).iter().cloned().collect();
    headers.remove(&FORWARDED_FOR);
    let last = values.pop().ok_or_else(|| lacks(&FORWARDED_FOR))?;
    let bytes = last.as_bytes();
    let (before, last) = match bytes.iter().rposition(|&byte| byte == b',') {
        Some(comma) => (Some(&bytes[..comma]), &bytes[comma + 1..]),
        None => (None, bytes),
    };
    values.extend(before.and_then(|before| HeaderValue::from_bytes(before).ok()));
    headers.extend(values.into_iter().map(|value| (FORWARDED_FOR, value)));
    let parsed = str::from_utf8(last).ok().and_then(|text| text.trim().parse().ok());
    parsed.ok_or_else(|| Misconfigured(format!("{FORWARDED_FOR} must end with the address of the client")))
}
