//! The events of a policy's conditions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType};
use sluice_crds::conditions::reasons::PENDING;
use sluice_crds::conditions::types::READY;

use super::note;

/// Returns the events of the conditions that have changed their status or reason. A cause has an event of its own, so that of
/// `Ready` follows only when all is well. What is not known yet has none, and neither has a policy that its pods are confirming.
#[must_use]
pub fn events(before: &[Condition], after: &[Condition]) -> Vec<Event> {
    let has_changed = |condition: &&Condition| {
        let same = before.iter().find(|before| before.type_ == condition.type_);
        same.is_none_or(|before| (&before.status, &before.reason) != (&condition.status, &condition.reason))
    };
    let is_told = |condition: &&Condition| {
        let is_decided = condition.status != "Unknown" && condition.reason != PENDING;
        (condition.status == "True") == (condition.type_ == READY) && is_decided
    };
    let event = |condition: &Condition| Event {
        type_: if condition.status == "True" { EventType::Normal } else { EventType::Warning },
        reason: condition.reason.clone(),
        note: Some(note(format!("{} is {}: {}", condition.type_, condition.status, condition.message))),
        action: condition.type_.clone(),
        secondary: None,
    };
    after.iter().filter(has_changed).filter(is_told).map(event).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use k8s_openapi::jiff::Timestamp;

    use super::*;

    fn condition(type_: &str, status: &str, reason: &str) -> Condition {
        let [type_, status, reason] = [type_, status, reason].map(str::to_owned);
        let last_transition_time = Time(Timestamp::UNIX_EPOCH);
        Condition {
            type_,
            status,
            reason,
            message: "why".into(),
            last_transition_time,
            observed_generation: None,
        }
    }

    fn told(before: &[Condition], after: &[Condition]) -> Vec<(EventType, String, String)> {
        let events = events(before, after).into_iter();
        events.map(|event| (event.type_, event.reason, event.note.unwrap_or_default())).collect()
    }

    #[test]
    fn a_cause_is_told_once_and_ready_when_all_is_well() {
        let waiting =
            [condition("Programmed", "Unknown", "Waiting"), condition("Ready", "Unknown", "Waiting")];
        assert_eq!(told(&[], &waiting), []);
        let pending = [condition("Programmed", "False", PENDING), condition("Ready", "False", PENDING)];
        assert_eq!(told(&[], &pending), []);
        let broken =
            [condition("Programmed", "False", "NotInjected"), condition("Ready", "False", "NotInjected")];
        let warning = (EventType::Warning, "NotInjected".to_owned(), "Programmed is False: why".to_owned());
        assert_eq!(told(&waiting, &broken), [warning]);
        assert_eq!(told(&broken, &broken), []);
        let well = [condition("Programmed", "True", "Programmed"), condition("Ready", "True", "Ready")];
        assert_eq!(
            told(&broken, &well),
            [(EventType::Normal, "Ready".to_owned(), "Ready is True: why".to_owned())]
        );
        let other = [condition("Programmed", "False", "Refused"), condition("Ready", "False", "Refused")];
        assert_eq!(told(&broken, &other).len(), 1, "another reason is told");
    }
}
