//! One sidecar's stream. Changes are debounced; what is sent is the difference to what this stream was sent before,
//! so that there is at most one pending update, however slow the reader. No stream waits for another.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sluice_config::PolicyHash;
use sluice_config::message::{
    CREDENTIALS_EVENT, Credentials, LIVE_EVENT, LiveReplicas, POLICIES_EVENT, Replica, VERSION,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use crate::distribution::Hub;
use crate::distribution::sharing::HOLD;
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
                match tokio::time::timeout(KEEP_ALIVE, due(&mut version, &live, sent.held_until)).await {
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

/// The same, or waits until policies need not be held back any longer.
async fn due(version: &mut watch::Receiver<u64>, live: &Notify, held_until: Option<Instant>) -> bool {
    let changed = changed(version, live);
    match held_until {
        Some(until) => tokio::time::timeout_at(until, changed).await.unwrap_or(true),
        None => changed.await,
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
    live: BTreeMap<String, Replica>,
    /// When the first of the policies that are held back need not be any longer.
    held_until: Option<Instant>,
    /// Until when the first map is held back, if it is.
    first_until: Option<Instant>,
}

impl Sent {
    /// The events that bring the sidecar up to date; nothing if its pod is gone. Without `policies` nothing but who shares
    /// them can have changed.
    ///
    /// A policy is said after who shares it, and held back while it matters and is not known yet, but for some seconds at
    /// most: then it is said all the same, and a sidecar that has never heard of others takes itself to be alone. A
    /// stream's first map is held back as a whole: a new pod must not begin without what is still to come.
    fn next(&mut self, hub: &Hub, pod_uid: &str, policies: bool) -> Option<Vec<Bytes>> {
        let mut events = Vec::new();
        let due = hub.due(pod_uid, policies || self.held_until.is_some())?;
        if self.live != due.live {
            self.live.clone_from(&due.live);
            events.push(event(LIVE_EVENT, None, &LiveReplicas { version: VERSION, policies: due.live }));
        }
        let Some(mut all) = due.policies else { return Some(events) };
        self.held_until = due.held_until;
        let credentials = Credentials { version: VERSION, store: hub.access() };
        if self.credentials.as_ref() != Some(&credentials) {
            events.push(event(CREDENTIALS_EVENT, None, &credentials));
            self.credentials = Some(credentials);
        }
        let mut hashes: BTreeMap<_, _> =
            all.policies.iter().map(|(uid, p)| (uid.clone(), p.hash.clone())).collect();
        match &self.hashes {
            // What the sidecar has of those it keeps.
            Some(old) => hashes.extend(
                due.held
                    .iter()
                    .filter_map(|uid| old.get_key_value(uid))
                    .map(|(uid, hash)| (uid.clone(), hash.clone())),
            ),
            None if due.held.is_empty() => {}
            None => {
                let now = Instant::now();
                let until = *self.first_until.get_or_insert(now + HOLD);
                if now < until {
                    self.held_until = self.held_until.map(|held| held.min(until));
                    return Some(events);
                }
                // One new policy after another: the others do not wait for ever.
                all.keep.extend(due.held);
            }
        }
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
    use kube::core::{Expression, Selector};
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
            let late = Instant::now() + Duration::from_secs(600);
            loop {
                // The clock stands still but for this: nothing is slow.
                assert!(Instant::now() < late, "no event");
                let Some(Ok(bytes)) = self.0.recv().await else { panic!("the stream has ended") };
                let text = String::from_utf8(bytes.to_vec()).unwrap();
                let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
                if let (Some(kind), Some(data)) = (field("event: "), field("data: ")) {
                    return (kind.to_owned(), serde_json::from_str(data).unwrap());
                }
            }
        }
    }

    /// The stream of a pod.
    fn read(hub: &Arc<Hub>) -> Reader {
        let identity = Identity {
            namespace: "n".into(),
            pod: "pod".into(),
            pod_uid: "pod-0001".into(),
            labels: BTreeMap::new(),
            expires: None,
        };
        let closed = hub.connect(identity, "s");
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(feed(hub.clone(), Arc::default(), "pod-0001".into(), None, None, closed, sender));
        Reader(receiver)
    }

    fn names(pods: usize) -> Vec<String> {
        (0..pods).map(|n| format!("pod-{n:04}")).collect()
    }

    fn key() -> PolicyKey {
        PolicyKey { namespace: "n".into(), name: "p".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn who_shares_a_policy_is_said_before_it_and_once_for_many_changes() {
        let hub = Arc::new(Hub::new(Arc::default()));
        hub.publish("1", &key(), Some((Selector::default(), &POLICY)));
        let set = |pods| hub.set_sharers("1", &Selector::default(), names(pods));
        set(2);
        let mut reader = read(&hub);
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
        hub.publish("1", &key(), Some((Selector::default(), &edited)));
        assert_eq!(reader.next().await.0, "policies");
        set(1);
        assert_eq!(reader.next().await, ("live".into(), live(1, 2)), "it has a stream: it is one more");
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_waits_until_it_is_known_who_shares_it() {
        let hub = Arc::new(Hub::new(Arc::default()));
        let publish = |uid: &str, policy: &CompiledPolicy| {
            hub.publish(uid, &key(), Some((Selector::default(), policy)));
        };
        let strict = CompiledPolicy { on_store_failure: OnStoreFailure::Allow, ..POLICY };
        publish("1", &POLICY);
        publish("2", &strict);
        // As after the operator's start: a sidecar comes before anybody has looked.
        let mut reader = read(&hub);
        assert_eq!(reader.next().await.0, "credentials");
        tokio::time::sleep(Duration::from_secs(1)).await;
        hub.set_sharers("1", &Selector::default(), names(2));
        assert_eq!(reader.next().await.0, "live");
        let (kind, all) = reader.next().await;
        let uids = |message: &serde_json::Value| {
            message["policies"].as_object().unwrap().keys().cloned().collect::<String>()
        };
        assert_eq!((kind.as_str(), &all["full"], uids(&all)), ("policies", &true.into(), "12".into()));
        // A new one waits alone, and whoever shares it is said first.
        publish("3", &POLICY);
        publish("2", &CompiledPolicy { mode: Mode::Shadow, ..strict });
        let (kind, delta) = reader.next().await;
        assert_eq!((kind.as_str(), &delta["full"], uids(&delta)), ("policies", &false.into(), "2".into()));
        hub.set_sharers("3", &Selector::default(), names(2));
        assert_eq!(reader.next().await.0, "live");
        let (kind, delta) = reader.next().await;
        assert_eq!((kind.as_str(), uids(&delta)), ("policies", "3".into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_first_map_does_not_wait_for_one_new_policy_after_another() {
        let hub = Arc::new(Hub::new(Arc::default()));
        hub.publish("0", &key(), Some((Selector::default(), &POLICY)));
        let publishing = hub.clone();
        tokio::spawn(async move {
            for uid in 1..60 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                publishing.publish(&uid.to_string(), &key(), Some((Selector::default(), &POLICY)));
            }
        });
        let (begin, mut reader) = (Instant::now(), read(&hub));
        assert_eq!(reader.next().await.0, "credentials");
        let (kind, all) = reader.next().await;
        assert_eq!((kind.as_str(), &all["full"]), ("policies", &true.into()));
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        assert!(all["policies"].get("0").is_some(), "{all}");
        assert!(all["keep"].as_array().is_some_and(|keep| keep.contains(&"4".into())), "{all}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_policy_does_not_wait_for_ever_and_an_edit_that_waits_takes_nothing_away() {
        let hub = Arc::new(Hub::new(Arc::default()));
        let publish = |selector: Selector, policy: &CompiledPolicy| {
            hub.publish("1", &key(), Some((selector, policy)));
        };
        let begin = Instant::now();
        publish(Selector::default(), &POLICY);
        let mut reader = read(&hub);
        assert_eq!(reader.next().await.0, "credentials");
        assert_eq!(reader.next().await.0, "policies");
        // Nobody has looked: seconds, and less than a sidecar waits before it forwards without limits.
        let waited = begin.elapsed();
        assert!(waited >= Duration::from_secs(2) && waited < Duration::from_secs(10), "{waited:?}");
        hub.set_sharers("1", &Selector::default(), names(2));
        assert_eq!(reader.next().await.0, "live");
        // Another selector, and so others may share it: what is in force stays until that is known.
        let other: Selector = [Expression::DoesNotExist("app".into())].into_iter().collect();
        publish(other.clone(), &CompiledPolicy { mode: Mode::Shadow, ..POLICY });
        // The clock stands still but for this: the stream has had its turn when it is over.
        tokio::time::sleep(Duration::from_secs(1)).await;
        hub.set_sharers("1", &other, names(3));
        assert_eq!(reader.next().await.0, "live", "nothing before it, no removal either");
        let (kind, delta) = reader.next().await;
        assert_eq!((kind.as_str(), &delta["removed"]), ("policies", &serde_json::json!([])));
        assert_eq!(delta["policies"]["1"]["policy"]["mode"], "Shadow");
    }
}
