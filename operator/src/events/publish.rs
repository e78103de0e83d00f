//! Sends events to the API server, slowly: each is a request, and a rollout can have one for each of its pods.

use std::collections::HashMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Recorder, Reporter};
use kube::{Api, Client};
use sluice_host::logging::told;
use tokio::time::Instant;

use super::pods::reference;
use super::{Regarding, Reported, Waiting};

/// Pause after an event.
const PAUSE: Duration = Duration::from_millis(100);
/// Time for which the same event is not sent again.
const REPEAT_AFTER: Duration = Duration::from_secs(60);
/// Number of events that are remembered, to recognize repeated ones.
const MAX_REMEMBERED: usize = 4_096;
/// Longest time that a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends the events that wait, for as long as the process lives.
pub async fn publish(client: Client, instance: &str, mut waiting: Waiting) {
    let reporter =
        Reporter { controller: "sluice.dev/operator".to_owned(), instance: Some(instance.to_owned()) };
    let recorder = Recorder::new(client.clone(), reporter);
    let mut sent = Sent::default();
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

async fn send(client: &Client, recorder: &Recorder, reported: &Reported) -> kube::Result<()> {
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
    Ok(owner.map_or_else(|| replica_set.clone(), |owner| reference(owner, namespace)))
}

/// The events that were sent in the last time.
#[derive(Default)]
struct Sent(HashMap<SentKey, Instant>);

/// The object, the reason and the note of an event.
type SentKey = (Option<String>, String, Option<String>);

impl Sent {
    /// Reports whether an event was sent a short time ago.
    fn is_repeated(&mut self, reported: &Reported, now: Instant) -> bool {
        self.0.retain(|_, sent| now < *sent + REPEAT_AFTER);
        self.0.contains_key(&key(reported))
    }

    fn remember(&mut self, reported: &Reported, now: Instant) {
        if self.0.len() < MAX_REMEMBERED {
            self.0.insert(key(reported), now);
        }
    }
}

fn key(Reported { regarding, event }: &Reported) -> SentKey {
    let (Regarding::Object(object) | Regarding::ControllerOf(object)) = regarding;
    (object.uid.clone(), event.reason.clone(), event.note.clone())
}

#[cfg(test)]
mod tests {
    use kube::runtime::events::{Event, EventType};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_event_is_not_repeated_for_a_minute() {
        let reported = |uid: &str, note: &str| Reported {
            regarding: Regarding::Object(ObjectReference {
                uid: Some(uid.into()),
                ..ObjectReference::default()
            }),
            event: Event {
                type_: EventType::Warning,
                reason: "NotInjected".into(),
                note: Some(note.into()),
                action: "Inject".into(),
                secondary: None,
            },
        };
        let mut sent = Sent::default();
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
}
