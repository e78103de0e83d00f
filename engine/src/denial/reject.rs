//! One response for each reason to reject a request.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use sluice_config::prepared::Refusal;
use sluice_limiter::Words;
use smallvec::SmallVec;

use super::format::{GrpcStatus, ResponseFormat};
use super::grpc_details::Violated;
use super::headers::{X_RETRY_AFTER, set_retry_after, write_status};
use super::problem::{ProblemType, QUOTA_EXCEEDED, REDUCED_CAPACITY};
use super::rejection::{Cause, Denial, time};
use super::reveal::Reveal;
use crate::limit::active::ActiveLimit;
use crate::limit::delay_queue::MAX_WAITING;
use crate::limit::index::LimitIndex;
use crate::limit::queue::{QueueDenial, QueueDenialReason};
use crate::limit::snapshot::Snapshot;
use crate::limit::verdict::Verdict;

/// Suggested wait where no exact one is known, in seconds.
const RETRY_SOON: u64 = 1;

impl ResponseFormat {
    /// Rejects a request that its limits deny. If several do, the one with the longest wait describes the response.
    pub(crate) fn denied(self, verdict: &Verdict, reveal: Reveal) -> Response<Bytes> {
        let snapshot = &*verdict.snapshot;
        let Some(told) = verdict.told_denial() else {
            // A denial always has a limit that denies.
            return self.error(
                StatusCode::TOO_MANY_REQUESTS,
                GrpcStatus::ResourceExhausted,
                QUOTA_EXCEEDED,
                "",
                &[],
            );
        };
        let mut violated = SmallVec::<[Violated<'_>; 2]>::new();
        let mut message = String::with_capacity(160);
        for (limit, decisions) in verdict.counted() {
            let names = &snapshot.rates(limit).names;
            let others = violated.len();
            // Where headers keep the numbers from clients, bodies do too.
            let has_numbers = snapshot.limit(limit).status_headers.contains(&true);
            let public = |rule| if has_numbers { rule } else { names.without_numbers.as_str() };
            for (name, _) in names.with(decisions).filter(|(_, decision)| !decision.admitted) {
                let (limit_name, rule) = if has_numbers {
                    (&name.unquoted, &name.rule)
                } else {
                    (&names.limit, &names.without_numbers)
                };
                // Several rates of a limit say the same.
                if has_numbers || violated.len() == others {
                    violated.push(Violated { limit: limit_name, rule });
                    message += rule;
                }
            }
            if let Some((rule, _)) = names.block(decisions) {
                let is_new = violated.len() == others;
                if is_new {
                    violated.push(Violated { limit: &names.limit, rule: public(rule) });
                }
                if is_new || has_numbers {
                    message += public(rule);
                }
            }
        }
        let (index, decision) = (told.limit, told.decision);
        let rejection = &*snapshot.limit(index).rejection;
        let wait = told.retry_after().map(|seconds| snapshot.limit(index).with_jitter(seconds));
        match wait {
            Some(seconds) => {
                message += "Try again in ";
                let _ = write!(message, "{}", Words(seconds * 1000));
                message.push('.');
            }
            None => message += "Waiting does not help.",
        }
        let (at, format) = (verdict.at(), rejection.reset_format);
        let (policy, names) = (snapshot.policy(index), &snapshot.rates(index).names);
        let denial = Denial {
            cause: Cause::Client,
            problem: QUOTA_EXCEEDED,
            message,
            violated,
            namespace: &policy.namespace,
            policy: &policy.name,
            limit: &names.limit,
            requests: decision.limit,
            // That of slots is the length of their leases.
            period: if names.has_reset { decision.period } else { 0 },
            wait,
            renewal: wait.map(|seconds| time(format, at, seconds * 1_000_000)),
        };
        let mut response = self.rejection(rejection, &denial);
        write_status(verdict, reveal, response.headers_mut());
        if let Some(seconds) = wait {
            set_retry_after(response.headers_mut(), seconds, snapshot.limit(index));
        }
        response
    }

    /// Rejects a request that a limit denies without counting it.
    pub(crate) fn refused(self, snapshot: &Snapshot, index: LimitIndex, refusal: Refusal) -> Response<Bytes> {
        let name = name(snapshot.limit(index));
        let message = match refusal {
            Refusal::KeyMissing => format!(
                "Limit {name} denies requests that do not identify their client: a part of its key is missing, empty, \
                 repeated or not valid."
            ),
            Refusal::Tier => format!("Limit {name} admits no such requests."),
        };
        let uncounted = Uncounted {
            cause: Cause::Client,
            problem: QUOTA_EXCEEDED,
            message,
            violated: Some(name),
            wait: None,
        };
        self.uncounted(snapshot, index, uncounted)
    }

    /// Rejects a request that meets a limit which needs more of it than its head. Nobody can be told what to do but the one who has
    /// written the policy.
    pub(crate) fn undecidable(self, snapshot: &Snapshot, index: LimitIndex) -> Response<Bytes> {
        let name = name(snapshot.limit(index));
        if !snapshot.policy(index).limits[usize::from(index.limit)].needs_exchange {
            let detail = format!("Limit {name} is by the length of the body, so the request must say it.");
            return self.failure(StatusCode::LENGTH_REQUIRED, GrpcStatus::InvalidArgument, &detail);
        }
        let detail = format!("Limit {name} cannot be enforced where the request has passed.");
        self.failure(StatusCode::INTERNAL_SERVER_ERROR, GrpcStatus::Unavailable, &detail)
    }

    /// Rejects a request that is not counted, for another reason than a rate.
    fn uncounted(self, snapshot: &Snapshot, index: LimitIndex, uncounted: Uncounted<'_>) -> Response<Bytes> {
        let Uncounted { cause, problem, message, violated, wait } = uncounted;
        let (limit, policy) = (snapshot.limit(index), snapshot.policy(index));
        let rejection = &*limit.rejection;
        let rule = message.clone();
        let wait = wait.map(|(seconds, at)| (limit.with_jitter(seconds), at));
        let denial = Denial {
            cause,
            problem,
            message,
            violated: violated.into_iter().map(|limit| Violated { limit, rule: &rule }).collect(),
            namespace: &policy.namespace,
            policy: &policy.name,
            limit: name(limit),
            requests: 0,
            period: 0,
            wait: wait.map(|(seconds, _)| seconds),
            renewal: wait
                .map(|(seconds, at)| time(rejection.reset_format, at, seconds.saturating_mul(1_000_000))),
        };
        let mut response = self.rejection(rejection, &denial);
        if let Some((seconds, _)) = wait {
            set_retry_after(response.headers_mut(), seconds, limit);
        }
        response
    }

    /// Rejects a request because an adaptive limit is reached. The application has too many requests, not
    /// this client: by default the response is 503, or UNAVAILABLE over gRPC, which a client may retry on another pod
    /// immediately.
    pub(crate) fn shed(self, snapshot: &Snapshot, index: LimitIndex) -> Response<Bytes> {
        let name = name(snapshot.limit(index));
        let message = format!(
            "Limit {name}: the application is handling as many concurrent requests as it can. Try again in 1 second."
        );
        let uncounted = Uncounted {
            cause: Cause::Capacity,
            problem: REDUCED_CAPACITY,
            message,
            violated: Some(name),
            wait: Some((RETRY_SOON, snapshot.clock.now())),
        };
        self.uncounted(snapshot, index, uncounted)
    }

    /// Rejects a request because slots of the limit have expired while the store failed.
    pub(crate) fn slots_expired(
        self,
        snapshot: &Snapshot,
        index: LimitIndex,
        fault: &'static str,
        reveal: Reveal,
    ) -> Response<Bytes> {
        let name = name(snapshot.limit(index));
        let public = format!("Limit {name}: no new request can be admitted now. Try again in 1 second.");
        let message = reveal.detail(&public, || {
            format!(
                "Limit {name}: the store has not answered ({fault}) for so long that the slots of requests in flight \
                 have expired, so no new request is admitted."
            )
        });
        let uncounted = Uncounted {
            cause: Cause::Client,
            problem: REDUCED_CAPACITY,
            message,
            violated: Some(name),
            wait: Some((RETRY_SOON, snapshot.clock.now())),
        };
        let mut response = self.uncounted(snapshot, index, uncounted);
        reveal.store_failure(fault, response.headers_mut());
        response
    }

    /// Rejects a request that cannot wait in the queue of a limit, or not any longer.
    pub(crate) fn not_queued(self, snapshot: &Snapshot, denial: &QueueDenial) -> Response<Bytes> {
        let QueueDenial { limit: index, key: _, reason, wait } = *denial;
        let seconds = match reason {
            QueueDenialReason::Stopping => RETRY_SOON,
            _ => u64::try_from(wait.as_micros()).unwrap_or(u64::MAX).div_ceil(1_000_000).max(RETRY_SOON),
        };
        let name = name(snapshot.limit(index));
        let try_again = format!("Try again in {}.", Words(seconds.saturating_mul(1000)));
        let (cause, message) = match reason {
            QueueDenialReason::Full(waiting) => {
                (Cause::Client, format!("{waiting} requests are already waiting in its queue. {try_again}"))
            }
            QueueDenialReason::TooLong(waited) => {
                let waited = Words(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
                (
                    Cause::Client,
                    format!("the request has waited for {waited} and may not wait longer. {try_again}"),
                )
            }
            QueueDenialReason::Evicted => (
                Cause::Client,
                format!("a newer request has taken its place in the queue, which is full. {try_again}"),
            ),
            QueueDenialReason::Stopping => (
                Cause::Capacity,
                "the request was waiting in its queue, but the server is stopping. Try again in 1 second."
                    .to_owned(),
            ),
        };
        let uncounted = Uncounted {
            cause,
            problem: if cause == Cause::Client { QUOTA_EXCEEDED } else { REDUCED_CAPACITY },
            message: format!("Limit {name}: {message}"),
            violated: Some(name),
            wait: Some((seconds, snapshot.clock.now())),
        };
        self.uncounted(snapshot, index, uncounted)
    }

    /// Rejects a request because the delay queue of the limit is full. `wait` is the delay that the request
    /// would have had, and `at` the store's time, in microseconds.
    pub(crate) fn queue_full(
        self,
        snapshot: &Snapshot,
        index: LimitIndex,
        wait: Duration,
        at: u64,
    ) -> Response<Bytes> {
        let seconds = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX).div_ceil(1_000_000);
        let name = name(snapshot.limit(index));
        let message = format!(
            "Limit {name}: {MAX_WAITING} requests are already waiting in its delay queue. Try again in {}.",
            Words(seconds.saturating_mul(1000))
        );
        let uncounted = Uncounted {
            cause: Cause::Client,
            problem: REDUCED_CAPACITY,
            message,
            violated: Some(name),
            wait: Some((seconds, at)),
        };
        self.uncounted(snapshot, index, uncounted)
    }

    /// Rejects a request that the store could not check, under the policy of this limit, which denies in that case.
    pub(crate) fn store_failed(
        self,
        snapshot: &Snapshot,
        index: LimitIndex,
        fault: &'static str,
        reveal: Reveal,
    ) -> Response<Bytes> {
        let message = reveal.detail("The request cannot be admitted now. Try again in 1 second.", || {
            format!(
                "The rate limits cannot be checked now ({fault}), and a policy rejects requests in that case."
            )
        });
        let uncounted = Uncounted {
            cause: Cause::Client,
            problem: REDUCED_CAPACITY,
            message,
            violated: None,
            wait: Some((RETRY_SOON, snapshot.clock.now())),
        };
        let mut response = self.uncounted(snapshot, index, uncounted);
        reveal.store_failure(fault, response.headers_mut());
        response
    }

    /// Rejects a request before the first policies.
    #[must_use]
    pub fn no_policies(self) -> Response<Bytes> {
        let detail = "The service is not ready. Try again in 1 second.";
        let mut response = self.failure(StatusCode::SERVICE_UNAVAILABLE, GrpcStatus::Unavailable, detail);
        set_retry_soon(response.headers_mut());
        response
    }
}

/// A denial for another reason than a rate.
struct Uncounted<'a> {
    cause: Cause,
    problem: ProblemType,
    message: String,
    /// The limit that denies, as the response names it.
    violated: Option<&'a str>,
    /// The seconds until the request would be admitted, and the present time in microseconds.
    wait: Option<(u64, u64)>,
}

fn name(limit: &ActiveLimit) -> &str {
    &limit.base().names.limit
}

/// Says in all headers that a new attempt is worth it soon.
fn set_retry_soon(headers: &mut HeaderMap) {
    headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_SOON));
    headers.insert(X_RETRY_AFTER, HeaderValue::from(RETRY_SOON));
}
