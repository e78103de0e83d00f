//! One sidecar's stream. Changes are debounced; what is sent is the difference to what this stream was sent before,
//! so that there is at most one pending update, however slow the reader. No stream waits for another.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_config::PolicyHash;
use sluice_config::message::{
    CREDENTIALS_EVENT, Credentials, LIVE_EVENT, Live, POLICIES_EVENT, Sharing, VERSION,
};
use tokio::sync::{Notify, mpsc, watch};
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
    let Some(live) = hub.live_changes(&pod_uid) else { return };
    let ends = async {
        match ends {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    };
    let work = async {
        let mut newest = None;
        loop {
            let now = *version.borrow_and_update();
            let policies = newest.replace(now) != Some(now);
            let Some(events) = sent.next(&hub, &pod_uid, policies) else { return };
            for event in events {
                metrics.event_sent();
                if send(&sender, event).await.is_err() {
                    return;
                }
            }
            loop {
                match tokio::time::timeout(KEEP_ALIVE, changed(&mut version, &live)).await {
                    Ok(true) => break,
                    Ok(false) => return,
                    Err(_) => {
                        if send(&sender, Bytes::from_static(b": keep-alive\n\n")).await.is_err() {
                            return;
                        }
                    }
                }
            }
            settle(&mut version, &live).await;
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

/// Waits for a change; false: there will be none.
async fn changed(version: &mut watch::Receiver<u64>, live: &Notify) -> bool {
    tokio::select! {
        changed = version.changed() => changed.is_ok(),
        () = live.notified() => true,
    }
}

/// Waits until nothing has changed for a moment.
async fn settle(version: &mut watch::Receiver<u64>, live: &Notify) {
    let latest = Instant::now() + BUSY;
    loop {
        let quiet = (Instant::now() + QUIET).min(latest);
        match tokio::time::timeout_at(quiet, changed(version, live)).await {
            Ok(true) if Instant::now() < latest => {}
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
    live: BTreeMap<String, Sharing>,
}

impl Sent {
    /// The events that bring the sidecar up to date; nothing if its pod is gone. Without `policies` nothing but who shares
    /// them can have changed.
    fn next(&mut self, hub: &Hub, pod_uid: &str, policies: bool) -> Option<Vec<Bytes>> {
        let mut events = Vec::new();
        // Before the policies: none is in force before it is known who shares it.
        let live = hub.live_of(pod_uid)?;
        if self.live != live {
            self.live.clone_from(&live);
            events.push(event(LIVE_EVENT, None, &Live { version: VERSION, policies: live }));
        }
        if !policies {
            return Some(events);
        }
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

#[cfg(test)]
mod tests {
    use kube::core::Selector;
    use sluice_config::CompiledPolicy;
    use sluice_config::policy::{Consistency, Mode, OnStoreFailure};

    use super::*;
    use crate::distribution::identity::Identity;
    use crate::policy::queue::PolicyKey;

    const POLICY: CompiledPolicy = CompiledPolicy {
        namespace: String::new(),
        name: String::new(),
        mode: Mode::Enforce,
        on_store_failure: OnStoreFailure::Share,
        consistency: Consistency::Strict,
        client_address: None,
        limits: Vec::new(),
    };

    /// A stream's events, without comments.
    struct Reader(mpsc::Receiver<Result<Bytes, std::convert::Infallible>>);

    impl Reader {
        async fn next(&mut self) -> (String, serde_json::Value) {
            loop {
                let Some(Ok(bytes)) = self.0.recv().await else { panic!("the stream has ended") };
                let text = String::from_utf8(bytes.to_vec()).unwrap();
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(kind), Some(data)) = (field("event: "), field("data: ")) {
                    return (kind.to_owned(), serde_json::from_str(data).unwrap());
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_shares_a_policy_is_said_before_it_and_once_for_many_changes() {
        let hub = Arc::new(Hub::new(Arc::default()));
        let key = PolicyKey { namespace: "n".into(), name: "p".into() };
        hub.publish("1", &key, Some((Selector::default(), &POLICY)));
        let set = |pods: usize| hub.set_sharers("1", (0..pods).map(|n| format!("pod-{n:04}")).collect());
        set(2);
        let identity = Identity {
            namespace: "n".into(),
            pod: "pod".into(),
            pod_uid: "pod-0001".into(),
            labels: BTreeMap::new(),
            expires: None,
        };
        let closed = hub.connect(identity, "s");
        let (sender, receiver) = mpsc::channel(1);
        let metrics = Arc::new(Metrics::default());
        tokio::spawn(feed(hub.clone(), metrics, "pod-0001".into(), None, None, closed, sender));
        let mut reader = Reader(receiver);
        let live = |index: u32, count: u32| serde_json::json!({"version": 1, "policies": {"1": {"index": index, "count": count}}});
        assert_eq!(reader.next().await, ("live".into(), live(1, 2)));
        assert_eq!(reader.next().await.0, "credentials");
        assert_eq!(reader.next().await.0, "policies");
        // A roll-out of hundreds of pods, one after another.
        for pods in 3..400 {
            set(pods);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!(reader.next().await, ("live".into(), live(1, 399)));
        // Policies are not said again for that, and an edit does not say again who shares it.
        let edited = CompiledPolicy { mode: Mode::Shadow, ..POLICY };
        hub.publish("1", &key, Some((Selector::default(), &edited)));
        assert_eq!(reader.next().await.0, "policies");
        set(1);
        assert_eq!(reader.next().await, ("live".into(), live(1, 2)), "it has a stream: it is one more");
    }
}
