//! The condition StoreHealthy: the store answers the sidecars.

use std::collections::BTreeSet;

use sluice_config::message::StoreReport;
use sluice_config::policy::{DEFAULT_STORE, LimitKind};
use sluice_crds::conditions::{reasons, types};
use sluice_store::{FaultCause, StoreFault};

use crate::conditions::{Finding, plural};
use crate::names::PolicyKey;
use crate::reconcile::facts::{Observed, Outcome};
use crate::reconcile::status::text::{list, part_of};

/// Results that the reports of sidecars can have.
const REPORTED: [(&str, &str); 5] = [
    ("True", reasons::HEALTHY),
    ("True", reasons::COUNTERS_LOST),
    ("False", reasons::UNREACHABLE),
    ("False", reasons::STORE_REFUSED),
    ("False", reasons::DEGRADED),
];

pub(super) fn store_healthy(observed: &Observed<'_>) -> Finding {
    if let Outcome::Published { policy, .. } = observed.outcome
        && policy.consistency.is_local()
        && !policy.limits.iter().any(|limit| matches!(limit.kind, LimitKind::Slots(_)))
    {
        return Finding::new("True", reasons::HEALTHY, "The policy counts in its pods and needs no store.");
    }
    observed.or_before(by_reports(observed), types::STORE_HEALTHY, &REPORTED)
}

fn by_reports(observed: &Observed<'_>) -> Finding {
    let pods = observed.facts.enforcers();
    let reports: Vec<_> =
        pods.filter_map(|pod| pod.store.as_ref()).filter(|report| **report != StoreReport::Unknown).collect();
    let faults: Vec<(StoreFault, Option<FaultCause>)> = reports
        .iter()
        .filter_map(|report| match report {
            StoreReport::Failing { fault, cause } => Some((*fault, *cause)),
            StoreReport::Unknown | StoreReport::Healthy(_) => None,
        })
        .collect();
    let enforcer = if observed.facts.service.is_empty() { "sidecar" } else { "enforcer" };
    if reports.is_empty() {
        let message = format!("No {enforcer} has reported on the store yet.");
        return Finding::new("Unknown", reasons::NO_REPORTS, message);
    }
    if faults.is_empty() {
        let verb = if reports.len() == 1 { "uses" } else { "use" };
        let message = format!("{} {verb} the store without faults.", plural(reports.len(), enforcer));
        let has_lost =
            |report: &&&StoreReport| matches!(report, StoreReport::Healthy(found) if found.lost_counters);
        if reports.iter().any(|report| has_lost(&report)) {
            let message = format!(
                "{message} But it has lost counters in the last ten minutes, whose clients began again with nothing used. {}",
                details(observed)
            );
            return Finding::new("True", reasons::COUNTERS_LOST, message);
        }
        return Finding::new("True", reasons::HEALTHY, message);
    }
    let all_fail = faults.len() == reports.len();
    let subject = part_of(faults.len(), reports.len(), enforcer, "cannot", "cannot");
    let causes = faults
        .iter()
        .map(|(fault, cause)| cause.map_or(fault.as_str().to_owned(), |cause| cause.to_string()));
    let causes: BTreeSet<_> = causes.collect();
    let message = format!(
        "{subject} use the store ({}), so onStoreFailure decides their requests. {}",
        list(causes),
        details(observed)
    );
    let all = |kind: StoreFault| all_fail && faults.iter().all(|(fault, _)| *fault == kind);
    let reason = match () {
        () if all(StoreFault::Unreachable) => reasons::UNREACHABLE,
        () if all(StoreFault::Refused) => reasons::STORE_REFUSED,
        () => reasons::DEGRADED,
    };
    Finding::new("False", reason, message)
}

/// Returns where to read what to do.
fn details(observed: &Observed<'_>) -> String {
    let PolicyKey { namespace, .. } = observed.key;
    match observed.outcome {
        Outcome::Published { policy, .. } if policy.store != DEFAULT_STORE => {
            let store = &policy.store;
            format!("What to do: `kubectl -n {namespace} describe ratelimitstores.sluice.dev {store}`")
        }
        Outcome::Published { .. } | Outcome::Unread(_) | Outcome::Unresolved(_) | Outcome::Invalid(_) => {
            "Ask the administrators of Sluice: the RateLimitStore default in \
             the operator's namespace says what to do."
                .to_owned()
        }
    }
}
