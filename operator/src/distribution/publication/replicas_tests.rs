use std::sync::Arc;

use sluice_config::CompiledPolicy;
use sluice_config::policy::Consistency;

use super::*;
use crate::distribution::fixtures::{
    POD_UID, hub, identity, key, policies, publish, selector, shared, strict,
};
use crate::distribution::hub::Hub;
use crate::names::PodSelector;

fn set(hub: &Arc<Hub>, uid: &str, selector: &PodSelector, pods: &[&str]) {
    hub.set_replicas(uid, selector, &Places::of(pods.iter().copied()));
}

#[tokio::test]
async fn a_pod_receives_its_index_and_the_count_for_each_of_its_policies() {
    let hub = hub();
    publish(&hub, "1", selector("a"), &strict());
    publish(&hub, "2", selector("b"), &strict());
    let _closed = hub.connect(identity(&[("app", "a")]), "s");
    let replicas = || hub.desired(POD_UID, false).unwrap().replicas.into_iter().collect::<Vec<_>>();
    let replica = |uid: &str, index, count| (uid.to_owned(), Replica { index, count });
    assert_eq!(replicas(), [], "the replicas have not been counted yet");
    set(&hub, "1", &selector("a"), &["z", POD_UID, "a"]);
    set(&hub, "2", &selector("b"), &["a", "b", "c"]);
    set(&hub, "gone", &selector("a"), &[POD_UID]);
    assert_eq!(replicas(), [replica("1", 1, 3)]);
    // The pod has a session, so it admits requests and counts, even if the watch does not show it as running.
    set(&hub, "1", &selector("a"), &["z", "a", "b"]);
    assert_eq!(replicas(), [replica("1", 2, 4)]);
    // A pod that is named twice counts once.
    set(&hub, "1", &selector("a"), &["z", "a", "a"]);
    assert_eq!(replicas(), [replica("1", 1, 3)]);
    set(&hub, "1", &selector("a"), &["z", "a", "b"]);
    // An edit, valid or not, keeps the replicas until they are counted again.
    hub.keep_published("1", &key("n"));
    assert_eq!(replicas(), [replica("1", 2, 4)]);
    assert_eq!(hub.counted_policies("n").len(), 2);
    publish(&hub, "1", PodSelector::all(), &strict());
    assert_eq!(replicas(), [replica("1", 2, 4)]);
    assert!(hub.desired("other", true).is_none());
}

#[tokio::test(start_paused = true)]
async fn only_the_sessions_of_selected_pods_are_woken_and_only_by_a_change() {
    let hub = hub();
    publish(&hub, "1", selector("a"), &strict());
    publish(&hub, "2", selector("b"), &strict());
    let _closed = hub.connect(identity(&[("app", "a")]), "s");
    let wakeup = hub.wakeup(POD_UID).unwrap();
    // Changes of replicas come together once a second.
    let is_woken =
        async || tokio::time::timeout(Duration::from_secs(2), wakeup.notify.notified()).await.is_ok();
    let version = hub.version.subscribe();
    set(&hub, "2", &selector("b"), &["other"]);
    assert!(!is_woken().await);
    set(&hub, "1", &selector("b"), &["another", "other"]);
    assert!(!is_woken().await, "the pods were counted with a selector that is not the policy's");
    set(&hub, "1", &selector("a"), &["other"]);
    assert!(is_woken().await, "the pod is counted in addition");
    set(&hub, "1", &selector("a"), &[POD_UID, "other"]);
    assert!(is_woken().await);
    set(&hub, "1", &selector("a"), &["other", POD_UID]);
    assert!(!is_woken().await);
    set(&hub, "1", &selector("a"), &["other"]);
    assert!(is_woken().await, "the pod is no longer among the replicas");
    set(&hub, "1", &selector("a"), &["another", "other"]);
    assert!(is_woken().await, "the pod is counted in addition to two others");
    assert!(!version.has_changed().unwrap() && !wakeup.take_policies(), "no policy has changed");
}

#[tokio::test(start_paused = true)]
async fn changes_of_replicas_wake_sessions_once_a_second_for_all_policies_of_a_namespace() {
    let hub = hub();
    for uid in ["1", "2"] {
        publish(&hub, uid, selector("a"), &strict());
    }
    let _closed = hub.connect(identity(&[("app", "a")]), "s");
    let wakeup = hub.wakeup(POD_UID).unwrap();
    let start = Instant::now();
    let changing = hub.clone();
    tokio::spawn(async move {
        for count in 1..=100 {
            let pods: Vec<_> = (0..count).map(|n| n.to_string()).collect();
            let pods: Vec<_> = pods.iter().map(String::as_str).collect();
            for uid in ["1", "2"] {
                set(&changing, uid, &selector("a"), &pods);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut wakes = Vec::new();
    while tokio::time::timeout(Duration::from_secs(5), wakeup.notify.notified()).await.is_ok() {
        wakes.push(start.elapsed().as_secs());
    }
    assert_eq!(wakes, [0, 1, 2]);
    let counts = hub.desired(POD_UID, false).unwrap().replicas.into_values().map(|replica| replica.count);
    assert_eq!(counts.collect::<Vec<_>>(), [101, 101]);
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_needs_its_replicas_is_held_back_until_they_are_known() {
    let hub = hub();
    let local = CompiledPolicy { consistency: Consistency::Local, ..strict() };
    let leased = CompiledPolicy { consistency: Consistency::Leased, ..strict() };
    let share = shared();
    let _closed = hub.connect(identity(&[("app", "a")]), "s");
    let held = || hub.desired(POD_UID, false).unwrap().held.into_iter().collect::<String>();
    let count = |uid: &str| set(&hub, uid, &selector("a"), &[POD_UID]);
    publish(&hub, "0", selector("a"), &strict());
    for (uid, policy) in [("1", &local), ("2", &leased), ("3", &share)] {
        publish(&hub, uid, selector("a"), policy);
    }
    // The hold begins when the hub opens, and opening it again does not extend it.
    tokio::time::advance(MAX_HOLD).await;
    hub.open();
    tokio::time::advance(MAX_HOLD / 2).await;
    hub.open();
    assert_eq!(held(), "123");
    assert_eq!(policies(&hub).unwrap().policies.into_keys().collect::<String>(), "0");
    count("1");
    assert_eq!(held(), "23");
    // An edit of a counted policy is not held back, and edits do not extend the hold of the others.
    publish(&hub, "1", selector("a"), &share);
    publish(&hub, "2", selector("a"), &share);
    hub.keep_published("3", &key("n"));
    assert_eq!(held(), "23");
    tokio::time::advance(MAX_HOLD / 2).await;
    assert_eq!(held(), "");
    assert_eq!(policies(&hub).unwrap().policies.into_keys().collect::<String>(), "0123");
    // With another selector, the replicas have to be counted again.
    publish(&hub, "1", selector("b"), &local);
    publish(&hub, "1", selector("a"), &local);
    assert_eq!(held(), "1");
    set(&hub, "1", &selector("b"), &[]);
    assert_eq!(held(), "1");
    count("1");
    assert_eq!(held(), "");
}
