//! Answers of our own: RFC 9457 problems, and for gRPC calls a status in the headers alone.

use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use serde::Serialize;

use crate::body::Reply;
use crate::decide::Standing;
use crate::guard::Bad;
use crate::respond::{describe, period, retry_after};
use crate::snapshot::Limit;

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

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Problem<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    violated_policies: &'a [&'a str],
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
            let Kind { uri, title } = kind;
            let problem =
                Problem { r#type: uri, title, status: status.as_u16(), detail, violated_policies: violated };
            // Strings and numbers: there is nothing that could fail.
            *response.body_mut() = Reply::own(serde_json::to_vec(&problem).unwrap_or_default());
        }
        response
    }

    /// A request without room under its limits.
    pub(crate) fn denied(self, standing: &Standing) -> Response<Reply> {
        let denying = standing.each().filter(|(_, decisions)| decisions.iter().any(|d| !d.admitted));
        let mut names = Vec::new();
        let mut detail = String::new();
        for (at, decisions) in denying {
            let name = standing.snapshot.limit(at).names.plain.as_str();
            names.push(name);
            for decision in decisions.iter().filter(|decision| !decision.admitted) {
                let (limit, period) = (decision.limit, period(decision.period));
                detail += &format!("Limit {name} admits {limit} requests per {period}. ");
            }
        }
        let wait = retry_after(standing);
        match wait {
            Some(seconds) => detail += &format!("Try again in {seconds} s."),
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
        let name = limit.names.plain.as_str();
        let detail =
            format!("Limit {name} denies requests that do not say exactly once who their client is.");
        self.problem(StatusCode::TOO_MANY_REQUESTS, GRPC_EXHAUSTED, QUOTA_EXCEEDED, &detail, &[name])
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
