use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use kube::core::{Expression, Selector};
use serde_json::{Value, json};
use sluice_config::message::VERSION;
use sluice_config::policy::Mode;
use sluice_config::store_access::StoreAccess;
use sluice_config::{CompiledPolicy, KeySecret};
use sluice_store::RedisOptions;
use sluice_store::redis::Secret;
use sluice_store::redis::admin::ManagedUser;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

use super::*;
use crate::distribution::fixtures::{POD_UID, hub, identity, publish, shared, strict};
use crate::distribution::publication::Places;
use crate::distribution::stores::{HubStores, ManagedSource, StoreSource};
use crate::names::{PodSelector, StoreKey};

/// The events of a session, without comments.
struct Reader {
    stream: DuplexStream,
    text: String,
}

impl Reader {
    /// Returns the next event or comment.
    async fn next_text(&mut self) -> String {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                return self.text.drain(..end + 2).collect();
            }
            let mut chunk = [0; 1024];
            let read = self.stream.read(&mut chunk).await.unwrap();
            assert!(read > 0, "the session has ended");
            self.text.push_str(std::str::from_utf8(&chunk[..read]).unwrap());
        }
    }

    /// Returns the name and the message of the next event.
    async fn next(&mut self) -> (String, Value) {
        // Time is paused, so it advances only while every task waits.
        let late = Instant::now() + Duration::from_secs(600);
        loop {
            assert!(Instant::now() < late, "no event");
            let text = self.next_text().await;
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
            if let (Some(kind), Some(data)) = (field("event: "), field("data: ")) {
                return (kind.to_owned(), serde_json::from_str(data).unwrap());
            }
        }
    }
}

/// Begins the session of a pod.
fn begin(hub: &Arc<Hub>) -> Reader {
    let closed = hub.connect(identity(&[]), "s");
    let (stream, mut writer) = duplex(1 << 20);
    let hub = hub.clone();
    tokio::spawn(async move {
        send_changes(&hub, &Metrics::default(), POD_UID, None, None, closed, &mut writer).await;
    });
    Reader { stream, text: String::new() }
}

fn publish_to_all(hub: &Hub, uid: &str, policy: &CompiledPolicy) {
    publish(hub, uid, PodSelector::all(), policy);
}

/// Sets the replicas of a policy: the pod itself and others, `count` in all.
fn set_replicas(hub: &Arc<Hub>, uid: &str, selector: &PodSelector, count: usize) {
    let others: Vec<_> = (1..count).map(|n| format!("zz-{n:04}")).collect();
    let pods: Vec<_> = others.iter().map(String::as_str).chain([POD_UID]).collect();
    hub.set_replicas(uid, selector, &Places::of(pods));
}

fn uids(message: &Value) -> String {
    message["policies"].as_object().unwrap().keys().cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn replicas_are_sent_before_policies_and_seldom_for_many_changes() {
    let hub = hub();
    publish_to_all(&hub, "1", &shared());
    let set = |count| set_replicas(&hub, "1", &PodSelector::all(), count);
    set(2);
    let mut reader = begin(&hub);
    let live = |index: u32, count: u32| {
        ("live".to_owned(), json!({"version": VERSION, "policies": {"1": {"index": index, "count": count}}}))
    };
    assert_eq!(reader.next().await, live(0, 2));
    assert_eq!(reader.next().await.0, "credentials");
    assert_eq!(reader.next().await.0, "policies");
    // A rollout of hundreds of pods, one after another.
    for count in 3..400 {
        set(count);
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    let mut messages = 1;
    while reader.next().await != live(0, 399) {
        messages += 1;
    }
    assert_eq!(messages, 2, "one at once, and one for all that followed within a second");
    // The policies are not sent again for that, and an edit does not send the replicas again.
    publish_to_all(&hub, "1", &CompiledPolicy { mode: Mode::Shadow, ..shared() });
    assert_eq!(reader.next().await.0, "policies");
    hub.set_replicas("1", &PodSelector::all(), &Places::of(["another"]));
    assert_eq!(reader.next().await, live(1, 2), "the pod has a session and is counted in addition");
}

#[tokio::test(start_paused = true)]
async fn a_few_pods_among_a_thousand_are_told_with_those_of_the_next_seconds() {
    let hub = hub();
    publish_to_all(&hub, "1", &shared());
    let set = |count| set_replicas(&hub, "1", &PodSelector::all(), count);
    set(1_000);
    let mut reader = begin(&hub);
    while reader.next().await.0 != "policies" {}
    let count = |(_, message): (String, Value)| message["policies"]["1"]["count"].as_u64().unwrap();
    let mut next_count = async || loop {
        let event = reader.next().await;
        if event.0 == "live" {
            return count(event);
        }
    };
    tokio::time::sleep(Duration::from_secs(60)).await;
    let start = Instant::now();
    for more in 1..=3 {
        set(1_000 + more);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(next_count().await, 1_003);
    assert!(start.elapsed() >= Duration::from_secs(30), "{:?}", start.elapsed());
    // Others that matter take them along.
    for (count, seconds) in [(1_004, 30), (1_100, 2), (1_000, 2)] {
        let start = Instant::now();
        set(count);
        assert_eq!(next_count().await, count as u64);
        assert!(start.elapsed() <= Duration::from_secs(seconds + 1), "{count}: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_is_sent_when_its_replicas_are_known() {
    let hub = hub();
    publish_to_all(&hub, "1", &shared());
    publish_to_all(&hub, "2", &strict());
    // As after a start of the operator: the session begins before the replicas have been counted.
    let mut reader = begin(&hub);
    assert_eq!(reader.next().await.0, "credentials");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!hub.is_counted("1"));
    set_replicas(&hub, "1", &PodSelector::all(), 2);
    assert!(hub.is_counted("1"));
    assert_eq!(reader.next().await.0, "live");
    let (kind, all) = reader.next().await;
    assert_eq!((kind.as_str(), &all["full"], uids(&all)), ("policies", &true.into(), "12".into()));
    // A new policy is held back alone, and its replicas are sent before it.
    publish_to_all(&hub, "3", &shared());
    publish_to_all(&hub, "2", &CompiledPolicy { mode: Mode::Shadow, ..strict() });
    let (kind, delta) = reader.next().await;
    assert_eq!((kind.as_str(), &delta["full"], uids(&delta)), ("policies", &false.into(), "2".into()));
    set_replicas(&hub, "3", &PodSelector::all(), 2);
    assert_eq!(reader.next().await.0, "live");
    let (kind, delta) = reader.next().await;
    assert_eq!((kind.as_str(), uids(&delta)), ("policies", "3".into()));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_changes_do_not_concern_still_receives_comments() {
    // A sidecar takes a session for dead that is silent for 30 s, and a comment comes in half of it. The second interval is too short
    // for changes to settle.
    for interval in [Duration::from_millis(1600), Duration::from_millis(50)] {
        let hub = hub();
        publish_to_all(&hub, "1", &shared());
        set_replicas(&hub, "1", &PodSelector::all(), 1);
        let mut reader = begin(&hub);
        while reader.next().await.0 != "policies" {}
        let publishing = hub.clone();
        let edits = tokio::spawn(async move {
            for edit in 0.. {
                let mode = if edit % 2 == 0 { Mode::Shadow } else { Mode::Enforce };
                let policy = CompiledPolicy { mode, ..strict() };
                publish(&publishing, "2", PodSelector::NONE, &policy);
                tokio::time::sleep(interval).await;
            }
        });
        for _ in 0..6 {
            let received = tokio::time::timeout(Duration::from_secs(31), reader.next_text()).await;
            assert_eq!(received.expect("the session is silent"), ": keep-alive\n\n");
        }
        edits.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_policies_are_not_held_back_by_one_new_policy_after_another() {
    let hub = hub();
    publish_to_all(&hub, "0", &shared());
    let publishing = hub.clone();
    tokio::spawn(async move {
        for uid in 1..60 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            publish_to_all(&publishing, &uid.to_string(), &shared());
        }
    });
    let (start, mut reader) = (Instant::now(), begin(&hub));
    assert_eq!(reader.next().await.0, "credentials");
    let (kind, all) = reader.next().await;
    assert_eq!((kind.as_str(), &all["full"]), ("policies", &true.into()));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(all["policies"].get("0").is_some(), "{all}");
    assert!(all["keep"].as_array().is_some_and(|keep| keep.contains(&"4".into())), "{all}");
}

#[tokio::test(start_paused = true)]
async fn a_hold_ends_without_replicas_and_a_held_edit_removes_nothing() {
    let hub = hub();
    let start = Instant::now();
    publish_to_all(&hub, "1", &shared());
    let mut reader = begin(&hub);
    assert_eq!(reader.next().await.0, "credentials");
    assert_eq!(reader.next().await.0, "policies");
    // The replicas were never counted. The hold ended before a sidecar would forward requests without limits.
    let held = start.elapsed();
    assert!(held >= Duration::from_secs(2) && held < Duration::from_secs(10), "{held:?}");
    set_replicas(&hub, "1", &PodSelector::all(), 2);
    assert_eq!(reader.next().await.0, "live");
    // With another selector, the replicas are unknown. The sidecar keeps its version until they are counted.
    let other: PodSelector =
        [Expression::DoesNotExist("app".into())].into_iter().collect::<Selector>().into();
    publish(&hub, "1", other.clone(), &CompiledPolicy { mode: Mode::Shadow, ..shared() });
    // Time is paused, so the session has processed the edit when this ends.
    tokio::time::sleep(Duration::from_secs(1)).await;
    set_replicas(&hub, "1", &other, 3);
    assert_eq!(reader.next().await.0, "live", "neither a policy nor a removal is sent before");
    let (kind, delta) = reader.next().await;
    assert_eq!((kind.as_str(), &delta["removed"]), ("policies", &json!([])));
    assert_eq!(delta["policies"]["1"]["policy"]["mode"], "Shadow");
}

#[tokio::test(start_paused = true)]
async fn only_a_pod_that_a_policy_selects_may_reach_the_store() {
    let hub = hub();
    hub.set_stores(HubStores { default: StoreSource::Memory, ..HubStores::default() });
    let mut reader = begin(&hub);
    assert_eq!(reader.next().await, ("credentials".into(), json!({"version": VERSION, "stores": {}})));
    assert_eq!(reader.next().await.0, "policies");
    publish_to_all(&hub, "1", &strict());
    let access = json!({"version": VERSION, "stores": {"default": "memory"}});
    assert_eq!(reader.next().await, ("credentials".into(), access));
    assert_eq!(reader.next().await.0, "policies");
    // A policy that moves to another store keeps the old one until it has moved.
    publish_to_all(&hub, "1", &CompiledPolicy { store: "other".into(), ..strict() });
    let both = json!({"version": VERSION, "stores": {"default": "memory", "other": "unconfigured"}});
    assert_eq!(reader.next().await, ("credentials".into(), both));
    assert_eq!(reader.next().await.0, "policies");
    let other = json!({"version": VERSION, "stores": {"other": "unconfigured"}});
    assert_eq!(reader.next().await, ("credentials".into(), other));
    // A pod that is no longer selected loses its access, after its last policy.
    hub.remove("1");
    let (kind, removed) = reader.next().await;
    assert_eq!((kind.as_str(), &removed["removed"]), ("policies", &json!(["1"])));
    assert_eq!(reader.next().await.1["stores"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_labelled_to_have_no_sidecar_keeps_the_session_of_the_one_that_runs() {
    let hub = hub();
    let mut reader = begin(&hub);
    assert_eq!(reader.next().await.0, "credentials");
    hub.set_pod_labels(
        POD_UID,
        &Arc::new([(sluice_crds::INJECT_LABEL.to_owned(), "false".to_owned())].into()),
    );
    publish_to_all(&hub, "1", &strict());
    assert_eq!(reader.next().await.0, "policies");
    assert_eq!(hub.session_count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_policy_waits_until_the_store_has_its_namespaces_user() {
    let hub = hub();
    let access = StoreAccess {
        redis: RedisOptions::from_url("redis://a").unwrap(),
        key_secret: KeySecret::new([0; 16]),
    };
    let stores = |users| HubStores {
        default: StoreSource::Managed(Box::new(ManagedSource { access: access.clone(), users })),
        ..HubStores::default()
    };
    hub.set_stores(stores(BTreeMap::new()));
    let mut reader = begin(&hub);
    assert_eq!(reader.next().await.1["stores"], json!({}));
    assert_eq!(reader.next().await.0, "policies");
    publish_to_all(&hub, "1", &strict());
    assert_eq!(reader.next().await.1["stores"]["default"], "unconfigured");
    // Time is paused, so the session has held the policy back when this ends.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let user = ManagedUser { namespace: "n".into(), passwords: vec![Secret::new("p")] };
    hub.set_stores(stores(BTreeMap::from([("n".to_owned(), user)])));
    let (kind, message) = reader.next().await;
    assert_eq!(
        (kind.as_str(), &message["stores"]["default"]["access"]["redis"]["username"]),
        ("credentials", &"sluice:@n".into())
    );
    let (kind, message) = reader.next().await;
    assert_eq!((kind.as_str(), message["policies"].get("1").is_some()), ("policies", true));
    // A store that is never ready does not hold a policy for ever.
    hub.set_stores(stores(BTreeMap::new()));
    assert_eq!(reader.next().await.1["stores"]["default"], "unconfigured");
    publish_to_all(&hub, "2", &strict());
    let start = Instant::now();
    assert_eq!(reader.next().await.0, "policies");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_sidecar_keeps_a_store_that_a_new_leader_cannot_resolve() {
    let hub = hub();
    let unresolved = [StoreKey::new("n", "other")].into();
    hub.set_stores(HubStores { unresolved, ..HubStores::default() });
    publish_to_all(&hub, "1", &CompiledPolicy { store: "other".into(), ..strict() });
    let mut reader = begin(&hub);
    let kept = json!({"version": VERSION, "stores": {}, "keep": ["other"]});
    assert_eq!(reader.next().await, ("credentials".into(), kept));
    assert_eq!(reader.next().await.0, "policies");
    let named = [(StoreKey::new("n", "other"), StoreSource::Memory)].into();
    hub.set_stores(HubStores { named, ..HubStores::default() });
    assert_eq!(reader.next().await.1, json!({"version": VERSION, "stores": {"other": "memory"}}));
}

/// The connection to a reader that takes nothing, not even the end of TLS.
struct Stuck;

impl AsyncWrite for Stuck {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_session_does_not_wait_for_a_reader_that_takes_nothing() {
    for refused in [None, Some("a report is not valid")] {
        let mut stuck = Stuck;
        let closing = tokio::time::timeout(Duration::from_secs(60), close(&mut stuck, refused));
        closing.await.expect("it has ended");
    }
}
