//! Limits with nearly as many keys as `maxKeys` allows, which the message of the condition Ready names before clients
//! are affected.

use std::collections::BTreeSet;

use super::observed::Observed;
use super::text::{list, plural};
use crate::reconcile::facts::Outcome;

#[cfg(test)]
mod tests;

/// Returns what the message says about such limits, if there are any.
pub(super) fn nearly_full(observed: &Observed<'_>) -> Option<String> {
    let Outcome::Published { policy, .. } = observed.outcome else { return None };
    let pods = observed.facts.enforcers();
    let reported: BTreeSet<&str> = pods.flat_map(|pod| &pod.nearly_full).map(String::as_str).collect();
    // A sidecar may report anything; a message only names limits that exist.
    let limits = policy.limits.iter().filter(|limit| reported.contains(limit.name.as_str()));
    let named: Vec<String> =
        limits.map(|limit| format!("{} (maxKeys {})", limit.name, limit.most_keys())).collect();
    if named.is_empty() {
        return None;
    }
    let has = if named.len() == 1 { "has" } else { "have" };
    Some(format!(
        "{} {has} nearly as many keys as allowed: {}. Beyond the number, all new clients share one counter. Raise \
         maxKeys, or use a key whose values clients cannot choose, such as clientIP or a header that your gateway \
         verifies.",
        plural(named.len(), "limit"),
        list(named)
    ))
}
