//! The condition ResolvedRefs: everything that the policy refers to can be used.

use sluice_crds::conditions::{reasons, types};

use super::finding::Finding;
use super::observed::Observed;
use crate::reconcile::facts::{Outcome, StoreFact};
use crate::store::resolve::Resolved;

pub(super) fn resolved_refs(observed: &Observed<'_>) -> Finding {
    let policy = match observed.outcome {
        Outcome::Published { policy, .. } => policy,
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
            Finding::new("True", reasons::RESOLVED_REFS, "The policy refers to nothing that is missing.")
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
