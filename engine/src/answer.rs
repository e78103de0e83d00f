//! The answer to a request: whether it is forwarded, what it holds until its end, and what its response says.

use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, StatusCode};

use crate::denial::format::{GrpcStatus, ResponseFormat};
use crate::denial::headers::write_status;
use crate::denial::reveal::Reveal;
use crate::limit::delay_queue::QueueFull;
use crate::limit::held::Held;
use crate::limit::index::LimitIndex;
use crate::limit::mark::{Marks, remove_marks, sent_marks};
use crate::limit::verdict::{Outcome, Reason, Verdict};

/// The reason why a request is refused whatever its limits are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// No policies have been received yet, and all requests are rejected until then.
    NoPolicies,
    /// The path can be read in several ways, and a policy refuses such paths.
    AmbiguousPath,
    /// The request meets more limits than one check holds.
    TooManyLimits,
}

impl Refused {
    /// Returns the explanation for a client.
    #[must_use]
    pub fn detail(self) -> &'static str {
        match self {
            Self::NoPolicies => "The sidecar has not received policies yet, and rejects all requests.",
            Self::AmbiguousPath => {
                "The path must not begin with two slashes, or contain encoded slashes, backslashes, dot segments or octets that are no \
                 UTF-8."
            }
            Self::TooManyLimits => {
                "The request meets more limits than any request should: repeat no parameter or header."
            }
        }
    }
}

/// The decision about a request.
///
/// The door takes these steps in this order: it answers with [`rejection`](Self::rejection), or else waits with
/// [`delay`](Self::delay), forwards the request with [`marks`](Self::take_marks) and [`held`](Self::take_held), and adds the state of
/// the limits to the response with [`write_status`](Self::write_status).
#[derive(Debug)]
pub struct Answer {
    pub(crate) verdict: Verdict,
    pub(crate) marks: Marks,
    pub(crate) decided_at: Instant,
    pub(crate) may_queue: bool,
}

/// A decision in words, for traces.
#[derive(Debug)]
pub struct Summary<'a> {
    /// The decision in a word, as in metrics.
    pub outcome: &'static str,
    /// The limit that it is due to, if there is one.
    pub limit: Option<LimitName<'a>>,
    /// The store's failure, as in `x-sluice-store-failure`.
    pub store_failure: Option<&'static str>,
}

/// The name of a limit.
#[derive(Debug)]
pub struct LimitName<'a> {
    /// Namespace of the policy.
    pub policy_namespace: &'a str,
    /// Name of the policy.
    pub policy: &'a str,
    /// Name of the limit in the policy.
    pub limit: &'a str,
}

impl Answer {
    /// Returns the time of the decision.
    #[must_use]
    pub fn decided_at(&self) -> Instant {
        self.decided_at
    }

    /// Reports whether the request met a limit with a queue, so that it may have waited.
    #[must_use]
    pub fn may_queue(&self) -> bool {
        self.may_queue
    }

    /// Returns the reason why the request is refused, although no limit denies it.
    #[must_use]
    pub fn refused(&self) -> Option<Refused> {
        matches!(self.verdict.outcome, Outcome::Deny(Reason::TooManyLimits)).then_some(Refused::TooManyLimits)
    }

    /// Returns the response to a request that is denied; `None` if it is to be forwarded.
    #[must_use]
    pub fn rejection(&self, format: ResponseFormat, reveal: Reveal) -> Option<Response<Bytes>> {
        let snapshot = &*self.verdict.snapshot;
        let reason = match &self.verdict.outcome {
            Outcome::Admit(_) | Outcome::Unknown(_) => return None,
            // Nobody is left who could wait.
            Outcome::Wait(_) => &Reason::Limits,
            Outcome::Deny(reason) => reason,
        };
        Some(match reason {
            Reason::Limits => format.denied(&self.verdict, reveal),
            Reason::QueueFull(QueueFull { limit, wait, at }) => {
                format.queue_full(snapshot, *limit, *wait, *at)
            }
            Reason::NotQueued(denial) => format.not_queued(snapshot, denial),
            Reason::TooManyLimits => {
                let (status, grpc) = (StatusCode::BAD_REQUEST, GrpcStatus::InvalidArgument);
                format.failure(status, grpc, Refused::TooManyLimits.detail())
            }
            Reason::Undecidable(limit) => format.undecidable(snapshot, *limit),
            Reason::Refused(limit, refusal) => format.refused(snapshot, *limit, *refusal),
            Reason::Shed(limit) => format.shed(snapshot, *limit),
            Reason::SlotsExpired { limit, fault } => format.slots_expired(snapshot, *limit, fault, reveal),
            Reason::StoreFailed { limit, fault } => format.store_failed(snapshot, *limit, fault, reveal),
        })
    }

    /// Reports whether the request has to wait before it is forwarded.
    #[must_use]
    pub fn is_delayed(&self) -> bool {
        matches!(self.verdict.outcome, Outcome::Admit(Some(_)))
    }

    /// Waits until the request may be forwarded. Meanwhile it does not count as in flight. Dropping this refunds the request.
    pub async fn delay(&mut self) {
        if let Outcome::Admit(delay) = &mut self.verdict.outcome
            && let Some(delay) = delay.take()
        {
            let paused = self.verdict.held.pause();
            delay.wait().await;
            self.verdict.held.resume(&paused);
        }
    }

    /// Removes the marks that a client has sent, under the names of those that limits add.
    pub fn remove_marks(&self, headers: &mut HeaderMap) {
        remove_marks(headers, &self.verdict.snapshot.mark_headers);
    }

    /// Iterates over the names of those of a request's headers that [`Self::remove_marks`] removes.
    pub fn sent_marks<'a>(&self, headers: &'a HeaderMap) -> impl Iterator<Item = &'a HeaderName> {
        sent_marks(headers, &self.verdict.snapshot.mark_headers)
    }

    /// Returns the mark of the limits that have counted the request, for sidecars behind a gateway that enforce them too.
    #[must_use]
    pub fn charged_mark(&self) -> Option<String> {
        self.verdict.charged_mark()
    }

    /// Reports whether a limit that denies the request needs more than the head of any. A body whose length nobody knows is another matter:
    /// its client can say it.
    #[must_use]
    pub fn needs_exchange(&self) -> bool {
        let Outcome::Deny(Reason::Undecidable(limit)) = self.verdict.outcome else { return false };
        self.verdict.snapshot.policy(limit).limits[usize::from(limit.limit)].needs_exchange
    }

    /// Takes the marks of the limits that would deny the request.
    pub fn take_marks(&mut self) -> Marks {
        std::mem::take(&mut self.marks)
    }

    /// Takes everything that the request holds until its response ends.
    pub fn take_held(&mut self) -> Held {
        std::mem::take(&mut self.verdict.held)
    }

    /// Adds the state of the request's limits to the headers of the response.
    pub fn write_status(&self, reveal: Reveal, headers: &mut HeaderMap) {
        if matches!(self.verdict.outcome, Outcome::Admit(_) | Outcome::Unknown(_)) {
            write_status(&self.verdict, reveal, headers);
        }
    }

    /// Returns the decision in words.
    #[must_use]
    pub fn summary(&self) -> Summary<'_> {
        let verdict = &self.verdict;
        let (outcome, limit) = match &verdict.outcome {
            Outcome::Admit(_) if verdict.states.is_empty() => ("unlimited", None),
            Outcome::Admit(_) | Outcome::Unknown(_) => ("admitted", None),
            Outcome::Wait(_) | Outcome::Deny(Reason::Limits) => {
                ("denied", verdict.denials().next().map(|(limit, _)| limit))
            }
            Outcome::Deny(Reason::TooManyLimits) => ("refused", None),
            Outcome::Deny(Reason::Undecidable(limit)) => ("refused", Some(*limit)),
            Outcome::Deny(Reason::Shed(limit)) => ("shed", Some(*limit)),
            Outcome::Deny(Reason::QueueFull(full)) => ("denied", Some(full.limit)),
            Outcome::Deny(Reason::NotQueued(denial)) => ("denied", Some(denial.limit)),
            Outcome::Deny(
                Reason::Refused(limit, _)
                | Reason::SlotsExpired { limit, .. }
                | Reason::StoreFailed { limit, .. },
            ) => ("denied", Some(*limit)),
        };
        let store_failure = match verdict.outcome {
            Outcome::Admit(_) | Outcome::Wait(_) | Outcome::Deny(Reason::Limits) => None,
            _ => verdict.failure(),
        };
        let named = |limit: LimitIndex| {
            let policy = verdict.snapshot.policy(limit);
            let limit = &policy.limits[usize::from(limit.limit)].name;
            LimitName { policy_namespace: &policy.namespace, policy: &policy.name, limit }
        };
        Summary { outcome, limit: limit.map(named), store_failure }
    }
}
