use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType};

use super::*;

#[test]
fn an_event_is_told_once_until_many_others_were() {
    let reported = |uid: usize| ReportedEvent {
        regarding: Regarding::Object(ObjectReference {
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        }),
        event: Event {
            type_: EventType::Warning,
            reason: "NotInjected".into(),
            note: Some("why".into()),
            action: "Inject".into(),
            secondary: None,
        },
    };
    let told = Told::default();
    let is_told = |uid: usize, succeeds: bool| {
        let mut is_told = false;
        told.tell_once(reported(uid), |_| {
            is_told = true;
            succeeds
        });
        is_told
    };
    assert!(is_told(0, false) && is_told(0, true) && !is_told(0, true), "one that was lost is told again");
    assert!((1..=MAX_REMEMBERED).all(|uid| is_told(uid, true)));
    assert!(is_told(0, true), "it was forgotten");
    assert_eq!(told.0.lock().unwrap().known.len(), MAX_REMEMBERED);
}
