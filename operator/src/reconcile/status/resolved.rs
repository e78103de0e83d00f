//! The conditions Accepted (the policy is valid) and ResolvedRefs (everything that it refers to can be used).

use sluice_crds::Violation;
use sluice_crds::ViolationKind;
use sluice_crds::conditions::{reasons, types};
use sluice_crds::policy::TargetKind;

use crate::conditions::Finding;
use crate::reconcile::contents::Problem;
use crate::reconcile::facts::{Observed, Outcome, SelectedPods, StoreFact};
use crate::reconcile::status::text::{list, part_of, sentences};
use crate::store::resolve::Resolved;

pub(super) fn accepted(observed: &Observed<'_>) -> Finding {
    match observed.outcome {
        Outcome::Published { selected, .. } if !selected.missing.is_empty() => {
            Finding::new("False", reasons::TARGET_NOT_FOUND, missing(selected, &observed.key.namespace))
        }
        Outcome::Published { .. } | Outcome::Unresolved(_) => {
            Finding::new("True", reasons::ACCEPTED, "The policy is valid.")
        }
        Outcome::Unread(target) => Finding::new(
            "Unknown",
            reasons::WAITING,
            format!(
                "{target} is being read. Until then, sidecars keep the last version of the policy, if there is one."
            ),
        ),
        Outcome::Invalid(violations) => {
            let text = list(violations.iter().map(Violation::to_string));
            let message = format!(
                "{text}. Fix the policy. Until then, sidecars keep its last valid version, if there is one."
            );
            let is_of_domain =
                violations.iter().all(|violation| violation.kind == ViolationKind::DomainNotGranted);
            let reason = if is_of_domain { reasons::DOMAIN_NOT_GRANTED } else { reasons::INVALID };
            Finding::new("False", reason, message)
        }
    }
}

/// Returns which targets do not exist, and what to do.
fn missing(selected: &SelectedPods, namespace: &str) -> String {
    let (missing, all) = (selected.missing.len(), selected.targets.len());
    let names = list(selected.missing.iter().map(ToString::to_string));
    let others = match missing == all {
        true => "Until then, the policy applies to no pod.",
        false => "Until then, the policy applies to the pods of the others.",
    };
    let has_service = selected.missing.iter().any(|target| target.kind == TargetKind::Service);
    let alias = if has_service { " A Service of the type ExternalName has no pods." } else { "" };
    let subject = part_of(missing, all, "target", "does", "do");
    format!(
        "{subject} not exist in namespace {namespace}: {names}. Create what is missing, or correct spec.targetRefs.{alias} {others}"
    )
}

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
