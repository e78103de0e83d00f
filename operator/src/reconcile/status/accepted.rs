//! The condition Accepted: the policy is valid.

use sluice_crds::Violation;
use sluice_crds::conditions::reasons;

use super::finding::Finding;
use super::text::list;
use crate::reconcile::facts::Outcome;

pub(super) fn accepted(outcome: &Outcome) -> Finding {
    match outcome {
        Outcome::Published { .. } => Finding::new("True", reasons::ACCEPTED, "The policy is valid."),
        Outcome::Invalid(violations) => {
            let text = list(violations.iter().map(Violation::to_string));
            let message = format!(
                "{text}. Fix the policy. Until then, sidecars keep its last valid version, if there is one."
            );
            Finding::new("False", reasons::INVALID, message)
        }
    }
}
