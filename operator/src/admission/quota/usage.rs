//! The share of the quotas that a policy takes.

use sluice_config::policy::Mode;
use sluice_config::prepared::index::applies_to_all;
use sluice_crds::compile::Compiled;
use sluice_crds::policy::{PodSelection, TargetRef};

/// The share of the quotas that a policy takes.
#[derive(Debug, Clone)]
pub(super) struct Usage {
    pub(super) name: String,
    pub(super) pods: PodSelection,
    /// Whether the service enforces it.
    pub(super) by_service: bool,
    /// All limits.
    pub(super) limits: usize,
    /// Limits for every request that are enforced, and those in Shadow.
    pub(super) enforced_for_all: usize,
    pub(super) shadow_for_all: usize,
    pub(super) bytes: usize,
}

impl Usage {
    pub(super) fn new(compiled: &Compiled) -> Self {
        let limits = &compiled.policy.limits;
        let for_all =
            |mode| limits.iter().filter(|limit| limit.mode == mode && applies_to_all(limit)).count();
        Self {
            name: compiled.policy.name.clone(),
            pods: compiled.pods.clone(),
            by_service: compiled.enforced_by.service,
            limits: limits.len(),
            enforced_for_all: for_all(Mode::Enforce),
            shadow_for_all: for_all(Mode::Shadow),
            bytes: compiled.policy.to_json().len(),
        }
    }

    /// Returns the number of limits for every request.
    pub(super) fn for_all(&self) -> usize {
        self.enforced_for_all + self.shadow_for_all
    }

    /// Returns the workloads and Services that the policy refers to for its pods.
    pub(super) fn targets(&self) -> &[TargetRef] {
        match &self.pods {
            PodSelection::Targets(targets) => targets,
            PodSelection::Labels(_) => &[],
        }
    }

    /// Describes the pods of the policy by what the policy says of them.
    pub(super) fn pods_text(&self) -> String {
        match &self.pods {
            PodSelection::Labels(selector) if selector.selects_all() => "pods".to_owned(),
            PodSelection::Labels(selector) => format!("pods with {selector}"),
            PodSelection::Targets(targets) => {
                let targets: Vec<_> = targets.iter().map(ToString::to_string).collect();
                format!("pods of {}", targets.join(", "))
            }
        }
    }
}
