//! The result of one condition, and how it becomes part of the status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::reconcile::facts::Observed;

/// Maximum number of characters of a message.
const MAX_MESSAGE: usize = 2_000;

/// The result of one condition.
#[derive(Debug)]
pub(super) struct Finding {
    /// `True`, `False` or `Unknown`.
    pub(super) status: &'static str,
    /// One of [`sluice_crds::conditions::reasons`].
    pub(super) reason: &'static str,
    pub(super) message: String,
}

impl Finding {
    pub(super) fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }

    /// Returns the finding of the leader before, if it has one of these results, while sidecars that it may rest on are still
    /// connecting to a new leader. What others have reported to this one counts at once if it is worse.
    pub(super) fn or_before(
        self,
        observed: &Observed<'_>,
        kind: &str,
        results: &[(&'static str, &'static str)],
    ) -> Self {
        let before = observed.present_condition(kind).filter(|_| observed.awaits_sidecars().is_some());
        let Some(before) = before else { return self };
        let result =
            results.iter().find(|result| **result == (before.status.as_str(), before.reason.as_str()));
        match result {
            Some(&(status, reason)) if self.status != "False" || status == "False" => {
                Self::new(status, reason, before.message.clone())
            }
            Some(_) | None => self,
        }
    }
}

/// Returns the condition for a finding. The transition time stays the same while the condition's status does.
pub(super) fn condition(observed: &Observed<'_>, kind: &str, finding: Finding, now: Timestamp) -> Condition {
    let message = match finding.message.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}...", &finding.message[..end]),
        None => finding.message,
    };
    Condition {
        last_transition_time: match observed.previous_condition(kind) {
            Some(before) if before.status == finding.status => before.last_transition_time.clone(),
            // Whole seconds, because the API server stores no fractions.
            _ => Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
        },
        message,
        observed_generation: Some(observed.generation),
        reason: finding.reason.into(),
        status: finding.status.into(),
        type_: kind.into(),
    }
}
