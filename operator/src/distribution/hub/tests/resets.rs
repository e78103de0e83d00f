//! Resets in the hub.

use std::collections::BTreeMap;

use sluice_config::CompiledPolicy;
use sluice_config::message::{Report, ResetReport, ResetStep, ResetUid, VERSION};

use crate::distribution::clients::{PodProgress, Reset, ResetProgress};
use crate::distribution::fixtures::{hub, identity, publish, selector, strict};
use crate::distribution::hub::Hub;
use crate::distribution::publication::Places;
use crate::distribution::session::Identity;

fn resets() -> BTreeMap<ResetUid, Reset> {
    let [namespace, policy, limit, key] = ["n", "p", "l", "q83vEjRWeJCrze8SNFZ4kA"].map(str::to_owned);
    [("r".to_owned(), Reset { namespace, policy, limit, key })].into()
}

fn pod(uid: &str, app: &str) -> Identity {
    Identity { pod_uid: uid.into(), ..identity(&[("app", app)]) }
}

fn report(hub: &Hub, session: &str, report: ResetReport) {
    let resets =
        [("r".to_owned(), report), ("unknown".to_owned(), ResetReport::Forgotten { removed_at: 7 })].into();
    assert!(hub.report(session, Report { version: VERSION, resets, ..Report::default() }));
}

/// Returns the step that a pod is to take.
fn step(hub: &Hub, pod: &str) -> Option<ResetStep> {
    hub.desired(pod, false).unwrap().resets.get("r").map(|order| order.step)
}

/// Returns a policy with a limit that has counters, and one without.
fn policy() -> CompiledPolicy {
    let limit = |kind: &str, name: &str| {
        let json = format!(r#"{{"name":"{name}","mode":"Enforce","onMissing":"Shared","kind":{kind}}}"#);
        serde_json::from_str(&json).unwrap()
    };
    let slots = r#"{"slots":{"max":5,"leaseMillis":30000,"abandonedForMillis":30000}}"#;
    let adaptive = r#"{"adaptive":{"vegas":{"minimum":4,"maximum":400},"abandonedForMillis":30000}}"#;
    CompiledPolicy { limits: vec![limit(slots, "l"), limit(adaptive, "adaptive")], ..strict() }
}

fn pods(hub: &std::sync::Arc<Hub>, uids: &[&str]) {
    hub.set_replicas("1", &selector("a"), &Places::of(uids.iter().copied()));
}

fn progress(hub: &Hub) -> PodProgress {
    match hub.set_resets(resets()).remove("r") {
        Some(ResetProgress::Pods(progress)) => progress,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn one_pod_removes_the_counter_before_all_forget_the_client() {
    let hub = hub();
    assert_eq!(hub.set_resets(resets())["r"], ResetProgress::NoPolicy);
    publish(&hub, "1", selector("a"), &policy());
    let mut version = hub.version.subscribe();
    assert_eq!(progress(&hub), PodProgress::default());
    pods(&hub, &["1", "2"]);
    let _one = hub.connect(pod("1", "a"), "one");
    let _two = hub.connect(pod("2", "a"), "two");
    let _other = hub.connect(pod("3", "b"), "other");
    version.mark_unchanged();
    let waiting = PodProgress { is_counted: true, pods: 2, ..PodProgress::default() };
    assert_eq!(progress(&hub), waiting);
    assert!(version.has_changed().unwrap());
    assert_eq!(["1", "2", "3"].map(|pod| step(&hub, pod)), [Some(ResetStep::Remove), None, None]);
    // Another pod cannot say that it has removed the counter.
    report(&hub, "two", ResetReport::Removed { at: 5 });
    assert_eq!(progress(&hub), waiting);
    version.mark_unchanged();
    report(&hub, "one", ResetReport::Removed { at: 7 });
    assert!(version.has_changed().unwrap(), "sessions are woken");
    let forget = Some(ResetStep::Forget { removed_at: 7 });
    assert_eq!(["1", "2", "3"].map(|pod| step(&hub, pod)), [forget, forget, None]);
    // What a pod has forgotten before the removal does not count.
    report(&hub, "two", ResetReport::Forgotten { removed_at: 5 });
    let removed = PodProgress { is_removed: true, ..waiting };
    assert_eq!(progress(&hub), removed);
    report(&hub, "two", ResetReport::Forgotten { removed_at: 7 });
    assert_eq!(progress(&hub), PodProgress { forgotten: 1, ..removed.clone() });
    report(&hub, "one", ResetReport::Forgotten { removed_at: 7 });
    assert!(progress(&hub).is_complete());
    // A pod that runs without a session has not forgotten the client.
    pods(&hub, &["1", "2", "4"]);
    let incomplete = PodProgress { pods: 3, not_connected: 1, forgotten: 2, ..removed };
    assert_eq!(progress(&hub), incomplete);
    assert!(!incomplete.is_complete());
    version.mark_unchanged();
    hub.set_resets(BTreeMap::new());
    assert!(version.has_changed().unwrap());
    assert_eq!(step(&hub, "1"), None);
}

#[tokio::test(start_paused = true)]
async fn another_pod_removes_the_counter_if_the_chosen_one_leaves_fails_or_takes_too_long() {
    let hub = hub();
    publish(&hub, "1", selector("a"), &policy());
    let _sessions = ["1", "2", "3"].map(|uid| hub.connect(pod(uid, "a"), uid));
    let remover = || {
        hub.set_resets(resets());
        ["1", "2", "3"].into_iter().find(|pod| hub.desired(pod, false).is_some() && step(&hub, pod).is_some())
    };
    assert_eq!(remover(), Some("1"));
    hub.disconnect("1", "1");
    assert_eq!(remover(), Some("2"));
    report(&hub, "2", ResetReport::Failed { reason: "no\n answer".into() });
    let Some(ResetProgress::Pods(failed)) = hub.set_resets(resets()).remove("r") else { unreachable!() };
    assert_eq!(failed.failure, Some(("pod".to_owned(), "no answer".to_owned())));
    assert_eq!(remover(), Some("3"));
    tokio::time::advance(std::time::Duration::from_secs(5)).await;
    assert_eq!(remover(), Some("2"));
    report(&hub, "2", ResetReport::Removed { at: 9 });
    hub.remove_pod("2");
    let _four = hub.connect(pod("4", "a"), "four");
    hub.set_resets(resets());
    assert_eq!(step(&hub, "4"), Some(ResetStep::Forget { removed_at: 9 }), "the counter is removed once");
}

#[tokio::test]
async fn a_limit_without_counters_is_not_reset() {
    let hub = hub();
    publish(&hub, "1", selector("a"), &policy());
    for (limit, expected) in [("adaptive", ResetProgress::NoCounters), ("unknown", ResetProgress::NoLimit)] {
        let mut resets = resets();
        resets.get_mut("r").unwrap().limit = limit.into();
        hub.set_resets(BTreeMap::new());
        assert_eq!(hub.set_resets(resets)["r"], expected);
    }
}
