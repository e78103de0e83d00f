//! Computes the status of a reset from how far it is. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_crds::CounterResetStatus;
use sluice_crds::conditions::{reasons, types};

use crate::distribution::clients::reset::{PodProgress, ResetProgress};

/// Time in which a reset must be complete.
const MAX_DURATION: SignedDuration = SignedDuration::from_mins(10);
/// Time for which a reset that is over is kept.
const KEPT: SignedDuration = SignedDuration::from_mins(10);

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

/// Returns the status of a reset that is not over and is being carried out. `before` is the status that it has.
#[must_use]
pub fn status(
    before: &CounterResetStatus,
    generation: i64,
    progress: &ResetProgress,
    now: Timestamp,
) -> CounterResetStatus {
    let (status, mut reason, mut message) = finding(progress);
    let known = complete(before).filter(|known| known.status == status);
    let mut since = known.map(|known| known.last_transition_time.clone());
    // It is carried out since the first status.
    let expired = since.as_ref().is_some_and(|since| now.duration_since(since.0) >= MAX_DURATION);
    if status == "False" && expired {
        message = format!("The reset was not complete within ten minutes, and is given up. {message}");
        (reason, since) = (reasons::EXPIRED, None);
    }
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
fn finding(progress: &ResetProgress) -> (&'static str, &'static str, String) {
    let waits = |reason, message: &str| ("False", reason, message.to_owned());
    let progress = match progress {
        ResetProgress::NoPolicy => {
            let message = "The namespace has no such policy, or it has never been valid. Name another one in a new reset.";
            return waits(reasons::POLICY_NOT_FOUND, message);
        }
        ResetProgress::NoLimit => {
            return waits(
                reasons::LIMIT_NOT_FOUND,
                "The policy has no such limit. Name another one in a new reset.",
            );
        }
        ResetProgress::NoCounters => {
            return waits(reasons::LIMIT_NOT_FOUND, "The limit is adaptive and has no counters.");
        }
        ResetProgress::Pods(progress) => progress,
    };
    let PodProgress { is_counted, pods, not_connected, forgotten, is_removed, failure } = progress;
    if progress.is_complete() {
        let pods = if *pods == 1 { "1 pod has".to_owned() } else { format!("{pods} pods have") };
        let message = format!("The counter is removed, and {pods} forgotten the client.");
        return ("True", reasons::COMPLETE, message);
    }
    if !is_counted {
        return waits(reasons::IN_PROGRESS, "The pods that enforce the policy are being counted.");
    }
    if *pods == 0 {
        return waits(reasons::NOT_CONNECTED, "No pod that enforces the policy runs.");
    }
    let mut message = if *is_removed {
        format!("The counter is removed. {forgotten} of {pods} pods have forgotten the client.")
    } else {
        "The counter has not been removed from the store yet.".to_owned()
    };
    if let Some((pod, reason)) = failure {
        message += &format!(" Pod {pod} failed: {reason}. This is tried again.");
        return ("False", reasons::POD_FAILED, message);
    }
    if *not_connected > 0 {
        message += &format!(" Not connected to the operator: {not_connected} of {pods}.");
        return ("False", reasons::NOT_CONNECTED, message);
    }
    ("False", reasons::IN_PROGRESS, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn told(progress: &ResetProgress) -> (String, String, String) {
        let status = status(&CounterResetStatus::default(), 1, progress, at(0));
        let complete = complete(&status).unwrap().clone();
        assert!(complete.message.ends_with('.'), "{}", complete.message);
        (complete.status, complete.reason, complete.message)
    }

    #[test]
    fn the_reason_is_what_a_reset_waits_for() {
        let counted = PodProgress { is_counted: true, pods: 2, ..PodProgress::default() };
        let removed = PodProgress { is_removed: true, forgotten: 1, ..counted.clone() };
        let failure = Some(("web-1".to_owned(), "no answer".to_owned()));
        let pods = |progress: &PodProgress| ResetProgress::Pods(progress.clone());
        for (progress, reason, message) in [
            (ResetProgress::NoPolicy, reasons::POLICY_NOT_FOUND, "no such policy"),
            (ResetProgress::NoLimit, reasons::LIMIT_NOT_FOUND, "no such limit"),
            (ResetProgress::NoCounters, reasons::LIMIT_NOT_FOUND, "adaptive"),
            (pods(&PodProgress::default()), reasons::IN_PROGRESS, "are being counted"),
            (pods(&PodProgress { pods: 0, ..counted.clone() }), reasons::NOT_CONNECTED, "No pod"),
            (pods(&counted), reasons::IN_PROGRESS, "has not been removed from the store yet"),
            (pods(&removed), reasons::IN_PROGRESS, "1 of 2 pods have forgotten"),
            (
                pods(&PodProgress { not_connected: 1, ..removed.clone() }),
                reasons::NOT_CONNECTED,
                "1 of 2 pods have forgotten the client. Not connected to the operator: 1 of 2.",
            ),
            (
                pods(&PodProgress { failure, ..removed.clone() }),
                reasons::POD_FAILED,
                "1 of 2 pods have forgotten the client. Pod web-1 failed: no answer. This is tried again.",
            ),
        ] {
            let told = told(&progress);
            assert_eq!((told.0.as_str(), told.1.as_str()), ("False", reason));
            assert!(told.2.contains(message), "{told:?}");
        }
        let complete = PodProgress { forgotten: 2, ..removed };
        assert_eq!(told(&pods(&complete)).0, "True");
    }

    #[test]
    fn a_reset_is_given_up_after_ten_minutes_and_deleted_ten_minutes_later() {
        let progress = ResetProgress::NoPolicy;
        let waiting = status(&CounterResetStatus::default(), 1, &progress, at(0));
        assert!(!is_over(&waiting) && !is_due(&waiting, at(9_999)));
        assert_eq!(status(&waiting, 1, &progress, at(599)), waiting, "it is not written twice");
        let expired = status(&waiting, 1, &progress, at(600));
        assert_eq!(complete(&expired).unwrap().reason, reasons::EXPIRED);
        assert!(is_over(&expired) && !is_due(&expired, at(1_199)) && is_due(&expired, at(1_200)));
    }
}
