//! Decisions of limits, in the words of a span.

use crate::config::snapshot::Snapshot;
use crate::limit::decide::Admission;
use crate::limit::index::LimitIndex;

/// A decision about a request.
#[derive(Debug)]
pub(crate) struct Decision<'a> {
    /// The decision in a word, as in metrics.
    pub(super) outcome: &'static str,
    pub(super) limit: Option<LimitName<'a>>,
    /// The store's failure, as in `x-sluice-store-failure`.
    pub(super) store_failure: Option<&'static str>,
}

/// The limit that a decision is due to.
#[derive(Debug)]
pub(super) struct LimitName<'a> {
    pub(super) policy_namespace: &'a str,
    pub(super) policy: &'a str,
    pub(super) limit: &'a str,
}

impl<'a> Decision<'a> {
    /// Describes a decision of a snapshot's limits.
    pub(crate) fn of(snapshot: &'a Snapshot, admission: &Admission) -> Self {
        let (outcome, limit, store_failure) = match admission {
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
            let policy = &snapshot.policies[usize::from(limit.policy)].prepared;
            let limit = &policy.limits[usize::from(limit.limit)].name;
            LimitName { policy_namespace: &policy.namespace, policy: &policy.name, limit }
        };
        Self { outcome, limit: limit.map(named), store_failure }
    }
}
