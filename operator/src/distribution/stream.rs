//! One sidecar's stream. Changes are debounced; what is sent is the difference to what this stream was sent before,
//! so that there is at most one pending update, however slow the reader. No stream waits for another.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_config::PolicyHash;
use sluice_config::message::{CREDENTIALS_EVENT, Credentials, POLICIES_EVENT, VERSION};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::distribution::Hub;
use crate::metrics::Metrics;

/// Changes that come within this time of each other are one.
const QUIET: Duration = Duration::from_millis(100);
/// However busy, nobody waits longer than this.
const BUSY: Duration = Duration::from_secs(10);
/// A comment at least this often, so that a dead connection is seen.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// A reader that takes nothing for this long is not there.
const STALLED: Duration = Duration::from_secs(30);

/// The other end of a stream.
pub type Sender = mpsc::Sender<Result<Bytes, std::convert::Infallible>>;

/// Feeds a stream until its reader or its pod is gone, or its token ends.
pub async fn feed(
    hub: Arc<Hub>,
    metrics: Arc<Metrics>,
    pod_uid: String,
    last_applied: Option<String>,
    ends: Option<Instant>,
    mut closed: mpsc::Receiver<()>,
    sender: Sender,
) {
    let mut sent = Sent { applied: last_applied, ..Sent::default() };
    let mut version = hub.version();
    let ends = async {
        match ends {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    let work = async {
        loop {
            version.borrow_and_update();
            let Some(events) = sent.next(&hub, &pod_uid) else { return };
            for event in events {
                metrics.event_sent();
                if send(&sender, event).await.is_err() {
                    return;
                }
            }
            loop {
                match tokio::time::timeout(KEEP_ALIVE, version.changed()).await {
                    Ok(Ok(())) => break,
                    Ok(Err(_)) => return,
                    Err(_) => {
                        if send(&sender, Bytes::from_static(b": keep-alive\n\n")).await.is_err() {
                            return;
                        }
                    }
                }
            }
            settle(&mut version).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = ends => {}
        _ = closed.recv() => {}
        () = sender.closed() => {}
    }
}

async fn send(sender: &Sender, event: Bytes) -> Result<(), ()> {
    tokio::time::timeout(STALLED, sender.send(Ok(event))).await.map_err(|_| ())?.map_err(|_| ())
}

/// Waits until nothing has changed for a moment.
async fn settle(version: &mut watch::Receiver<u64>) {
    let latest = Instant::now() + BUSY;
    loop {
        version.borrow_and_update();
        let quiet = (Instant::now() + QUIET).min(latest);
        match tokio::time::timeout_at(quiet, version.changed()).await {
            Ok(Ok(())) if Instant::now() < latest => {}
            _ => return,
        }
    }
}

/// What a stream was sent.
#[derive(Default)]
struct Sent {
    /// The id of the last event that the sidecar said to have applied when it connected.
    applied: Option<String>,
    hashes: Option<BTreeMap<String, PolicyHash>>,
    keep: Vec<String>,
    credentials: Option<Credentials>,
}

impl Sent {
    /// The events that bring the sidecar up to date; nothing if its pod is gone.
    fn next(&mut self, hub: &Hub, pod_uid: &str) -> Option<Vec<Bytes>> {
        let mut events = Vec::new();
        let credentials = Credentials { version: VERSION, store: hub.access() };
        if self.credentials.as_ref() != Some(&credentials) {
            events.push(event(CREDENTIALS_EVENT, None, &credentials));
            self.credentials = Some(credentials);
        }
        let mut all = hub.policies_of(pod_uid)?;
        let hashes: BTreeMap<_, _> =
            all.policies.iter().map(|(uid, p)| (uid.clone(), p.hash.clone())).collect();
        let id = id(&hashes, &all.keep);
        let first_and_known = self.hashes.is_none() && self.applied.as_deref() == Some(&id);
        let unchanged = self.hashes.as_ref() == Some(&hashes) && self.keep == all.keep;
        if !first_and_known && !unchanged {
            if let Some(old) = &self.hashes {
                all.full = false;
                all.policies.retain(|uid, published| old.get(uid) != Some(&published.hash));
                all.removed = old
                    .keys()
                    .filter(|uid| !hashes.contains_key(*uid) && !all.keep.contains(uid))
                    .cloned()
                    .collect();
            }
            events.push(event(POLICIES_EVENT, Some(&id), &all));
        }
        self.keep = all.keep;
        self.hashes = Some(hashes);
        Some(events)
    }
}

/// Stands for everything that a stream was sent: equal maps have equal ids, whichever replica sends them.
fn id(hashes: &BTreeMap<String, PolicyHash>, keep: &[String]) -> String {
    let mut text = String::new();
    for (uid, hash) in hashes {
        let _ = writeln!(text, "{uid} {hash}");
    }
    for uid in keep {
        let _ = writeln!(text, "{uid} keep");
    }
    PolicyHash::of(&text).to_string()
}

fn event<T: serde::Serialize>(name: &str, id: Option<&str>, data: &T) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    // JSON has no line breaks: one data line is the whole event.
    let data = serde_json::to_string(data).unwrap_or_default();
    Bytes::from(format!("event: {name}\n{id}data: {data}\n\n"))
}
