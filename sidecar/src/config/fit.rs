//! Decides which policies can be active together.

use std::sync::Arc;

use sluice_config::message::PolicyUid;
use sluice_config::policy::Mode;
use sluice_config::{Nack, PreparedPolicy};
use sluice_store::MAX_COUNTERS;

/// Largest size of all tables of overrides together, in bytes.
const MAX_OVERRIDES: usize = 16 << 20;

/// A policy with the UID of its object.
pub(crate) type IdentifiedPolicy = (PolicyUid, Arc<PreparedPolicy>);

/// Splits policies into those that can be active together and those that cannot, with the reason. Earlier
/// policies take precedence. A check holds at most [`MAX_COUNTERS`] counters, and a request may match all
/// limits. Limits in shadow mode have checks of their own. As many again are allowed, and together with them no more
/// than that, so that turning all policies to Shadow never fails.
pub(crate) fn fit(policies: &[IdentifiedPolicy]) -> (Vec<&IdentifiedPolicy>, Vec<(PolicyUid, Nack)>) {
    let (mut accepted, mut nacked) = (Vec::<&IdentifiedPolicy>::new(), Vec::new());
    let (mut enforced, mut shadow, mut overrides) = (0, 0, 0);
    for candidate in policies {
        let (uid, policy) = candidate;
        let own_shadow = policy.limits.iter().filter(|limit| limit.mode == Mode::Shadow).count();
        let own_enforced = policy.limits.len() - own_shadow;
        let same_name =
            |other: &PreparedPolicy| other.namespace == policy.namespace && other.name == policy.name;
        let own_overrides: usize =
            policy.limits.iter().filter_map(|limit| Some(limit.overrides()?.size())).sum();
        let all = enforced + shadow + policy.limits.len();
        if enforced + own_enforced > MAX_COUNTERS || all > 2 * MAX_COUNTERS {
            let reason = format!(
                "the policies of this pod have more than {MAX_COUNTERS} limits together, or more than {} with those \
                 in Shadow: merge or remove some",
                2 * MAX_COUNTERS
            );
            nacked.push((uid.clone(), Nack(reason)));
        } else if overrides + own_overrides > MAX_OVERRIDES {
            let reason = format!(
                "the overrides of this pod's policies have more than {} MiB together, at about 21 bytes each: use fewer",
                MAX_OVERRIDES >> 20
            );
            nacked.push((uid.clone(), Nack(reason)));
        } else if accepted.iter().any(|(_, other)| same_name(other)) {
            nacked.push((uid.clone(), Nack("an older policy of this name is still active, until the sidecar learns that it was deleted".into())));
        } else {
            enforced += own_enforced;
            shadow += own_shadow;
            overrides += own_overrides;
            accepted.push(candidate);
        }
    }
    (accepted, nacked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a policy with this number of limits in one mode.
    fn policy(name: &str, limits: usize, mode: &str) -> IdentifiedPolicy {
        let limit = |n| {
            format!(
                r#"{{"name":"l{n}","mode":"{mode}","onMissing":"Shared","kind":{{"rates":{{"base":[{{"requests":1,"periodMillis":1000,"algorithm":{{"fixedWindow":"Clock"}}}}]}}}}}}"#
            )
        };
        let limits: Vec<_> = (0..limits).map(limit).collect();
        let json = format!(
            r#"{{"namespace":"n","name":"{name}","mode":"{mode}","onStoreFailure":"Allow","consistency":"Strict","ambiguousPaths":"Match","limits":[{}]}}"#,
            limits.join(",")
        );
        (name.into(), Arc::new(PreparedPolicy::from_json(&json).unwrap()))
    }

    #[test]
    fn policies_that_fit_also_fit_when_all_of_them_are_in_shadow_mode() {
        let nacked = |policies: &[IdentifiedPolicy]| fit(policies).1.len();
        assert_eq!(nacked(&[policy("a", 32, "Enforce"), policy("b", 32, "Shadow")]), 0);
        assert_eq!(nacked(&[policy("a", 32, "Shadow"), policy("b", 32, "Shadow")]), 0);
        assert_eq!(nacked(&[policy("a", 32, "Enforce"), policy("b", 33, "Shadow")]), 1);
        assert_eq!(nacked(&[policy("a", 33, "Enforce")]), 1);
        assert_eq!(nacked(&[policy("a", 32, "Shadow"), policy("b", 33, "Shadow")]), 1);
    }
}
