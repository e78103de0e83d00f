//! Events with policies, encoded once for all sessions that receive the same: most pods of a namespace are replicas.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;

/// Maximum size of the events that are kept, in bytes, and their number. Beyond it, they are encoded again.
const MAX_BYTES: usize = 4 << 20;
const MAX_EVENTS: usize = 1_000;

/// The state of a sidecar's policies by its ID: before the event, if there was any, and after it.
type Step = (Option<String>, String);

/// The events that sessions were sent last.
#[derive(Debug, Default)]
pub(super) struct EncodedEvents(Mutex<Events>);

#[derive(Debug, Default)]
struct Events {
    by_step: HashMap<Step, Bytes>,
    bytes: usize,
}

impl EncodedEvents {
    /// Returns the event of a step. It is encoded by the first session that needs it, while the others wait.
    pub(super) fn get(&self, before: Option<&str>, after: &str, encode: impl FnOnce() -> Bytes) -> Bytes {
        let step = (before.map(str::to_owned), after.to_owned());
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(event) = events.by_step.get(&step) {
            return event.clone();
        }
        let event = encode();
        if events.by_step.len() >= MAX_EVENTS || events.bytes + event.len() > MAX_BYTES {
            *events = Events::default();
        }
        events.bytes += event.len();
        events.by_step.insert(step, event.clone());
        event
    }
}

#[cfg(test)]
mod tests {
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
}
