use kube::runtime::events::{Event, EventType};

use super::*;

#[tokio::test(start_paused = true)]
async fn an_event_is_not_repeated_for_a_minute() {
    let reported = |uid: &str, note: &str| ReportedEvent {
        regarding: Regarding::Object(ObjectReference { uid: Some(uid.into()), ..ObjectReference::default() }),
        event: Event {
            type_: EventType::Warning,
            reason: "NotInjected".into(),
            note: Some(note.into()),
            action: "Inject".into(),
            secondary: None,
        },
    };
    let mut sent = SentEvents::default();
    let mut is_repeated = |uid: &str, note: &str| {
        let (reported, now) = (reported(uid, note), Instant::now());
        let is_repeated = sent.is_repeated(&reported, now);
        sent.remember(&reported, now);
        is_repeated
    };
    assert!(!is_repeated("1", "a"));
    assert!(is_repeated("1", "a"));
    assert!(!is_repeated("2", "a") && !is_repeated("1", "b"));
    tokio::time::advance(REPEAT_AFTER).await;
    assert!(!is_repeated("1", "a"));
}
