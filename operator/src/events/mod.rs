//! Events: what the operator tells about policies, and about workloads whose pods get no sidecar. They are sent slowly: each is a
//! request, and a rollout can have one for each of its pods.
//!
//! - [`pods`]: the events of pods that get no sidecar.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::{self, Debug, Formatter};
use std::sync::Mutex;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use sluice_crds::conditions::reasons::PENDING;
use sluice_crds::conditions::types::READY;
use sluice_host::logging::told;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::locks::lock;

pub mod pods;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod conditions_tests;

#[cfg(test)]
mod told_tests;

#[cfg(test)]
mod publish_tests;

/// Number of events of one kind that wait to be sent. Further ones are lost: they must neither delay the operator nor fill its memory.
const MAX_WAITING: usize = 256;
/// Longest note that the API server accepts, in bytes.
const MAX_NOTE: usize = 1024;

/// Takes events, and sends them later.
#[derive(Debug, Clone)]
pub struct Events(mpsc::Sender<ReportedEvent>);

/// Events that wait to be sent.
pub type Waiting = mpsc::Receiver<ReportedEvent>;

/// An event about an object.
pub struct ReportedEvent {
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

impl Debug for ReportedEvent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reported")
            .field("regarding", &self.regarding)
            .field("reason", &self.event.reason)
            .finish()
    }
}

impl Events {
    /// Creates a handle, and the events that wait.
    pub fn channel() -> (Self, Waiting) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self(sender), receiver)
    }

    /// Takes an event. Returns false if it is lost, because too many wait.
    pub fn report(&self, reported: ReportedEvent) -> bool {
        self.0.try_send(reported).inspect_err(|error| tracing::debug!("an event is lost: {error}")).is_ok()
    }
}

/// Returns a reference to an object.
pub fn object(
    api_version: &str,
    kind: &str,
    namespace: Option<&str>,
    name: &str,
    uid: Option<&str>,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        uid: uid.map(str::to_owned),
        ..ObjectReference::default()
    }
}

/// Returns a warning.
pub fn warning(reason: &str, text: String, action: &str) -> Event {
    let (reason, action) = (reason.to_owned(), action.to_owned());
    Event { type_: EventType::Warning, reason, note: Some(note(text)), action, secondary: None }
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

/// Returns the events of the conditions that have changed their status or reason. A cause has an event of its own, so that of
/// `Ready` follows only when all is well. What is not known yet has none, and neither has a policy that its pods are confirming.
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

/// Number of events that are remembered, to recognize repeated ones.
const MAX_REMEMBERED: usize = 4_096;

/// The events that were told last.
#[derive(Debug, Default)]
pub struct Told(Mutex<Remembered>);

#[derive(Debug, Default)]
struct Remembered {
    known: HashSet<EventKey>,
    in_order: VecDeque<EventKey>,
}

/// The UID of the object, the reason and the note of an event.
type EventKey = (Option<String>, String, Option<String>);

impl Told {
    /// Tells an event by `tell` unless it has been told, and remembers it if that succeeds.
    pub fn tell_once(&self, reported: ReportedEvent, tell: impl FnOnce(ReportedEvent) -> bool) {
        let key = key(&reported);
        // No statement that changes the value can panic halfway.
        let mut remembered = lock(&self.0);
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

/// Pause after an event.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for which the same event is not sent again.
const REPEAT_AFTER: Duration = Duration::from_secs(60);
/// Longest time that a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends the events that wait, for as long as the process lives.
pub async fn publish(client: Client, instance: &str, mut waiting: Waiting) {
    let reporter =
        Reporter { controller: "sluice.dev/operator".to_owned(), instance: Some(instance.to_owned()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let mut sent = SentEvents::default();
    while let Some(reported) = waiting.recv().await {
        if sent.is_repeated(&reported, Instant::now()) {
            continue;
        }
        match tokio::time::timeout(TIMEOUT, send(&client, &recorder, &reported)).await {
            Ok(Ok(())) => sent.remember(&reported, Instant::now()),
            Ok(Err(error)) => tracing::warn!("an event could not be written: {}", told(&error)),
            Err(_) => tracing::warn!("an event could not be written: the API server does not respond"),
        }
        tokio::time::sleep(PAUSE).await;
    }
    // Whoever reports events lives as long as the process.
    std::future::pending::<()>().await;
}

async fn send(client: &Client, recorder: &Recorder, reported: &ReportedEvent) -> kube::Result<()> {
    let object = match &reported.regarding {
        Regarding::Object(object) => object.clone(),
        Regarding::ControllerOf(replica_set) => controller(client, replica_set).await?,
    };
    recorder.publish(&reported.event, &object).await
}

/// Returns the controller of a ReplicaSet, or the ReplicaSet if it has none.
async fn controller(client: &Client, replica_set: &ObjectReference) -> kube::Result<ObjectReference> {
    let namespace = replica_set.namespace.as_deref().unwrap_or_default();
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let found = sets.get_opt(replica_set.name.as_deref().unwrap_or_default()).await?;
    let owners = found.and_then(|found| found.metadata.owner_references).unwrap_or_default();
    let owner = owners.iter().find(|owner| owner.controller == Some(true));
    let reference = |owner: &OwnerReference| {
        object(&owner.api_version, &owner.kind, Some(namespace), &owner.name, Some(&owner.uid))
    };
    Ok(owner.map_or_else(|| replica_set.clone(), reference))
}

/// The events that were sent in the last time.
#[derive(Default)]
struct SentEvents(HashMap<EventKey, Instant>);

impl SentEvents {
    /// Reports whether an event was sent a short time ago.
    fn is_repeated(&mut self, reported: &ReportedEvent, now: Instant) -> bool {
        self.0.retain(|_, sent| now < *sent + REPEAT_AFTER);
        self.0.contains_key(&key(reported))
    }

    fn remember(&mut self, reported: &ReportedEvent, now: Instant) {
        if self.0.len() < MAX_REMEMBERED {
            self.0.insert(key(reported), now);
        }
    }
}

fn key(ReportedEvent { regarding, event }: &ReportedEvent) -> EventKey {
    let (Regarding::Object(object) | Regarding::ControllerOf(object)) = regarding;
    (object.uid.clone(), event.reason.clone(), event.note.clone())
}
