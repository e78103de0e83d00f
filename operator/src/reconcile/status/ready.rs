//! The condition Ready: Accepted, Programmed and Captured are all True. An unhealthy store does not change
//! it, because `onStoreFailure` defines what the policy does then.

use sluice_crds::conditions::{reasons, types};

use super::finding::Finding;

pub(super) fn ready(
    accepted: &Finding,
    programmed: &Finding,
    captured: &Finding,
    store_healthy: &Finding,
) -> Finding {
    let required =
        [(types::ACCEPTED, accepted), (types::PROGRAMMED, programmed), (types::CAPTURED, captured)];
    match required.into_iter().find(|(_, finding)| finding.status != "True") {
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
    }
}
