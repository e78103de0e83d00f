//! Computes the status of a policy from the facts about it. Pure. A condition is True when the pods have
//! confirmed it, not when something was sent to them; a message says what is wrong and what to do.
//!
//! - `resolved`, `programmed`, `captured`, `client_address`, `store_healthy`, `ready`: the conditions.
//! - `text`: texts and commands of messages.

use std::time::Duration;

use jiff::Timestamp;
use sluice_crds::conditions::types;
use sluice_crds::policy::PodCounts;
use sluice_crds::{RateLimitPolicyStatus, summary};

use crate::distribution::session::Confirmation;
use crate::reconcile::facts::{CountedPod, Facts, Observed, Outcome};
use crate::reconcile::status::captured::captured;
use crate::reconcile::status::client_address::client_address;
use crate::reconcile::status::programmed::programmed;
use crate::reconcile::status::ready::{nearly_full, ready, unclear_keys, unreachable};
use crate::reconcile::status::resolved::{accepted, resolved_refs};
use crate::reconcile::status::store_healthy::store_healthy;

mod captured;
mod client_address;
#[cfg(test)]
mod fixtures;
mod programmed;
pub(crate) mod ready;
mod resolved;
mod store_healthy;
#[cfg(test)]
mod tests;
mod text;

/// Returns the status, and the delay after which it must be computed again even if nothing changes.
pub fn status(observed: &Observed<'_>, now: Timestamp) -> (RateLimitPolicyStatus, Option<Duration>) {
    let accepted = accepted(observed);
    let resolved_refs = resolved_refs(observed);
    let programmed = programmed(observed);
    let captured = captured(observed);
    let client_address = client_address(observed);
    let store_healthy = store_healthy(observed);
    let required = [
        (types::ACCEPTED, &accepted),
        (types::RESOLVED_REFS, &resolved_refs),
        (types::PROGRAMMED, &programmed.finding),
        (types::CAPTURED, &captured),
    ];
    let notes =
        [kept(observed), unreachable(&observed.facts.pods), nearly_full(observed), unclear_keys(observed)];
    let notes = notes.into_iter().flatten();
    let ready = ready(observed.outcome, &required, &store_healthy, notes);
    let pods = match observed.outcome {
        Outcome::Published { .. } if !programmed.is_kept => Some(count(observed.facts)),
        _ => observed.previous.and_then(|previous| previous.pods.clone()),
    };
    let limits = match observed.outcome {
        Outcome::Published { policy, .. } => {
            let suffix = if observed.outcome.is_shadowed_by_installation() {
                "; shadowed by the installation"
            } else {
                ""
            };
            Some(summary::short(policy) + suffix)
        }
        Outcome::Unread(_) | Outcome::Unresolved(_) | Outcome::Invalid(_) => {
            observed.previous.and_then(|previous| previous.limits.clone())
        }
    };
    let conditions = [
        (types::ACCEPTED, Some(accepted)),
        (types::RESOLVED_REFS, Some(resolved_refs)),
        (types::PROGRAMMED, Some(programmed.finding)),
        (types::CAPTURED, Some(captured)),
        (types::CLIENT_ADDRESS, client_address),
        (types::STORE_HEALTHY, Some(store_healthy)),
        (types::READY, Some(ready)),
    ];
    let found = conditions.into_iter().filter_map(|(kind, finding)| Some((kind, finding?)));
    let conditions = found
        .map(|(kind, finding)| {
            finding.condition(kind, observed.generation, observed.previous_condition(kind), now)
        })
        .collect();
    let status =
        RateLimitPolicyStatus { observed_generation: Some(observed.generation), conditions, pods, limits };
    let check_again_after = [programmed.check_again_after, observed.awaits_sidecars()];
    (status, check_again_after.into_iter().flatten().min())
}

/// Returns the note about a policy that was deleted and still exists.
fn kept(observed: &Observed<'_>) -> Option<String> {
    let names = text::list(observed.kept_by.iter().map(String::as_str));
    (!names.is_empty()).then(|| {
        format!("It was deleted, and is enforced until its finalizers are removed, each by whoever has set it: {names}.")
    })
}

fn count(facts: &Facts) -> PodCounts {
    let count = |wanted: &dyn Fn(&&CountedPod) -> bool| {
        i32::try_from(facts.enforcers().filter(wanted).count()).unwrap_or(i32::MAX)
    };
    let programmed = count(&|pod| pod.confirmation == Confirmation::Applied);
    PodCounts {
        selected: count(&|_| true),
        injected: count(&|pod| pod.facts.injected),
        programmed,
        summary: format!("{programmed}/{}", count(&|_| true)),
    }
}
