//! Warnings in the status of a store that can be reached.

use sluice_config::message::{StoreFindings, StoreReport};
use sluice_crds::conditions::{reasons, types};
use sluice_crds::store::Access;
use sluice_store::Eviction;

use super::observed::{Finding, Observed};
use crate::store::provisioner::Provisioned;
use crate::store::resolve::Resolved;

/// Part of its memory from which a server counts as nearly full.
const NEARLY_FULL: f64 = 0.9;

/// Adds warnings to the finding that a store can be reached. The first one gives the reason.
pub(super) fn with_findings(finding: Finding, observed: &Observed<'_>) -> Finding {
    if finding.status != "True" {
        return finding;
    }
    // A new leader does not know yet what the one before knew.
    let is_unread = observed.provisioned.is_some_and(|provisioned| provisioned.result.is_none());
    if (observed.awaited().is_some() || is_unread)
        && let Some(kept) = previous(observed)
    {
        return kept;
    }
    // No numbers, because a status must not change all the time.
    let mut warnings: Vec<(&str, String)> = Vec::new();
    if reported(observed).any(|found| found.lost_counters) {
        let text = "It has lost counters in the last ten minutes, before they expired: their clients began again with nothing used. \
                    Look for `evicted_keys` in INFO, for FLUSHALL, and for a restart without persistence.";
        warnings.push((reasons::COUNTERS_LOST, text.into()));
    }
    let used = observed.provisioned.and_then(Provisioned::memory_used).filter(|used| *used >= NEARLY_FULL);
    if used.is_some() {
        let text = format!(
            "A server uses more than {:.0} % of its maxmemory: raise it, or look for what fills it. A full server rejects writes, \
             and onStoreFailure decides.",
            NEARLY_FULL * 100.0
        );
        warnings.push((reasons::MEMORY_NEARLY_FULL, text));
    }
    let (eviction, evicting) = eviction(observed);
    if eviction == Eviction::Possible {
        let evicting = evicting
            .map_or(String::new(), |server| format!(" {server} has evicted keys in the last ten minutes."));
        let text = format!(
            "It evicts counters when its memory is full, and their clients begin again with nothing used: set `maxmemory-policy \
             noeviction`.{evicting}"
        );
        warnings.push((reasons::MAY_EVICT, text));
    }
    let reason = warnings.first().map_or(finding.reason, |(reason, _)| *reason);
    let mut message = finding.message;
    for (_, text) in &warnings {
        message = format!("{message} {text}");
    }
    if eviction == Eviction::NotSeen {
        message.push_str(
            " Whether it evicts counters is not seen: INFO does not say it, for which the user needs the optional right `+info`.",
        );
    }
    Finding { reason, message, ..finding }
}

/// Returns the warning that the status has, if it is about this generation of the store.
fn previous(observed: &Observed<'_>) -> Option<Finding> {
    let before = observed.previous?.conditions.iter().find(|condition| {
        condition.type_ == types::REACHABLE && condition.observed_generation == Some(observed.generation)
    })?;
    let warnings = [reasons::COUNTERS_LOST, reasons::MEMORY_NEARLY_FULL, reasons::MAY_EVICT];
    let reason = warnings.into_iter().find(|reason| before.reason == *reason)?;
    Some(Finding::new("True", reason, before.message.clone()))
}

/// Returns what sidecars that can use the store have found out.
fn reported<'a>(observed: &Observed<'a>) -> impl Iterator<Item = StoreFindings> + 'a {
    observed.reports.iter().filter_map(|report| match report.report {
        StoreReport::Healthy(found) => Some(found),
        StoreReport::Failing { .. } | StoreReport::Unknown => None,
    })
}

/// Returns whether the store evicts counters, and a server that does so now. What is not known yet counts as `Never`.
fn eviction<'a>(observed: &Observed<'a>) -> (Eviction, Option<&'a str>) {
    let is_shared = matches!(observed.resolved, Resolved::Usable(usable) if usable.kind == Access::Shared);
    if is_shared {
        let seen = reported(observed).map(|found| found.eviction).chain(observed.own_eviction);
        return (seen.max().unwrap_or(Eviction::Never), None);
    }
    // Users of namespaces have no right to INFO. The administrator has.
    let reports = observed.provisioned.and_then(|provisioned| provisioned.result.as_ref()?.as_ref().ok());
    let reports = reports.into_iter().flatten();
    let evicting = reports.clone().find(|report| report.has_evicted).map(|report| report.address.as_str());
    let possible = reports.filter(|report| report.eviction == Eviction::Possible);
    let eviction =
        if possible.count() > 0 || evicting.is_some() { Eviction::Possible } else { Eviction::Never };
    (eviction, evicting)
}
