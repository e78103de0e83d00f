//! One response for each reason to reject a request.

use std::time::Duration;

use http::header::{CONNECTION, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use sluice_config::prepared::Refusal;
use smallvec::SmallVec;

use super::format::{GrpcStatus, ResponseFormat};
use super::headers::{retry_after, write_status};
use super::problem::{ProblemType, QUOTA_EXCEEDED, REDUCED_CAPACITY};
use super::reveal::Reveal;
use crate::inbound::validate::InvalidRequest;
use crate::limit::active::ActiveLimit;
use crate::limit::delay_queue::MAX_WAITING;
use crate::limit::status::RateLimitStatus;
use crate::upstream::response_body::ResponseBody;

const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
/// Suggested wait where no exact one is known, in seconds.
const RETRY_SOON: u64 = 1;

impl ResponseFormat {
    /// Rejects a request that its limits deny.
    pub(crate) fn denied(self, status: &RateLimitStatus, reveal: Reveal) -> Response<ResponseBody> {
        let denying = status.counted().filter(|(_, decisions)| decisions.iter().any(|d| !d.admitted));
        let mut violated = SmallVec::<[&str; 2]>::new();
        let mut detail = String::with_capacity(160);
        for (limit, decisions) in denying {
            let names = &status.snapshot.rates(limit).names;
            let named = decisions.iter().zip(names.unquoted.iter().zip(&names.rules));
            for (_, (unquoted, rule)) in named.filter(|(decision, _)| !decision.admitted) {
                violated.push(unquoted);
                detail += rule;
            }
        }
        let wait = retry_after(status);
        match wait {
            Some(seconds) => {
                detail += "Try again in ";
                detail += itoa::Buffer::new().format(seconds);
                detail += " s.";
            }
            None => detail += "Waiting does not help.",
        }
        let mut response = self.too_many_requests(QUOTA_EXCEEDED, &detail, &violated);
        write_status(status, reveal, response.headers_mut());
        if let Some(seconds) = wait {
            set_retry_after(response.headers_mut(), seconds);
        }
        response
    }

    /// Rejects a request that a limit denies without counting it.
    pub(crate) fn refused(self, limit: &ActiveLimit, refusal: Refusal) -> Response<ResponseBody> {
        let name = name(limit);
        let detail = match refusal {
            Refusal::KeyMissing => format!(
                "Limit {name} denies requests that do not identify their client: a header that it needs is missing, \
                 empty or repeated."
            ),
            Refusal::Tier => format!("Limit {name} admits no such requests. Waiting does not help."),
        };
        self.too_many_requests(QUOTA_EXCEEDED, &detail, &[name])
    }

    /// Rejects a request because an adaptive limit is reached. The application has too many requests, not
    /// this client: the response is 503, or UNAVAILABLE over gRPC, which a client may retry on another pod
    /// immediately.
    pub(crate) fn shed(self, limit: &ActiveLimit) -> Response<ResponseBody> {
        let name = name(limit);
        let detail = format!(
            "Limit {name}: the application is handling as many concurrent requests as it can. Try again in 1 s."
        );
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut response = self.error(status, GrpcStatus::Unavailable, REDUCED_CAPACITY, &detail, &[name]);
        set_retry_after(response.headers_mut(), RETRY_SOON);
        response
    }

    /// Rejects a request because slots of the limit have expired while the store failed.
    pub(crate) fn slots_expired(
        self,
        limit: &ActiveLimit,
        fault: &'static str,
        reveal: Reveal,
    ) -> Response<ResponseBody> {
        let name = name(limit);
        let public = format!("Limit {name}: no new request can be admitted now. Try again in 1 s.");
        let detail = reveal.detail(&public, || {
            format!(
                "Limit {name}: the store has not answered ({fault}) for so long that the slots of requests in flight \
                 have expired, so no new request is admitted."
            )
        });
        let mut response = self.too_many_requests(REDUCED_CAPACITY, &detail, &[name]);
        set_retry_after(response.headers_mut(), RETRY_SOON);
        reveal.store_failure(fault, response.headers_mut());
        response
    }

    /// Rejects a request because the delay queue of the limit is full. `wait` is the delay that the request
    /// would have had.
    pub(crate) fn queue_full(self, limit: &ActiveLimit, wait: Duration) -> Response<ResponseBody> {
        let seconds = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX).div_ceil(1_000_000);
        let name = name(limit);
        let detail = format!("Limit {name}: {MAX_WAITING} requests are already waiting in its delay queue.");
        let mut response = self.too_many_requests(REDUCED_CAPACITY, &detail, &[name]);
        set_retry_after(response.headers_mut(), seconds);
        response
    }

    /// Rejects a request that the store could not check, under a policy that denies in that case.
    pub(crate) fn store_failed(self, fault: &'static str, reveal: Reveal) -> Response<ResponseBody> {
        let detail = reveal.detail("The request cannot be admitted now. Try again in 1 s.", || {
            format!(
                "The rate limits cannot be checked now ({fault}), and a policy rejects requests in that case."
            )
        });
        let mut response = self.too_many_requests(REDUCED_CAPACITY, &detail, &[]);
        set_retry_after(response.headers_mut(), RETRY_SOON);
        reveal.store_failure(fault, response.headers_mut());
        response
    }

    /// Rejects a request before the first policies.
    pub(crate) fn no_policies(self) -> Response<ResponseBody> {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let problem = ProblemType::blank(status);
        let detail = "The service is not ready. Try again in 1 s.";
        let mut response = self.error(status, GrpcStatus::Unavailable, problem, detail, &[]);
        set_retry_after(response.headers_mut(), RETRY_SOON);
        response
    }

    /// Rejects a request that cannot be served safely, and closes its connection.
    pub(crate) fn invalid(self, request: InvalidRequest) -> Response<ResponseBody> {
        let status = request.status();
        let problem = ProblemType::blank(status);
        let mut response = self.error(status, GrpcStatus::InvalidArgument, problem, request.detail(), &[]);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        response
    }

    /// Reports that the application did not respond.
    pub(crate) fn bad_gateway(self, detail: &str) -> Response<ResponseBody> {
        let status = StatusCode::BAD_GATEWAY;
        self.error(status, GrpcStatus::Unavailable, ProblemType::blank(status), detail, &[])
    }

    fn too_many_requests(
        self,
        problem: ProblemType,
        detail: &str,
        violated: &[&str],
    ) -> Response<ResponseBody> {
        self.error(StatusCode::TOO_MANY_REQUESTS, GrpcStatus::ResourceExhausted, problem, detail, violated)
    }
}

fn name(limit: &ActiveLimit) -> &str {
    &limit.base().names.limit
}

fn set_retry_after(headers: &mut HeaderMap, seconds: u64) {
    headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    headers.insert(X_RETRY_AFTER, HeaderValue::from(seconds));
}
