//! The condition Ready: Accepted, ResolvedRefs, Programmed and Captured are all True. An unhealthy store does not change
//! it, because `onStoreFailure` defines what the policy does then. Its message names limits before clients are affected or when they count
//! as one, and applications that their sidecars do not reach.

use std::collections::BTreeSet;

use sluice_config::CompiledPolicy;
use sluice_config::message::PolicyFindings;
use sluice_config::policy::{CompiledLimit, Mode};
use sluice_crds::conditions::reasons;

use crate::conditions::{Finding, plural};
use crate::reconcile::facts::{CountedPod, Observed, Outcome};
use crate::reconcile::status::text::{list, part_of};

#[cfg(test)]
mod ready_tests;

#[cfg(test)]
mod limits_tests;

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

/// Returns what the message says about limits with nearly as many keys as `maxKeys` allows, if there are any.
pub(super) fn nearly_full(observed: &Observed<'_>) -> Option<String> {
    let name = |limit: &CompiledLimit| format!("{} (maxKeys {})", limit.name, limit.most_keys());
    let named = named(observed, |findings| &findings.nearly_full, name)?;
    let has = if named.len() == 1 { "has" } else { "have" };
    Some(format!(
        "{} {has} nearly as many keys as allowed: {}. Beyond the number, all new clients share one counter. Raise \
         maxKeys, or use a key whose values clients cannot choose, such as clientIP or a header that your gateway \
         verifies.",
        plural(named.len(), "limit"),
        list(named)
    ))
}

/// Returns what the message says about limits that have counted many requests whose key is not clear, if there are any.
pub(super) fn unclear_keys(observed: &Observed<'_>) -> Option<String> {
    let named = named(observed, |findings| &findings.unclear_keys, |limit| limit.name.clone())?;
    let has = if named.len() == 1 { "has" } else { "have" };
    Some(format!(
        "{} {has} many requests whose key is not clear, which share one counter or are denied: {}. `sluice explain` says why for a \
         request. If the application takes another spelling of a name for it, name that habit in spec.application.",
        plural(named.len(), "limit"),
        list(named)
    ))
}

/// Returns the limits that exist among those that sidecars have reported, in words, if there are any. A sidecar may report anything.
fn named(
    observed: &Observed<'_>,
    reported: impl Fn(&PolicyFindings) -> &Vec<String>,
    name: impl Fn(&CompiledLimit) -> String,
) -> Option<Vec<String>> {
    let Outcome::Published { policy, .. } = observed.outcome else { return None };
    let pods = observed.facts.enforcers();
    let names: BTreeSet<&str> = pods.flat_map(|pod| reported(&pod.findings)).map(String::as_str).collect();
    let limits = policy.limits.iter().filter(|limit| names.contains(limit.name.as_str()));
    let named: Vec<_> = limits.map(name).collect();
    (!named.is_empty()).then_some(named)
}

/// Returns the sentence about pods whose applications are not reached, if there are some.
pub(super) fn unreachable(pods: &[CountedPod]) -> Option<String> {
    let silent: Vec<_> = pods.iter().filter(|pod| !pod.unreachable.is_empty()).collect();
    let first = silent.first()?;
    let names = list(silent.iter().map(|pod| pod.pod.name.as_str()));
    Some(format!("But {} In all: {names}.", unreachable_text(first)))
}

/// Returns what is wrong with a pod whose application is not reached, and what to do.
pub(crate) fn unreachable_text(pod: &CountedPod) -> String {
    let ports = list(pod.unreachable.iter().map(u16::to_string));
    format!(
        "the application in pod {} has accepted no connection on port {ports} for a minute although requests came, so they \
         got 502. It must listen on 127.0.0.1, an address of the pod, or all addresses; on ::1 only where the pod has an IPv6 \
         address.",
        pod.pod.name
    )
}
