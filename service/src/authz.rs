//! The door `authz`: `envoy.service.auth.v3`. Envoy shows the head of a request before it forwards it.
//!
//! Nothing that a client sends is an error of the call: a gateway lets the request pass then, or fails it, as it is configured.

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use http::header::HOST;
use http::{HeaderMap, HeaderName, HeaderValue};
use prost_types::{Struct, Value, value::Kind};
use sluice_engine::trace::RequestSpan;
use sluice_engine::{Answer, ResponseFormat};
use tonic::{Code, Status};

use crate::asker::Asker;
use crate::callers::Sender;
use crate::head::{Head, MAX_HEADERS, Malformed};
use crate::heads::{Decided, Heads, Named, NotDecided};
use crate::messages::{
    CheckRequest, CheckResponse, DeniedHttpResponse, HeaderValueOption, Headers, HeadersEntry, HttpRequest,
    HttpResponse, HttpStatus, OkHttpResponse, Peer, RpcStatus,
};
use crate::rls::{budget, header};
use sluice_engine::heads::NotChecked;

/// The keys of a route's `context_extensions`, and of metadata of the call, that name what applies.
const EXTENSIONS: [&str; 2] = ["sluice.dev/namespace", "sluice.dev/policy"];
const METADATA: [&str; 2] = ["sluice-namespace", "sluice-policy"];

/// Answers a call.
pub(crate) async fn answer(
    heads: &Heads,
    request: CheckRequest,
    call: &HeaderMap,
    sender: &Sender,
    span: Option<&mut RequestSpan>,
) -> Result<CheckResponse, Status> {
    let metrics = &heads.metrics.authz;
    let asker = Asker::identify(heads.callers.as_ref(), sender, call).map_err(|refused| {
        metrics.refuse();
        refused.to_status()
    })?;
    let attributes = request.attributes.unwrap_or_default();
    let metadata = |name| call.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let extension =
        |name| attributes.context_extensions.iter().rev().find(|one| one.key == name).map(|one| &*one.value);
    let named = Named {
        namespace: extension(EXTENSIONS[0]).or_else(|| metadata(METADATA[0])),
        policy: extension(EXTENSIONS[1]).or_else(|| metadata(METADATA[1])),
    };
    let (head, format) = read(attributes.request.and_then(|request| request.http), attributes.source);
    let budget = budget(call, heads.timeout * 3 / 4);
    let decided = heads.decide(&asker, named, (head, format), (metrics, budget)).await;
    let decided = decided.map_err(|error| {
        let code = match error {
            NotDecided::Unnamed | NotDecided::Policy => Code::InvalidArgument,
            NotDecided::Namespace(_) => Code::PermissionDenied,
            NotDecided::NotChecked(NotChecked::NoPolicies) => Code::Unavailable,
            NotDecided::NotChecked(NotChecked::Policy(_) | NotChecked::AmbiguousPath) => Code::NotFound,
        };
        Status::new(code, error.to_string())
    })?;
    if let Some(span) = span {
        match &decided {
            Decided::Admitted { answer, .. } | Decided::Denied { answer: Some(answer), .. } => {
                let summary = answer.summary();
                span.decided(&summary);
                span.answered(summary.outcome, None, summary.store_failure, Code::Ok as i64);
            }
            Decided::Denied { answer: None, .. } => span.answered("refused", None, None, Code::Ok as i64),
        }
    }
    Ok(response(decided))
}

/// Reads the head, and the format that the client expects.
fn read(http: Option<HttpRequest>, source: Option<Peer>) -> (Result<Head, Malformed>, ResponseFormat) {
    let HttpRequest { method, headers, path, host, protocol, header_map } = http.unwrap_or_default();
    let headers = read_headers(headers, header_map, &host);
    let none = HeaderMap::new();
    let is_http2 = matches!(&*protocol, "HTTP/2" | "HTTP/3");
    let known = http::Method::from_bytes(&method).unwrap_or_default();
    let format = ResponseFormat::of(&known, headers.as_ref().unwrap_or(&none), is_http2);
    let address = source.and_then(|source| source.address?.socket_address);
    // Nobody trusts an address that is none.
    let peer = address.and_then(|socket| socket.address.parse().ok());
    let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    // A tunnel has no path.
    let target = if path.is_empty() { &host } else { &path };
    let head = headers.and_then(|headers| Head::new(&method, target, headers, peer));
    (head.map(Head::without_length), format)
}

/// Returns the headers as they came, or as the filter has joined them.
fn read_headers(
    joined: Vec<HeadersEntry>,
    raw: Option<Headers>,
    host: &Bytes,
) -> Result<HeaderMap, Malformed> {
    let raw = raw.map_or_else(Vec::new, |raw| raw.headers);
    // The host may be one more.
    let mut headers = HeaderMap::with_capacity((raw.len() + joined.len()).min(MAX_HEADERS) + 1);
    for one in raw {
        add(&mut headers, &one.key, if one.raw_value.is_empty() { one.value.into() } else { one.raw_value })?;
    }
    for one in joined {
        add(&mut headers, &one.key, one.value)?;
    }
    if !host.is_empty() {
        let value = HeaderValue::from_maybe_shared(host.clone()).map_err(|_| Malformed::Host)?;
        if headers.get_all(HOST).iter().any(|other| !other.as_bytes().eq_ignore_ascii_case(host)) {
            return Err(Malformed::Host);
        }
        headers.insert(HOST, value);
    }
    Ok(headers)
}

fn add(headers: &mut HeaderMap, name: &[u8], value: Bytes) -> Result<(), Malformed> {
    // What pseudo-headers say, other fields say too.
    if name.starts_with(b":") {
        return Ok(());
    }
    let name = HeaderName::from_bytes(name).map_err(|_| Malformed::Headers)?;
    let value = HeaderValue::from_maybe_shared(value).map_err(|_| Malformed::Headers)?;
    if headers.len() >= MAX_HEADERS {
        return Err(Malformed::Headers);
    }
    headers.append(name, value);
    Ok(())
}

fn response(decided: Decided) -> CheckResponse {
    match decided {
        Decided::Admitted { answer, request, removed, response } => {
            let ok = OkHttpResponse {
                headers: options(&request, true),
                headers_to_remove: removed.iter().map(|name| name.as_str().to_owned()).collect(),
                response_headers_to_add: options(&response, false),
            };
            CheckResponse {
                status: Some(RpcStatus::default()),
                dynamic_metadata: Some(metadata(Some(&answer))),
                http_response: Some(HttpResponse::OkResponse(ok)),
            }
        }
        Decided::Denied { answer, response } => {
            let code = Code::PermissionDenied as i32;
            let denied = DeniedHttpResponse {
                status: Some(HttpStatus { code: i32::from(response.status().as_u16()) }),
                headers: options(response.headers(), false),
                body: String::from_utf8_lossy(response.body()).into_owned(),
            };
            CheckResponse {
                status: Some(RpcStatus { code, ..RpcStatus::default() }),
                dynamic_metadata: Some(metadata(answer.as_deref())),
                http_response: Some(HttpResponse::DeniedResponse(denied)),
            }
        }
    }
}

/// Returns headers that replace those of their names. Of a name that is there several times, the first one does and the others stand
/// beside it, `is_request` of a request; Envoy sets all headers of a response so by itself.
fn options(headers: &HeaderMap, is_request: bool) -> Vec<HeaderValueOption> {
    let of_name = |name| headers.get_all(name).iter().enumerate().map(move |one| (name, one));
    let option = |(name, (n, value)): (&HeaderName, (usize, &HeaderValue))| HeaderValueOption {
        header: Some(header(name.as_str(), &String::from_utf8_lossy(value.as_bytes()))),
        append: Some(is_request && n > 0),
    };
    headers.keys().flat_map(of_name).map(option).collect()
}

/// Returns what was decided, for access logs.
fn metadata(answer: Option<&Answer>) -> Struct {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let mut fields = std::collections::BTreeMap::new();
    let summary = answer.map(Answer::summary);
    let decision = summary.as_ref().map_or("refused", |summary| summary.outcome);
    fields.insert("decision".to_owned(), text(decision));
    if let Some(summary) = summary {
        if let Some(limit) = summary.limit {
            let policy = format!("{}/{}", limit.policy_namespace, limit.policy);
            fields.insert("policy".to_owned(), text(&policy));
            fields.insert("limit".to_owned(), text(limit.limit));
        }
        fields.extend(summary.store_failure.map(|fault| ("store_failure".to_owned(), text(fault))));
    }
    Struct { fields }
}
