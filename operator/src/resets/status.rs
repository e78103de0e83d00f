//! Computes the status of a reset from how far it is. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_crds::CounterResetStatus;
use sluice_crds::conditions::{reasons, types};

use crate::distribution::clients::reset::ResetProgress;

/// Time in which a reset must be complete.
const MAX_DURATION: SignedDuration = SignedDuration::from_mins(10);
/// Time for which a reset that is over is kept.
const KEPT: SignedDuration = SignedDuration::from_mins(10);

/// The stage of a reset that is not over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// Too many others of its namespace.
    Queued {
        /// Number of resets that a namespace may have at a time.
        most: usize,
    },
    /// The pods.
    Active(ResetProgress),
}

/// Reports whether a reset is over: it is complete, or was given up.
#[must_use]
pub fn is_over(status: &CounterResetStatus) -> bool {
    complete(status).is_some_and(|complete| complete.status == "True" || complete.reason == reasons::EXPIRED)
}

/// Reports whether a reset that is over is deleted now.
#[must_use]
pub fn is_due(status: &CounterResetStatus, now: Timestamp) -> bool {
    let since = complete(status).map(|complete| complete.last_transition_time.0);
    is_over(status) && since.is_some_and(|since| now.duration_since(since) >= KEPT)
}

/// Returns the status of a reset that is not over. `before` is the status that it has.
#[must_use]
pub fn status(
    before: &CounterResetStatus,
    generation: i64,
    created: Timestamp,
    stage: &Stage,
    now: Timestamp,
) -> CounterResetStatus {
    let (status, reason, message) = finding(stage);
    let (reason, message) = if status == "False" && now.duration_since(created) >= MAX_DURATION {
        let message = format!("The reset was not complete within ten minutes, and is given up. {message}");
        (reasons::EXPIRED, message)
    } else {
        (reason, message)
    };
    let is_same = |known: &&Condition| {
        known.status == status && (known.reason == reasons::EXPIRED) == (reason == reasons::EXPIRED)
    };
    let since = complete(before).filter(is_same).map(|known| known.last_transition_time.clone());
    CounterResetStatus {
        conditions: vec![Condition {
            // Whole seconds, because the API server stores no fractions.
            last_transition_time: since
                .unwrap_or_else(|| Time(Timestamp::from_second(now.as_second()).unwrap_or(now))),
            message,
            observed_generation: Some(generation),
            reason: reason.to_owned(),
            status: status.to_owned(),
            type_: types::COMPLETE.to_owned(),
        }],
    }
}

fn complete(status: &CounterResetStatus) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.type_ == types::COMPLETE)
}

/// Returns status, reason and message.
fn finding(stage: &Stage) -> (&'static str, &'static str, String) {
    let progress = match stage {
        Stage::Queued { most } => {
            let message =
                format!("The namespace has {most} other resets at the moment, which are carried out first.");
            return ("False", reasons::TOO_MANY_RESETS, message);
        }
        Stage::Active(progress) => progress,
    };
    let ResetProgress { has_policy, pods, forgotten, is_removed, failure } = progress;
    let pods_have =
        |count: usize| if count == 1 { "1 pod has".to_owned() } else { format!("{count} pods have") };
    if !has_policy {
        let message = "The namespace has no such policy, or it has never been valid. Create the reset again with another name.";
        return ("False", reasons::POLICY_NOT_FOUND, message.to_owned());
    }
    if let Some(failure) = failure {
        return ("False", reasons::POD_FAILED, format!("A pod tries again: {failure}."));
    }
    if *pods == 0 {
        let message = "No pod that enforces the policy is connected to the operator.";
        return ("False", reasons::NOT_CONNECTED, message.to_owned());
    }
    if !is_removed {
        return ("False", reasons::IN_PROGRESS, "A pod is removing the counter from the store.".to_owned());
    }
    if forgotten < pods {
        let message =
            format!("The counter is removed. {forgotten} of {pods} pods have forgotten the client.");
        return ("False", reasons::IN_PROGRESS, message);
    }
    let message = format!("The counter is removed, and {} forgotten the client.", pods_have(*pods));
    ("True", reasons::COMPLETE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    /// Returns status and reason at a stage that begins after so many seconds.
    fn told(stage: &Stage, seconds: i64) -> (String, String) {
        let status = status(&CounterResetStatus::default(), 1, at(0), stage, at(seconds));
        let complete = complete(&status).unwrap();
        assert!(complete.message.ends_with('.'), "{}", complete.message);
        (complete.status.clone(), complete.reason.clone())
    }

    fn waits(reason: &str) -> (String, String) {
        ("False".to_owned(), reason.to_owned())
    }

    #[test]
    fn the_reason_is_what_a_reset_waits_for() {
        let progress = ResetProgress { has_policy: true, pods: 2, ..Default::default() };
        let active = |progress: ResetProgress| told(&Stage::Active(progress), 1);
        assert_eq!(told(&Stage::Queued { most: 64 }, 1), waits(reasons::TOO_MANY_RESETS));
        assert_eq!(active(ResetProgress::default()), waits(reasons::POLICY_NOT_FOUND));
        assert_eq!(active(ResetProgress { pods: 0, ..progress.clone() }), waits(reasons::NOT_CONNECTED));
        assert_eq!(active(progress.clone()), waits(reasons::IN_PROGRESS));
        let failed = ResetProgress { failure: Some("no".into()), ..progress.clone() };
        assert_eq!(active(failed), waits(reasons::POD_FAILED));
        let partly = ResetProgress { is_removed: true, forgotten: 1, ..progress };
        assert_eq!(active(partly.clone()), waits(reasons::IN_PROGRESS));
        assert_eq!(
            active(ResetProgress { forgotten: 2, ..partly }),
            ("True".to_owned(), "Complete".to_owned())
        );
    }

    #[test]
    fn a_reset_is_given_up_after_ten_minutes_and_deleted_ten_minutes_later() {
        let stage = Stage::Active(ResetProgress { has_policy: true, ..Default::default() });
        let before = CounterResetStatus::default();
        let waiting = status(&before, 1, at(0), &stage, at(599));
        assert!(!is_over(&waiting) && !is_due(&waiting, at(9_999)));
        assert_eq!(status(&waiting, 1, at(0), &stage, at(599)), waiting, "it is not written twice");
        let expired = status(&waiting, 1, at(0), &stage, at(600));
        assert_eq!(complete(&expired).unwrap().reason, reasons::EXPIRED);
        assert!(is_over(&expired) && !is_due(&expired, at(1_199)) && is_due(&expired, at(1_200)));
    }
}
