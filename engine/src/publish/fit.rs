//! Decides which policies can be active together.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use sluice_config::message::PolicyUid;
use sluice_config::policy::Mode;
use sluice_config::{Nack, PreparedLimit, PreparedPolicy};
use sluice_store::MAX_COUNTERS;

/// Largest number of limits of a pod. A request is compared with those that its path and host allow.
const MAX_LIMITS: usize = 1000;
/// Largest number of templates and regular expressions of a pod. Each takes memory.
const MAX_REGEXES: usize = 256;
/// Largest size of all tables of overrides together, in bytes.
pub(crate) const MAX_OVERRIDES: usize = 8 << 20;

/// A policy with the UID of its object.
pub(crate) type IdentifiedPolicy = (PolicyUid, Arc<PreparedPolicy>);

/// The part of a pod's bounds that policies take.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    /// All limits.
    limits: usize,
    /// Limits for every request that deny, and those that mark or are in Shadow.
    enforced_for_all: usize,
    shadow_for_all: usize,
    regexes: usize,
    /// Size of the tables of overrides, in bytes.
    overrides: usize,
}

impl Size {
    fn of(policy: &PreparedPolicy) -> Self {
        if policy.domain.is_some() {
            // A question is compared with one rule of one domain.
            return Self::default();
        }
        let limits = &policy.limits;
        // A limit that marks is checked like one in Shadow.
        let for_all = |mode| {
            let is_of = |limit: &&PreparedLimit| match limit.mark {
                Some(_) => mode == Mode::Shadow,
                None => limit.mode == mode,
            };
            limits.iter().filter(|limit| limit.applies_to_all).filter(is_of).count()
        };
        Self {
            limits: limits.len(),
            enforced_for_all: for_all(Mode::Enforce),
            shadow_for_all: for_all(Mode::Shadow),
            regexes: limits.iter().map(|limit| limit.regexes).sum(),
            overrides: limits.iter().filter_map(|limit| Some(limit.overrides()?.size())).sum(),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            limits: self.limits + other.limits,
            enforced_for_all: self.enforced_for_all + other.enforced_for_all,
            shadow_for_all: self.shadow_for_all + other.shadow_for_all,
            regexes: self.regexes + other.regexes,
            overrides: self.overrides + other.overrides,
        }
    }

    /// Returns the bound that is exceeded. A check holds at most [`MAX_COUNTERS`] counters. Limits in Shadow have checks
    /// of their own: as many again are allowed, and together with them no more than that, so that turning all policies to
    /// Shadow never fails.
    fn exceeded(self) -> Option<String> {
        let for_all = self.enforced_for_all + self.shadow_for_all;
        if self.enforced_for_all > MAX_COUNTERS || for_all > 2 * MAX_COUNTERS {
            return Some(format!(
                "the policies of this pod have more than {MAX_COUNTERS} limits for every request, or more than {} with those in \
                 Shadow: merge or remove some, or add conditions",
                2 * MAX_COUNTERS
            ));
        }
        if self.limits > MAX_LIMITS {
            return Some(format!(
                "the policies of this pod have more than {MAX_LIMITS} limits together: merge or remove some"
            ));
        }
        if self.regexes > MAX_REGEXES {
            return Some(format!(
                "the policies of this pod have more than {MAX_REGEXES} templates and regular expressions together: use exact \
                 paths and prefixes"
            ));
        }
        (self.overrides > MAX_OVERRIDES).then(|| {
            format!(
                "the overrides of this pod's policies have more than {} MiB together, at about 21 bytes each: use fewer",
                MAX_OVERRIDES >> 20
            )
        })
    }
}

/// Splits policies into those that can be active together and those that cannot, with the reason. Earlier policies take
/// precedence.
pub(crate) fn fit(policies: &[IdentifiedPolicy]) -> (Vec<&IdentifiedPolicy>, Vec<(PolicyUid, Nack)>) {
    let (mut accepted, mut nacked) = (Vec::<&IdentifiedPolicy>::new(), Vec::new());
    // The policies of one namespace leave those of others their room. A pod has only policies of its own.
    let mut sizes = HashMap::<&str, Size>::new();
    let mut names = HashSet::new();
    for candidate in policies {
        let (uid, policy) = candidate;
        let size = sizes.get(policy.namespace.as_str()).copied().unwrap_or_default();
        let with_candidate = size.plus(Size::of(policy));
        if let Some(reason) = with_candidate.exceeded() {
            nacked.push((uid.clone(), Nack(reason)));
        } else if !names.insert((&policy.namespace, &policy.name)) {
            nacked.push((uid.clone(), Nack("an older policy of this name is still active, until the sidecar learns that it was deleted".into())));
        } else {
            sizes.insert(&policy.namespace, with_candidate);
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

    /// Returns a policy with this number of limits for different paths.
    fn for_paths(name: &str, limits: usize, pattern: &str) -> IdentifiedPolicy {
        let limit = |n| {
            format!(
                r#"{{"name":"l{n}","mode":"Enforce","matches":[{{"path":{{"{pattern}":"/{n}"}}}}],"onMissing":"Shared","kind":{{"rates":{{"base":[{{"requests":1,"periodMillis":1000,"algorithm":{{"fixedWindow":"Clock"}}}}]}}}}}}"#
            )
        };
        let limits: Vec<_> = (0..limits).map(limit).collect();
        let json = format!(
            r#"{{"namespace":"n","name":"{name}","mode":"Enforce","onStoreFailure":"Allow","consistency":"Strict","ambiguousPaths":"Match","limits":[{}]}}"#,
            limits.join(",")
        );
        (name.into(), Arc::new(PreparedPolicy::from_json(&json).unwrap()))
    }

    #[test]
    fn a_pod_has_a_thousand_limits_and_a_policy_beyond_that_is_nacked_by_name() {
        let nacked = |policies: &[IdentifiedPolicy]| {
            let nacked = fit(policies).1.into_iter();
            nacked.map(|(uid, nack)| format!("{uid}: {nack}")).collect::<Vec<_>>()
        };
        let (a, b) = (for_paths("a", 968, "exact"), policy("b", 32, "Enforce"));
        assert_eq!(nacked(&[a.clone(), b.clone()]), [] as [String; 0]);
        let refused = nacked(&[a.clone(), b, for_paths("c", 1, "prefix")]);
        assert_eq!(refused.len(), 1);
        assert!(
            refused[0].starts_with("c: the policies of this pod have more than 1000 limits"),
            "{refused:?}"
        );
        let refused = nacked(&[
            for_paths("d", 256, "template"),
            for_paths("e", 1, "regex"),
            for_paths("a", 745, "exact"),
        ]);
        assert_eq!(refused.len(), 2);
        assert!(
            refused[0].starts_with("e: ") && refused[0].contains("more than 256 templates"),
            "{refused:?}"
        );
        assert!(refused[1].starts_with("a: ") && refused[1].contains("more than 1000"), "{refused:?}");
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
