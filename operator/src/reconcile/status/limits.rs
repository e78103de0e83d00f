//! Limits that the message of the condition Ready names, before clients are affected or when they count as one.

use std::collections::BTreeSet;

use sluice_config::message::PolicyFindings;
use sluice_config::policy::CompiledLimit;

use super::observed::Observed;
use super::text::{list, plural};
use crate::reconcile::facts::Outcome;

#[cfg(test)]
mod tests;

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
