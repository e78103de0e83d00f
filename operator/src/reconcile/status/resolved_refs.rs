//! The condition ResolvedRefs: everything that the policy refers to can be used.

use sluice_crds::conditions::{reasons, types};

use super::finding::Finding;
use super::observed::Observed;
use super::text::sentences;
use crate::reconcile::facts::{Outcome, StoreFact};
use crate::reconcile::tables::Problem;
use crate::store::resolve::Resolved;

/// Describes content that cannot be used, and what holds until it can.
fn unresolved(unusable: &[Problem], until: &str) -> Finding {
    let texts = unusable.iter().map(|problem| problem.message.as_str());
    let reason = unusable.first().map_or(reasons::INVALID_CONTENT, |problem| problem.reason);
    let status = if reason == reasons::WAITING { "Unknown" } else { "False" };
    Finding::new(status, reason, format!("{} {until}", sentences(texts)))
}

pub(super) fn resolved_refs(observed: &Observed<'_>) -> Finding {
    let policy = match observed.outcome {
        Outcome::Published { policy, unusable, .. } if unusable.is_empty() => policy,
        Outcome::Published { unusable, .. } => {
            return unresolved(unusable, "Until then, pods keep the content that could be used last.");
        }
        Outcome::Unresolved(unusable) => {
            let until = "Until then, pods keep the version of the policy that they have. Those without one apply it without \
                         overrides, and without the limits whose public keys are unknown.";
            return unresolved(unusable, until);
        }
        Outcome::Unread(target) => {
            return Finding::new("Unknown", reasons::WAITING, format!("{target} is being read."));
        }
        Outcome::Invalid(_) => return Finding::new("Unknown", reasons::INVALID, "The policy is not valid."),
    };
    let (namespace, name) = (&observed.key.namespace, &policy.store);
    let instead = "Until then, onStoreFailure decides the requests.";
    let unusable = |reason, problem: &str| {
        let message = format!(
            "The RateLimitStore {name} {problem}: see `kubectl -n {namespace} describe ratelimitstores.sluice.dev {name}`. \
             {instead}"
        );
        Finding::new("False", reason, message)
    };
    match &observed.facts.store {
        StoreFact::Default => {
            Finding::new("True", reasons::RESOLVED_REFS, "Everything that the policy refers to can be used.")
        }
        StoreFact::Missing => {
            let message = format!(
                "The namespace {namespace} has no RateLimitStore {name}. Create it, or remove spec.storeRef to count in the \
                 installation's store. {instead}"
            );
            Finding::new("False", reasons::REF_NOT_FOUND, message)
        }
        StoreFact::Known(Resolved::Usable(_)) => {
            let message = format!("The RateLimitStore {name} can be used.");
            Finding::new("True", reasons::RESOLVED_REFS, message)
        }
        StoreFact::Known(Resolved::Pending) => Finding::new(
            "Unknown",
            reasons::WAITING,
            format!("The Secret of the RateLimitStore {name} is being read."),
        ),
        StoreFact::Known(Resolved::NotAllowed) => {
            unusable(reasons::REF_NOT_PERMITTED, &format!("is not {}", types::ACCEPTED))
        }
        StoreFact::Known(Resolved::Invalid(_)) => {
            unusable(reasons::INVALID_CONTENT, &format!("is not {}", types::ACCEPTED))
        }
        StoreFact::Known(Resolved::Unusable(problem)) => {
            unusable(problem.reason(), "refers to a Secret that cannot be used")
        }
    }
}
