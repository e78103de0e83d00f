//! Which events about pods have been told, so that each is told once for each workload.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::{Regarding, Reported};

/// Number of events that are remembered.
const MAX_REMEMBERED: usize = 4_096;

/// The events that were told last.
#[derive(Debug, Default)]
pub struct Told(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    known: HashSet<Key>,
    in_order: VecDeque<Key>,
}

/// The UID of the object, the reason and the note of an event.
type Key = (String, String, String);

impl Told {
    /// Tells an event by `tell` unless it has been told, and remembers it if that succeeds.
    pub fn tell_once(&self, reported: Reported, tell: impl FnOnce(Reported) -> bool) {
        let (Regarding::Object(object) | Regarding::ControllerOf(object)) = &reported.regarding;
        let key = (
            object.uid.clone().unwrap_or_default(),
            reported.event.reason.clone(),
            reported.event.note.clone().unwrap_or_default(),
        );
        // No statement that changes the value can panic halfway.
        let mut remembered = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.known.contains(&key) || !tell(reported) {
            return;
        }
        if remembered.in_order.len() >= MAX_REMEMBERED
            && let Some(oldest) = remembered.in_order.pop_front()
        {
            remembered.known.remove(&oldest);
        }
        remembered.known.insert(key.clone());
        remembered.in_order.push_back(key);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;
    use kube::runtime::events::{Event, EventType};

    use super::*;

    #[test]
    fn an_event_is_told_once_until_many_others_were() {
        let reported = |uid: usize| Reported {
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
        assert!(
            is_told(0, false) && is_told(0, true) && !is_told(0, true),
            "one that was lost is told again"
        );
        assert!((1..=MAX_REMEMBERED).all(|uid| is_told(uid, true)));
        assert!(is_told(0, true), "it was forgotten");
        assert_eq!(told.0.lock().unwrap().known.len(), MAX_REMEMBERED);
    }
}
