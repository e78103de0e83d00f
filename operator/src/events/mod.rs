//! Events: what the operator tells about policies, and about workloads whose pods get no sidecar.
//!
//! - [`conditions`]: the events of conditions that have changed.
//! - [`pods`]: the events of pods that get no sidecar.
//! - [`told`]: which of them have been told. [`publish`]: sends events to the API server.

pub mod conditions;
pub mod pods;
pub mod publish;
pub mod told;

use std::fmt::{self, Debug, Formatter};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::Event;
use tokio::sync::mpsc;

/// Number of events of one kind that wait to be sent. Further ones are lost: they must neither delay the operator nor fill its memory.
const MAX_WAITING: usize = 256;
/// Longest note that the API server accepts, in bytes.
const MAX_NOTE: usize = 1024;

/// Takes events, and sends them later.
#[derive(Debug, Clone)]
pub struct Events(mpsc::Sender<Reported>);

/// Events that wait to be sent.
pub type Waiting = mpsc::Receiver<Reported>;

/// An event about an object.
pub struct Reported {
    /// The object.
    pub regarding: Regarding,
    /// The event.
    pub event: Event,
}

/// The object of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Regarding {
    /// This object.
    Object(ObjectReference),
    /// The controller of this ReplicaSet, if it has one: people look at Deployments.
    ControllerOf(ObjectReference),
}

impl Debug for Reported {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reported")
            .field("regarding", &self.regarding)
            .field("reason", &self.event.reason)
            .finish()
    }
}

impl Events {
    /// Creates a handle, and the events that wait.
    #[must_use]
    pub fn channel() -> (Self, Waiting) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self(sender), receiver)
    }

    /// Takes an event. It is lost if too many wait.
    pub fn report(&self, reported: Reported) {
        self.try_report(reported);
    }

    /// Takes an event. Returns false if it is lost, because too many wait.
    pub fn try_report(&self, reported: Reported) -> bool {
        self.0.try_send(reported).inspect_err(|error| tracing::debug!("an event is lost: {error}")).is_ok()
    }
}

/// Returns a text of a length that the API server accepts.
fn note(mut text: String) -> String {
    if text.len() > MAX_NOTE {
        let end = (0..=MAX_NOTE - 3).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default();
        text.truncate(end);
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_between_characters() {
        assert_eq!(note("short".to_owned()), "short");
        assert_eq!(note("x".repeat(1024)), "x".repeat(1024));
        let cut = note("\u{e9}".repeat(600));
        assert!(cut.len() <= 1024 && cut.ends_with("\u{e9}..."), "{}", cut.len());
    }
}
