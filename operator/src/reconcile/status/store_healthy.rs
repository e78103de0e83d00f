//! The condition StoreHealthy: the store answers the sidecars.

use std::collections::BTreeSet;

use sluice_config::message::StoreReport;
use sluice_crds::conditions::reasons;

use super::finding::Finding;
use super::text::{part_of, plural};
use crate::reconcile::facts::CountedPod;

pub(super) fn store_healthy(pods: &[CountedPod]) -> Finding {
    let reports: Vec<_> = pods
        .iter()
        .filter_map(|pod| pod.store.as_ref())
        .filter(|report| **report != StoreReport::Unknown)
        .collect();
    let faults: Vec<&str> = reports
        .iter()
        .filter_map(|report| match report {
            StoreReport::Failing { fault } => Some(fault.as_str()),
            _ => None,
        })
        .collect();
    if reports.is_empty() {
        let message = "No sidecar has reported on the store yet.";
        return Finding::new("Unknown", reasons::NO_REPORTS, message);
    }
    if faults.is_empty() {
        let verb = if reports.len() == 1 { "uses" } else { "use" };
        let message = format!("{} {verb} the store without faults.", plural(reports.len(), "sidecar"));
        return Finding::new("True", reasons::HEALTHY, message);
    }
    let all_fail = faults.len() == reports.len();
    let subject = part_of(faults.len(), reports.len(), "sidecar", "cannot", "cannot");
    let distinct: Vec<_> = faults.into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    let message = format!(
        "{subject} use the store ({}), so onStoreFailure decides their requests. Check the store, \
         its URL and its Secret.",
        distinct.join(", ")
    );
    let reason = match distinct.as_slice() {
        ["unreachable"] if all_fail => reasons::UNREACHABLE,
        ["refused"] if all_fail => reasons::STORE_REFUSED,
        _ => reasons::DEGRADED,
    };
    Finding::new("False", reason, message)
}
