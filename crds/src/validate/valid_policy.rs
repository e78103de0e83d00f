//! A policy without violations.

use kube::core::Selector;

use crate::policy::RateLimitPolicy;
use crate::violation::Violation;

/// A policy without violations.
#[derive(Debug, Clone)]
pub struct ValidPolicy {
    pub(crate) policy: RateLimitPolicy,
    /// Settings that are valid but probably not intended.
    pub warnings: Vec<Violation>,
}

impl ValidPolicy {
    /// Returns the selector of the pods that the policy applies to.
    #[must_use]
    pub fn selector(&self) -> Selector {
        // Validation has rejected every selector that does not convert.
        self.policy.spec.selector.clone().and_then(|selector| selector.try_into().ok()).unwrap_or_default()
    }
}
