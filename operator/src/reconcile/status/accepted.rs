//! The condition Accepted: the policy is valid.

use sluice_crds::Violation;
use sluice_crds::conditions::reasons;
use sluice_crds::policy::TargetKind;
use sluice_crds::violation::Kind;

use super::finding::Finding;
use super::observed::Observed;
use super::text::{list, part_of};
use crate::reconcile::facts::Outcome;
use crate::reconcile::select_pods::SelectedPods;

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
            let is_of_domain = violations.iter().all(|violation| violation.kind == Kind::DomainNotGranted);
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
