//! The answer to a request: whether it is forwarded, what it holds until its end, and what its response says.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};

use crate::denial::format::{GrpcStatus, ResponseFormat};
use crate::denial::headers::write_status;
use crate::denial::reveal::Reveal;
use crate::limit::decide::Admission;
use crate::limit::delay_queue::QueueFull;
use crate::limit::held::Held;
use crate::limit::index::LimitIndex;
use crate::limit::mark::{Marks, remove_marks};
use crate::limit::snapshot::Snapshot;

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
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) admission: Admission,
    pub(crate) held: Held,
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
        matches!(self.admission, Admission::TooManyLimits).then_some(Refused::TooManyLimits)
    }

    /// Returns the response to a request that is denied; `None` if it is to be forwarded.
    #[must_use]
    pub fn rejection(&self, format: ResponseFormat, reveal: Reveal) -> Option<Response<Bytes>> {
        let snapshot = &*self.snapshot;
        Some(match &self.admission {
            Admission::Unlimited
            | Admission::Admitted(..)
            | Admission::StoreFailed { denied_by: None, .. } => return None,
            Admission::StoreFailed { fault, denied_by: Some(limit) } => {
                format.store_failed(snapshot, *limit, fault, reveal)
            }
            Admission::QueueFull(QueueFull { limit, wait, at }) => {
                format.queue_full(snapshot, *limit, *wait, *at)
            }
            Admission::NotQueued(denial) => format.not_queued(snapshot, denial),
            Admission::TooManyLimits => {
                let (status, grpc) = (StatusCode::BAD_REQUEST, GrpcStatus::InvalidArgument);
                format.failure(status, grpc, Refused::TooManyLimits.detail())
            }
            Admission::Denied(status) | Admission::Waits { status, .. } => format.denied(status, reveal),
            Admission::Refused(limit, refusal) => format.refused(snapshot, *limit, *refusal),
            Admission::Shed(limit) => format.shed(snapshot, *limit),
            Admission::SlotsExpired { limit, fault } => format.slots_expired(snapshot, *limit, fault, reveal),
        })
    }

    /// Reports whether the request has to wait before it is forwarded.
    #[must_use]
    pub fn is_delayed(&self) -> bool {
        matches!(self.admission, Admission::Admitted(_, Some(_)))
    }

    /// Waits until the request may be forwarded. Meanwhile it does not count as in flight. Dropping this refunds the request.
    pub async fn delay(&mut self) {
        if let Admission::Admitted(_, delay) = &mut self.admission
            && let Some(delay) = delay.take()
        {
            let paused = self.held.pause();
            delay.wait().await;
            self.held.resume(&paused);
        }
    }

    /// Removes the marks that a client has sent, under the names of those that limits add.
    pub fn remove_marks(&self, headers: &mut HeaderMap) {
        remove_marks(headers, &self.snapshot.mark_headers);
    }

    /// Takes the marks of the limits that would deny the request.
    pub fn take_marks(&mut self) -> Marks {
        std::mem::take(&mut self.marks)
    }

    /// Takes everything that the request holds until its response ends.
    pub fn take_held(&mut self) -> Held {
        std::mem::take(&mut self.held)
    }

    /// Adds the state of the request's limits to the headers of the response.
    pub fn write_status(&self, reveal: Reveal, headers: &mut HeaderMap) {
        match &self.admission {
            Admission::Admitted(status, _) => write_status(status, reveal, headers),
            Admission::StoreFailed { fault, denied_by: None } => reveal.store_failure(fault, headers),
            _ => {}
        }
    }

    /// Returns the decision in words.
    #[must_use]
    pub fn summary(&self) -> Summary<'_> {
        let (outcome, limit, store_failure) = match &self.admission {
            Admission::Unlimited => ("unlimited", None, None),
            Admission::Admitted(..) => ("admitted", None, None),
            Admission::QueueFull(full) => ("denied", Some(full.limit), None),
            Admission::NotQueued(denial) => ("denied", Some(denial.limit), None),
            Admission::Denied(status) | Admission::Waits { status, .. } => {
                ("denied", status.denials().next().map(|(limit, _)| limit), None)
            }
            Admission::TooManyLimits => ("refused", None, None),
            Admission::Refused(limit, _) => ("denied", Some(*limit), None),
            Admission::Shed(limit) => ("shed", Some(*limit), None),
            Admission::SlotsExpired { limit, fault } => ("denied", Some(*limit), Some(*fault)),
            Admission::StoreFailed { fault, denied_by: Some(limit) } => {
                ("denied", Some(*limit), Some(*fault))
            }
            Admission::StoreFailed { fault, denied_by: None } => ("admitted", None, Some(*fault)),
        };
        let named = |limit: LimitIndex| {
            let policy = self.snapshot.policy(limit);
            let limit = &policy.limits[usize::from(limit.limit)].name;
            LimitName { policy_namespace: &policy.namespace, policy: &policy.name, limit }
        };
        Summary { outcome, limit: limit.map(named), store_failure }
    }
}
