use super::*;

#[test]
fn an_event_is_encoded_once_and_few_are_kept() {
    let events = EncodedEvents::default();
    let get = |before: Option<&str>, after: &str| {
        let mut is_encoded = false;
        let event = events.get(before, after, || {
            is_encoded = true;
            Bytes::from(vec![0; MAX_BYTES / 4])
        });
        assert_eq!(event.len(), MAX_BYTES / 4);
        is_encoded
    };
    assert!(get(None, "1") && !get(None, "1"));
    assert!(get(Some("0"), "1") && get(Some("1"), "2"), "other steps");
    assert!(!get(None, "1") && get(None, "3") && get(None, "4"));
    assert!(get(None, "1"), "it was dropped to make room");
}
