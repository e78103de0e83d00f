//! The labels of metrics.

use prometheus_client::encoding::EncodeLabelSet;
use sluice_config::jwt::JwtVerifier;
use sluice_config::{PreparedLimit, PreparedPolicy};

/// The labels of a policy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct PolicyLabels {
    /// A target already has the label `namespace`.
    pub(super) policy_namespace: String,
    pub(super) policy: String,
}

impl PolicyLabels {
    pub(super) fn of(policy: &PreparedPolicy) -> Self {
        Self { policy_namespace: policy.namespace.clone(), policy: policy.name.clone() }
    }
}

/// The labels of an active policy.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PolicyInfoLabels {
    #[prometheus(flatten)]
    pub(super) policy: PolicyLabels,
    pub(super) uid: String,
    pub(super) hash: String,
}

/// The labels of a limit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct LimitLabels {
    pub(super) policy_namespace: String,
    pub(super) policy: String,
    pub(super) limit: String,
}

impl LimitLabels {
    pub(super) fn of(policy: &PreparedPolicy, limit: &PreparedLimit) -> Self {
        let [policy_namespace, policy, limit] =
            [&policy.namespace, &policy.name, &limit.name].map(Clone::clone);
        Self { policy_namespace, policy, limit }
    }
}

/// The labels of a kind of tokens.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub(super) struct JwtLabels {
    pub(super) policy_namespace: String,
    pub(super) policy: String,
    pub(super) jwt: String,
}

impl JwtLabels {
    pub(super) fn of(policy: &PreparedPolicy, verifier: &JwtVerifier) -> Self {
        let (policy_namespace, policy) = (policy.namespace.clone(), policy.name.clone());
        Self { policy_namespace, policy, jwt: verifier.name().to_owned() }
    }
}

/// The labels of refused tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct RefusedTokenLabels {
    #[prometheus(flatten)]
    pub(super) jwt: JwtLabels,
    pub(super) reason: &'static str,
}

/// The labels of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DecisionLabels {
    #[prometheus(flatten)]
    pub(super) limit: LimitLabels,
    pub(super) outcome: &'static str,
}

/// The labels of the requests of a priority.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct PriorityLabels {
    #[prometheus(flatten)]
    pub(super) limit: LimitLabels,
    pub(super) priority: String,
    pub(super) outcome: &'static str,
}
