//! The enforcers of a policy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An enforcer of policies.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Enforcer {
    /// The sidecars of the pods that the policy selects.
    Sidecar,
    /// The service that gateways ask.
    Service,
}

/// The enforcers of a policy: at least one of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnforcedBy {
    /// The sidecars of the pods that the policy selects.
    pub sidecar: bool,
    /// The service that gateways ask.
    pub service: bool,
}

impl EnforcedBy {
    /// Sidecars alone.
    pub const SIDECAR: Self = Self { sidecar: true, service: false };

    /// Reads the list of a policy. Without any, it is enforced by sidecars.
    #[must_use]
    pub fn new(list: &[Enforcer]) -> Self {
        let service = list.contains(&Enforcer::Service);
        Self { sidecar: list.contains(&Enforcer::Sidecar) || !service, service }
    }
}

pub(super) fn sidecar() -> Vec<Enforcer> {
    vec![Enforcer::Sidecar]
}
