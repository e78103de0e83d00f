//! Answers of our own: RFC 9457 problems, and for gRPC calls a status in the headers alone.

use std::time::Duration;

use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use smallvec::SmallVec;

use crate::config::snapshot::Limit;
use crate::inbound::validate::Bad;
use crate::limit::decide::Standing;
use crate::limit::delay_queue::MOST_WAITING;
use crate::respond::headers::{describe, retry_after};
use crate::upstream::body::Reply;

const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
/// Says on a response that the store did not answer, and why.
pub(crate) const STORE_FAILURE: HeaderName = HeaderName::from_static("x-sluice-store-failure");

/// RESOURCE_EXHAUSTED, INVALID_ARGUMENT and UNAVAILABLE of gRPC.
const GRPC_EXHAUSTED: u16 = 8;
const GRPC_INVALID: u16 = 3;
const GRPC_UNAVAILABLE: u16 = 14;

/// Problem types of draft-ietf-httpapi-ratelimit-headers-10, 6.
const QUOTA_EXCEEDED: Kind = Kind {
    uri: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
};
const REDUCED_CAPACITY: Kind = Kind {
    uri: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "Request cannot be satisfied due to temporary server capacity constraints",
};

#[derive(Clone, Copy)]
struct Kind {
    uri: &'static str,
    title: &'static str,
}

impl Kind {
    /// RFC 9457, 4.2.1: nothing more to say than the status does.
    fn blank(status: StatusCode) -> Self {
        Self { uri: "about:blank", title: status.canonical_reason().unwrap_or("Error") }
    }
}

/// The body of a problem. A flood of denials is when it matters that this is quick.
fn body(kind: Kind, status: StatusCode, detail: &str, violated: &[&str]) -> Vec<u8> {
    let mut body = Vec::with_capacity(384);
    body.extend_from_slice(b"{\"type\":");
    string(&mut body, kind.uri);
    body.extend_from_slice(b",\"title\":");
    string(&mut body, kind.title);
    body.extend_from_slice(b",\"status\":");
    body.extend_from_slice(status.as_str().as_bytes());
    body.extend_from_slice(b",\"detail\":");
    string(&mut body, detail);
    let mut before: &[u8] = b",\"violated-policies\":[";
    for name in violated {
        body.extend_from_slice(before);
        string(&mut body, name);
        before = b",";
    }
    body.extend_from_slice(if violated.is_empty() { b"}" } else { b"]}" });
    body
}

/// A string of JSON.
fn string(body: &mut Vec<u8>, text: &str) {
    if text.bytes().all(|b| b >= b' ' && b != b'"' && b != b'\\') {
        body.push(b'"');
        body.extend_from_slice(text.as_bytes());
        body.push(b'"');
    } else {
        // Writing a string to memory does not fail.
        let _ = serde_json::to_writer(body, text);
    }
}

/// How a client wants to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Http,
    /// `HEAD`: no body.
    Head,
    Grpc,
}

impl Asker {
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        let content = request.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        match content {
            _ if request.method() == Method::HEAD => Self::Head,
            Some(kind)
                if kind.starts_with(b"application/grpc") && !kind.starts_with(b"application/grpc-web") =>
            {
                Self::Grpc
            }
            _ => Self::Http,
        }
    }

    fn problem(
        self,
        status: StatusCode,
        grpc: u16,
        kind: Kind,
        detail: &str,
        violated: &[&str],
    ) -> Response<Reply> {
        let mut response = Response::new(Reply::empty());
        if self == Self::Grpc {
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from(grpc));
            // Our own words: visible ASCII without a percent sign need no encoding.
            let message: String =
                detail.chars().filter(|&c| (c.is_ascii_graphic() || c == ' ') && c != '%').collect();
            if let Ok(message) = HeaderValue::from_str(&message) {
                headers.insert("grpc-message", message);
            }
            return response;
        }
        *response.status_mut() = status;
        let content = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, content);
        if self == Self::Http {
            *response.body_mut() = Reply::own(body(kind, status, detail, violated));
        }
        response
    }

    /// A request without room under its limits.
    pub(crate) fn denied(self, standing: &Standing) -> Response<Reply> {
        let denying = standing.each().filter(|(_, decisions)| decisions.iter().any(|d| !d.admitted));
        let mut names = SmallVec::<[&str; 2]>::new();
        let mut detail = String::with_capacity(160);
        for (at, decisions) in denying {
            let limit = &standing.snapshot.numbers(at).names;
            for (n, _) in decisions.iter().enumerate().filter(|(_, decision)| !decision.admitted) {
                names.push(&limit.bare[n]);
                detail += &limit.rules[n];
            }
        }
        let wait = retry_after(standing);
        match wait {
            Some(seconds) => {
                detail += "Try again in ";
                detail += itoa::Buffer::new().format(seconds);
                detail += " s.";
            }
            None => detail += "Waiting does not help.",
        }
        let mut response =
            self.problem(StatusCode::TOO_MANY_REQUESTS, GRPC_EXHAUSTED, QUOTA_EXCEEDED, &detail, &names);
        describe(standing, response.headers_mut());
        if let Some(seconds) = wait {
            wait_for(response.headers_mut(), seconds);
        }
        response
    }

    /// A request that lacks what identifies its client.
    pub(crate) fn missing(self, limit: &Limit) -> Response<Reply> {
        let name = limit.usual.names.plain.as_str();
        let detail =
            format!("Limit {name} denies requests that do not say exactly once who their client is.");
        self.problem(StatusCode::TOO_MANY_REQUESTS, GRPC_EXHAUSTED, QUOTA_EXCEEDED, &detail, &[name])
    }

    /// A request that finds as many others in flight as the application bears. It is not its client that has too many:
    /// 503, and UNAVAILABLE, which clients may send to another pod at once.
    pub(crate) fn shed(self, limit: &Limit) -> Response<Reply> {
        let name = limit.usual.names.plain.as_str();
        let detail = format!(
            "Limit {name}: the application has as many requests at a time as it bears. Try again in 1 s."
        );
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut response = self.problem(status, GRPC_UNAVAILABLE, REDUCED_CAPACITY, &detail, &[name]);
        wait_for(response.headers_mut(), 1);
        response
    }

    /// A request under a limit of requests at a time whose places could not be renewed.
    pub(crate) fn lapsed(self, limit: &Limit, fault: &'static str) -> Response<Reply> {
        let name = limit.usual.names.plain.as_str();
        let detail = format!(
            "Requests under limit {name} could not be counted for so long ({fault}) that nobody new is admitted."
        );
        let mut response =
            self.problem(StatusCode::TOO_MANY_REQUESTS, GRPC_EXHAUSTED, REDUCED_CAPACITY, &detail, &[name]);
        wait_for(response.headers_mut(), 1);
        response.headers_mut().insert(STORE_FAILURE, HeaderValue::from_static(fault));
        response
    }

    /// A request that would have to wait so long for its turn, where too many wait already.
    pub(crate) fn crowded(self, limit: &Limit, wait: Duration) -> Response<Reply> {
        let seconds = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX).div_ceil(1_000_000);
        let name = limit.usual.names.plain.as_str();
        let detail = format!("Under limit {name} {MOST_WAITING} requests wait for their turn already.");
        let mut response =
            self.problem(StatusCode::TOO_MANY_REQUESTS, GRPC_EXHAUSTED, REDUCED_CAPACITY, &detail, &[name]);
        wait_for(response.headers_mut(), seconds);
        response
    }

    /// A request whose limits could not be checked, under a policy that rejects then.
    pub(crate) fn unchecked(self, fault: &'static str) -> Response<Reply> {
        let detail =
            format!("The rate limit cannot be checked now ({fault}), and the policy says to reject then.");
        let mut response =
            self.problem(StatusCode::TOO_MANY_REQUESTS, GRPC_EXHAUSTED, REDUCED_CAPACITY, &detail, &[]);
        wait_for(response.headers_mut(), 1);
        response.headers_mut().insert(STORE_FAILURE, HeaderValue::from_static(fault));
        response
    }

    /// A request that cannot be served, and ends its connection.
    pub(crate) fn bad(self, bad: Bad) -> Response<Reply> {
        let status = bad.status();
        let mut response = self.problem(status, GRPC_INVALID, Kind::blank(status), bad.detail(), &[]);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }

    /// A request that the application did not answer.
    pub(crate) fn unanswered(self, detail: &str) -> Response<Reply> {
        let status = StatusCode::BAD_GATEWAY;
        self.problem(status, GRPC_UNAVAILABLE, Kind::blank(status), detail, &[])
    }
}

fn wait_for(headers: &mut HeaderMap, seconds: u64) {
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    headers.insert(X_RETRY_AFTER, HeaderValue::from(seconds));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_json_whatever_it_says() {
        let kind = Kind { uri: "about:blank", title: "x" };
        for (detail, violated) in
            [("plain", &["a"][..]), ("\"quoted\"\\ \n \u{1} \u{e9}", &["a\"b", "c\\"]), ("", &[])]
        {
            let body = body(kind, StatusCode::BAD_GATEWAY, detail, violated);
            let mut expected =
                serde_json::json!({"type": "about:blank", "title": "x", "status": 502, "detail": detail});
            if !violated.is_empty() {
                expected["violated-policies"] = violated.into();
            }
            assert_eq!(serde_json::from_slice::<serde_json::Value>(&body).unwrap(), expected);
        }
    }
}
