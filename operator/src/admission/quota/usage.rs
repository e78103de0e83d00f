//! The share of the quotas that a policy takes.

use sluice_config::policy::Mode;
use sluice_crds::compile::Compiled;
use sluice_crds::policy::{PodSelection, TargetRef};

/// The share of the quotas that a policy takes.
#[derive(Debug, Clone)]
pub(super) struct Usage {
    pub(super) name: String,
    pub(super) pods: PodSelection,
    pub(super) enforced: usize,
    pub(super) shadow: usize,
    pub(super) bytes: usize,
}

impl Usage {
    pub(super) fn new(compiled: &Compiled) -> Self {
        let shadow = compiled.policy.limits.iter().filter(|limit| limit.mode == Mode::Shadow).count();
        Self {
            name: compiled.policy.name.clone(),
            pods: compiled.pods.clone(),
            enforced: compiled.policy.limits.len() - shadow,
            shadow,
            bytes: compiled.policy.to_json().len(),
        }
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
