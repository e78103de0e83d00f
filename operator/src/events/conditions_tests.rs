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
    let waiting = [condition("Programmed", "Unknown", "Waiting"), condition("Ready", "Unknown", "Waiting")];
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
