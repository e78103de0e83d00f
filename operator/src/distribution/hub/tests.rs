use std::time::Duration;

use futures::FutureExt as _;
use sluice_config::message::{PolicyFindings, PolicyReport, PublishedPolicy, Report, StoreReport, VERSION};
use sluice_config::policy::DEFAULT_STORE;
use sluice_config::{CompiledPolicy, PolicyHash};

use super::*;
use crate::distribution::fixtures::{
    POD_UID, hub, identity, key, policies, publication, publish, selector, shared, strict,
};
use crate::distribution::publication::{Places, PublishedEdit};
use crate::distribution::session::{Confirmation, EXPIRY};
use crate::distribution::stores::StoreSource;
use crate::names::StoreKey;

mod resets;
mod shadow;

/// Returns what the pod has confirmed of the policy `1`.
fn confirmation(hub: &Hub, hash: &PolicyHash) -> Confirmation {
    hub.reported([POD_UID].into_iter(), "1", hash, ("n", DEFAULT_STORE)).remove(0).confirmation
}

/// Publishes a policy for pods labelled `app: a` and returns its hash.
fn publish_one(hub: &Hub) -> PolicyHash {
    publish(hub, "1", selector("a"), &strict());
    PolicyHash::of(&strict().to_json())
}

fn applied(hash: &PolicyHash) -> Report {
    Report {
        unreachable: Vec::new(),
        version: VERSION,
        policies: [(
            "1".into(),
            PolicyReport::Applied { hash: hash.clone(), findings: PolicyFindings::NOTHING },
        )]
        .into(),
        stores: [(DEFAULT_STORE.into(), StoreReport::HEALTHY)].into(),
        shadow_denied: [].into(),
        resets: [].into(),
    }
}

#[tokio::test]
async fn a_pod_receives_only_the_policies_that_select_it() {
    let hub = hub();
    publish(&hub, "1", selector("a"), &strict());
    publish(&hub, "2", selector("b"), &strict());
    hub.publish("3", &key("other"), publication(selector("a"), &strict()));
    let _closed = hub.connect(identity(&[("app", "a")]), "s");
    let uids = || policies(&hub).map(|all| all.policies.into_keys().collect::<Vec<_>>());
    assert_eq!(uids(), Some(vec!["1".to_owned()]));
    hub.set_pod_labels(POD_UID, &Arc::new([("app".to_owned(), "b".to_owned())].into()));
    assert_eq!(uids(), Some(vec!["2".to_owned()]));
    hub.remove("2");
    assert_eq!(uids(), Some(vec![]));
    hub.remove_pod(POD_UID);
    assert_eq!(uids(), None);
}

#[tokio::test(start_paused = true)]
async fn publishing_the_same_edit_again_changes_nothing() {
    let hub = hub();
    let edit = || publication(selector("a"), &strict());
    let published_at = hub.publish("1", &key("n"), edit());
    let mut version = hub.version.subscribe();
    version.mark_unchanged();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(hub.publish("1", &key("n"), edit()), published_at);
    hub.keep_published("1", &key("n"));
    hub.keep_published("1", &key("n"));
    assert!(!version.has_changed().unwrap());
    assert_eq!(hub.publish("1", &key("n"), edit()), published_at, "the edit before the invalid one is back");
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_counts_for_its_hash_and_expires_after_its_session() {
    let hub = hub();
    let hash = publish_one(&hub);
    assert_eq!(confirmation(&hub, &hash), Confirmation::NotConnected);
    let _closed = hub.connect(identity(&[("app", "a")]), "s");
    assert_eq!(confirmation(&hub, &hash), Confirmation::AwaitsReport);
    assert!(!hub.report("guess", applied(&hash)));
    assert!(hub.report("s", applied(&hash)));
    assert_eq!(confirmation(&hub, &hash), Confirmation::Applied);
    assert_eq!(confirmation(&hub, &PolicyHash::of("another")), Confirmation::Unconfirmed);
    hub.disconnect(POD_UID, "s");
    tokio::time::advance(EXPIRY - Duration::from_secs(1)).await;
    assert_eq!(confirmation(&hub, &hash), Confirmation::Applied);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(confirmation(&hub, &hash), Confirmation::NotConnected);
}

#[tokio::test(start_paused = true)]
async fn a_new_session_must_report_before_the_reports_of_the_old_one_expire() {
    let hub = hub();
    let hash = publish_one(&hub);
    let _first = hub.connect(identity(&[("app", "a")]), "s");
    hub.report("s", applied(&hash));
    drop(hub.queue.next().await);
    let mut first = hub.connect(identity(&[("app", "a")]), "t");
    hub.disconnect(POD_UID, "s");
    assert_eq!(confirmation(&hub, &hash), Confirmation::Applied);
    // The policy is queued when the reports expire, so that its status is written again.
    assert_eq!(hub.queue.next().await.key(), &key("n"));
    assert_eq!(confirmation(&hub, &hash), Confirmation::NotConnected);
    assert!(first.try_recv().is_err());
}

#[tokio::test]
async fn an_invalid_edit_keeps_the_last_valid_one() {
    let hub = hub();
    let _closed = hub.connect(identity(&[("app", "a")]), "s");
    publish_one(&hub);
    hub.keep_published("1", &key("n"));
    assert!(policies(&hub).unwrap().policies.contains_key("1"));
    hub.keep_published("2", &key("n"));
    assert_eq!(policies(&hub).unwrap().keep, ["2"]);
}

#[tokio::test]
async fn sessions_wait_for_all_policies_for_access_to_the_store_and_for_the_mode_of_the_installation() {
    let hub = hub();
    let is_open = async || tokio::time::timeout(Duration::ZERO, hub.opened()).await.is_ok();
    assert!(!is_open().await);
    hub.open();
    assert!(!is_open().await);
    hub.set_stores(HubStores::default());
    assert!(!is_open().await);
    hub.set_mode(Mode::Enforce);
    assert!(is_open().await);
}

#[tokio::test(start_paused = true)]
async fn every_policy_is_published_in_shadow_mode_while_the_installation_is() {
    let hub = hub();
    let _closed = hub.connect(identity(&[("app", "a")]), "s");
    let hash = publish_one(&hub);
    // Its last edit is invalid, and sidecars keep the one before.
    publish(&hub, "2", selector("a"), &shared());
    hub.keep_published("2", &key("n"));
    let modes = |hub: &Arc<Hub>| {
        let all = policies(hub).unwrap().policies.into_values();
        let policy = |published: Arc<PublishedPolicy>| {
            assert_eq!(PolicyHash::of(published.policy.get()), published.hash);
            serde_json::from_str::<CompiledPolicy>(published.policy.get()).unwrap().mode
        };
        all.map(policy).collect::<Vec<_>>()
    };
    hub.set_replicas("2", &selector("a"), &Places::of([POD_UID]));
    assert_eq!(modes(&hub), [Mode::Enforce; 2]);
    hub.report("s", applied(&hash));
    let mut version = hub.version.subscribe();
    version.mark_unchanged();
    tokio::time::advance(Duration::from_secs(60)).await;
    while tokio::time::timeout(Duration::ZERO, hub.queue.next()).await.is_ok() {}

    hub.set_mode(Mode::Enforce);
    hub.set_mode(Mode::Shadow);
    assert_eq!(modes(&hub), [Mode::Shadow; 2]);
    assert!(version.has_changed().unwrap(), "sessions are woken");
    assert_eq!(hub.queue.next().await.key(), &key("n"), "and the status is written again");
    let edit = || publication(selector("a"), &strict());
    let in_shadow = edit().forms.in_shadow.hash.clone();
    assert_eq!(confirmation(&hub, &in_shadow), Confirmation::Unconfirmed);
    // The sidecars have time to confirm the new form.
    assert_eq!(
        hub.publish("1", &key("n"), edit()),
        PublishedEdit { at: Instant::now(), is_first: false, installation: Mode::Shadow }
    );

    hub.set_mode(Mode::Enforce);
    assert_eq!(modes(&hub), [Mode::Enforce; 2]);
    assert_eq!(confirmation(&hub, &hash), Confirmation::Applied);
}

#[tokio::test]
async fn the_last_valid_edit_follows_its_targets() {
    let hub = hub();
    publish(&hub, "1", selector("a"), &strict());
    hub.keep_published("1", &key("n"));
    let _session = hub.connect(identity(&[("app", "b")]), "s");
    let receives = || hub.desired(POD_UID, true).unwrap().policies.unwrap().policies.contains_key("1");
    assert!(!receives() && hub.pods("1").is_some());
    hub.select("1", selector("b"));
    assert!(receives());
    // A policy without a valid edit has no pods of its own.
    hub.keep_published("2", &key("n"));
    hub.select("2", selector("b"));
    assert!(hub.pods("2").is_none() && hub.counted_policies("n").iter().all(|(uid, ..)| uid != "2"));
}

#[tokio::test]
async fn a_change_wakes_only_the_sessions_that_it_concerns() {
    let hub = hub();
    let pod = |uid: &str, namespace: &str, app: &str| Identity {
        pod_uid: uid.into(),
        namespace: namespace.into(),
        ..identity(&[("app", app)])
    };
    let pods = [pod("na", "n", "a"), pod("nb", "n", "b"), pod("oa", "other", "a")];
    let _closed = pods.map(|pod| {
        let name = pod.pod_uid.clone();
        hub.connect(pod, &name)
    });
    let woken = || {
        let is_woken = |uid: &&str| {
            let wakeup = hub.wakeup(uid).unwrap();
            let woken = wakeup.notify.notified().now_or_never().is_some();
            assert_eq!(wakeup.take_policies(), woken);
            woken
        };
        ["na", "nb", "oa"].into_iter().filter(is_woken).collect::<Vec<_>>().join(" ")
    };
    publish(&hub, "1", selector("a"), &strict());
    assert_eq!(woken(), "na");
    publish(&hub, "1", selector("b"), &strict());
    assert_eq!(woken(), "na nb", "the one loses the policy, and the other receives it");
    hub.select("1", selector("a"));
    assert_eq!(woken(), "na nb");
    hub.keep_published("2", &key("other"));
    assert_eq!(woken(), "oa");
    hub.set_pod_labels("oa", &Arc::new([("app".to_owned(), "b".to_owned())].into()));
    assert_eq!(woken(), "oa");
    hub.remove("1");
    assert_eq!(woken(), "na");
    hub.remove("2");
    assert_eq!(woken(), "oa");
    let named = |namespace: &str| [(StoreKey::new(namespace, "s"), StoreSource::Memory)].into();
    hub.set_stores(HubStores { named: named("other"), ..HubStores::default() });
    assert_eq!(woken(), "oa");
    hub.set_mode(Mode::Shadow);
    assert_eq!(woken(), "na nb oa");
    // The policies whose pods have these labels, before or after a change.
    publish(&hub, "1", selector("a"), &strict());
    let labels = |app: &str| BTreeMap::from([("app".to_owned(), app.to_owned())]);
    assert_eq!(hub.selecting("n", &[&labels("b"), &labels("a")]), [key("n")]);
    assert_eq!(hub.selecting("n", &[&labels("b")]), []);
}
