//! The condition Ready: Accepted, Programmed and Captured are all True. An unhealthy store does not change
//! it, because `onStoreFailure` defines what the policy does then.

use sluice_crds::conditions::{reasons, types};

use super::finding::Finding;
use crate::reconcile::facts::Outcome;

/// Added to a message while the installation turns the policy to Shadow.
const SHADOWED: &str = "The installation turns all policies to Shadow, so requests over a limit are counted and pass. \
                        Ask the administrators of Sluice: `enforcement` in the ConfigMap sluice-settings is Shadow.";

pub(super) fn ready(
    outcome: &Outcome,
    accepted: &Finding,
    programmed: &Finding,
    captured: &Finding,
    store_healthy: &Finding,
) -> Finding {
    let required =
        [(types::ACCEPTED, accepted), (types::PROGRAMMED, programmed), (types::CAPTURED, captured)];
    let finding = match required.into_iter().find(|(_, finding)| finding.status != "True") {
        None if store_healthy.status == "False" => Finding::new(
            "True",
            reasons::READY,
            "Every pod has applied this policy and no Service bypasses the sidecars, but sidecars cannot use \
             the store: see the condition StoreHealthy.",
        ),
        None => Finding::new(
            "True",
            reasons::READY,
            "Every pod has applied this policy and no Service bypasses the sidecars.",
        ),
        Some((kind, finding)) => {
            let status = if finding.status == "Unknown" { "Unknown" } else { "False" };
            Finding::new(status, finding.reason, format!("{kind}: {}", finding.message))
        }
    };
    if !outcome.is_shadowed_by_installation() {
        return finding;
    }
    let reason = if finding.status == "True" { reasons::SHADOWED_BY_INSTALLATION } else { finding.reason };
    Finding { reason, message: format!("{SHADOWED} {}", finding.message), ..finding }
}
