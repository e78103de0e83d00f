//! The condition Ready: Accepted, ResolvedRefs, Programmed and Captured are all True. An unhealthy store does not change
//! it, because `onStoreFailure` defines what the policy does then.

use sluice_config::CompiledPolicy;
use sluice_config::policy::Mode;
use sluice_crds::conditions::reasons;

use super::finding::Finding;
use super::text::part_of;
use crate::reconcile::facts::Outcome;

#[cfg(test)]
mod tests;

/// Added to a message while the installation turns the policy to Shadow.
const SHADOWED: &str = "The installation turns all policies to Shadow, so requests over a limit are counted and pass. \
                        Ask the administrators of Sluice: `enforcement` in the ConfigMap sluice-settings is Shadow.";

/// Sums up the required conditions, of which the last is Captured.
pub(super) fn ready(
    outcome: &Outcome,
    required: &[(&str, &Finding)],
    store_healthy: &Finding,
    notes: impl Iterator<Item = String>,
) -> Finding {
    let finding = own(outcome, required, store_healthy, notes);
    if !outcome.is_shadowed_by_installation() {
        return finding;
    }
    let reason = if finding.status == "True" { reasons::SHADOWED_BY_INSTALLATION } else { finding.reason };
    Finding { reason, message: format!("{SHADOWED} {}", finding.message), ..finding }
}

/// Returns the condition as it is under an installation that enforces policies.
fn own(
    outcome: &Outcome,
    required: &[(&str, &Finding)],
    store_healthy: &Finding,
    notes: impl Iterator<Item = String>,
) -> Finding {
    if let Some((kind, finding)) = required.iter().find(|(_, finding)| finding.status != "True") {
        let status = if finding.status == "Unknown" { "Unknown" } else { "False" };
        return Finding::new(status, finding.reason, format!("{kind}: {}", finding.message));
    }
    let mut message = "Every pod has applied this policy.".to_owned();
    if let Outcome::Published { policy, .. } = outcome
        && let Some(text) = shadow(policy)
    {
        message.push_str(&format!(" {text}"));
    }
    if let Some((_, captured)) = required.last() {
        message.push_str(&format!(" {}", captured.message));
    }
    if store_healthy.status == "False" {
        message.push_str(" But sidecars cannot use the store: see the condition StoreHealthy.");
    }
    for text in notes {
        message.push_str(&format!(" {text}"));
    }
    Finding::new("True", reasons::READY, message)
}

/// Returns which limits of a policy only report their decisions, or `None` if all are enforced.
fn shadow(policy: &CompiledPolicy) -> Option<String> {
    let shadows = policy.limits.iter().filter(|limit| limit.mode == Mode::Shadow).count();
    match policy.mode {
        Mode::Shadow => Some("It rejects no request, because its mode is Shadow.".into()),
        Mode::Enforce if shadows > 0 => {
            let subject = part_of(shadows, policy.limits.len(), "limit", "rejects", "reject");
            Some(format!("{subject} no request, because of the mode Shadow."))
        }
        Mode::Enforce => None,
    }
}
