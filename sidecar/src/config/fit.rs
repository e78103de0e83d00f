//! Decides which policies can be active together.

use std::sync::Arc;

use sluice_config::message::PolicyUid;
use sluice_config::policy::Mode;
use sluice_config::{Nack, PreparedPolicy};
use sluice_store::MAX_COUNTERS;

/// A policy with the UID of its object.
pub(crate) type IdentifiedPolicy = (PolicyUid, Arc<PreparedPolicy>);

/// Splits policies into those that can be active together and those that cannot, with the reason. Earlier
/// policies take precedence. A check holds at most [`MAX_COUNTERS`] counters, and a request may match all
/// limits. Limits in shadow mode have checks of their own. As many again are allowed, and together with them no more
/// than that, so that turning all policies to Shadow never fails.
pub(crate) fn fit(policies: &[IdentifiedPolicy]) -> (Vec<&IdentifiedPolicy>, Vec<(PolicyUid, Nack)>) {
    let (mut accepted, mut nacked) = (Vec::<&IdentifiedPolicy>::new(), Vec::new());
    let (mut enforced, mut shadow) = (0, 0);
    for candidate in policies {
        let (uid, policy) = candidate;
        let own_shadow = policy.limits.iter().filter(|limit| limit.mode == Mode::Shadow).count();
        let own_enforced = policy.limits.len() - own_shadow;
        let same_name =
            |other: &PreparedPolicy| other.namespace == policy.namespace && other.name == policy.name;
        let all = enforced + shadow + policy.limits.len();
        if enforced + own_enforced > MAX_COUNTERS || all > 2 * MAX_COUNTERS {
            let reason = format!(
                "the policies of this pod have more than {MAX_COUNTERS} limits together, or more than {} with those \
                 in Shadow: merge or remove some",
                2 * MAX_COUNTERS
            );
            nacked.push((uid.clone(), Nack(reason)));
        } else if accepted.iter().any(|(_, other)| same_name(other)) {
            nacked.push((uid.clone(), Nack("another policy of this name is active".into())));
        } else {
            enforced += own_enforced;
            shadow += own_shadow;
            accepted.push(candidate);
        }
    }
    (accepted, nacked)
}
