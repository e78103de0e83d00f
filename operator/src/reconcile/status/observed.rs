//! Everything that the status of a policy is computed from.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sluice_crds::RateLimitPolicyStatus;

use crate::distribution::session::Confirmation;
use crate::leadership::LEADER_GRACE;
use crate::object_key::PolicyKey;
use crate::reconcile::facts::{CountedPod, Facts, Outcome};
use crate::service_account::ServiceAccount;

/// Everything that the status of a policy is computed from.
pub struct Observed<'a> {
    /// Key of the policy.
    pub key: &'a PolicyKey,
    /// Generation of the policy.
    pub generation: i64,
    /// Time since the policy was created.
    pub age: Duration,
    /// The finalizers that keep a policy that was deleted. Empty while it is not being deleted.
    pub kept_by: &'a [String],
    /// Result of publishing this generation.
    pub outcome: &'a Outcome,
    /// Objects that the policy refers to.
    pub facts: &'a Facts,
    /// The service of the installation, if it has one.
    pub service: Option<&'a ServiceAccount>,
    /// Time for which this replica has been the leader.
    pub leader_for: Duration,
    /// Status that the policy has.
    pub previous: Option<&'a RateLimitPolicyStatus>,
}

impl Observed<'_> {
    /// Returns a condition of the previous status.
    pub(super) fn previous_condition(&self, kind: &str) -> Option<&Condition> {
        self.previous?.conditions.iter().find(|condition| condition.type_ == kind)
    }

    /// Returns the time left in which sidecars may still be connecting to a new leader, if some are.
    pub(super) fn awaits_sidecars(&self) -> Option<Duration> {
        let left = LEADER_GRACE.checked_sub(self.leader_for).filter(|left| !left.is_zero());
        let is_connecting = |pod: &CountedPod| {
            pod.facts.injected
                && matches!(pod.confirmation, Confirmation::NotConnected | Confirmation::AwaitsReport)
        };
        left.filter(|_| self.facts.enforcers().any(is_connecting))
    }

    /// Returns a condition of the previous status that holds for the present generation.
    pub(super) fn present_condition(&self, kind: &str) -> Option<&Condition> {
        self.previous_condition(kind)
            .filter(|condition| condition.observed_generation == Some(self.generation))
    }
}
