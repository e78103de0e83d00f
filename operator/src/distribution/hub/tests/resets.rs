//! Resets in the hub.

use std::collections::BTreeMap;

use crate::distribution::fixtures::{hub, identity, publish, selector, strict};
use crate::distribution::identity::Identity;
use sluice_config::message::{Report, ResetReport, ResetStep, ResetUid, VERSION};

use crate::distribution::clients::reset::{Reset, ResetProgress};
use crate::distribution::hub::Hub;

fn resets() -> BTreeMap<ResetUid, Reset> {
    let [namespace, policy, limit, key] = ["n", "p", "l", "q83vEjRWeJCrze8SNFZ4kA"].map(str::to_owned);
    [("r".to_owned(), Reset { namespace, policy, limit, key })].into()
}

fn pod(uid: &str, app: &str) -> Identity {
    Identity { pod_uid: uid.into(), ..identity(&[("app", app)]) }
}

fn report(hub: &Hub, session: &str, report: ResetReport) {
    let resets = [("r".to_owned(), report), ("unknown".to_owned(), ResetReport::Forgotten)].into();
    let (policies, stores, shadow_denied) = Default::default();
    assert!(hub.report(Report {
        version: VERSION,
        session: session.into(),
        policies,
        stores,
        shadow_denied,
        resets
    }));
}

/// Returns the step that a pod is to take.
fn step(hub: &Hub, pod: &str) -> Option<ResetStep> {
    hub.desired(pod, false).unwrap().resets.get("r").map(|order| order.step)
}

#[tokio::test]
async fn one_pod_removes_the_counter_before_all_forget_the_client() {
    let hub = hub();
    assert!(!hub.set_resets(resets())["r"].has_policy);
    publish(&hub, "1", selector("a"), &strict());
    let mut version = hub.version();
    assert_eq!(hub.set_resets(resets())["r"], ResetProgress { has_policy: true, ..Default::default() });
    let _one = hub.connect(pod("1", "a"), "one");
    let _two = hub.connect(pod("2", "a"), "two");
    let _other = hub.connect(pod("3", "b"), "other");
    version.mark_unchanged();
    hub.set_resets(resets());
    assert!(version.has_changed().unwrap());
    assert_eq!(["1", "2", "3"].map(|pod| step(&hub, pod)), [Some(ResetStep::Remove), None, None]);
    // Another pod cannot say that it has removed the counter, and what a pod says is made fit for a message.
    report(&hub, "two", ResetReport::Removed { at: 5 });
    report(&hub, "one", ResetReport::Failed { reason: "no\n answer".into() });
    let progress = hub.set_resets(resets());
    assert_eq!(
        progress["r"],
        ResetProgress { has_policy: true, pods: 2, failure: Some("no answer".into()), ..Default::default() }
    );
    version.mark_unchanged();
    report(&hub, "one", ResetReport::Removed { at: 7 });
    assert!(version.has_changed().unwrap(), "sessions are woken");
    let forget = Some(ResetStep::Forget { removed_at: 7 });
    assert_eq!(["1", "2", "3"].map(|pod| step(&hub, pod)), [forget, forget, None]);
    report(&hub, "two", ResetReport::Forgotten);
    let progress = ResetProgress { has_policy: true, pods: 2, forgotten: 1, is_removed: true, failure: None };
    assert_eq!(hub.set_resets(resets())["r"], progress);
    report(&hub, "one", ResetReport::Forgotten);
    assert_eq!(hub.set_resets(resets())["r"], ResetProgress { forgotten: 2, ..progress });
    version.mark_unchanged();
    hub.set_resets(BTreeMap::new());
    assert!(version.has_changed().unwrap());
    assert_eq!(step(&hub, "1"), None);
}

#[tokio::test]
async fn another_pod_removes_the_counter_if_the_chosen_one_leaves_before() {
    let hub = hub();
    publish(&hub, "1", selector("a"), &strict());
    let _one = hub.connect(pod("1", "a"), "one");
    let _two = hub.connect(pod("2", "a"), "two");
    hub.set_resets(resets());
    hub.disconnect("1", "one");
    hub.set_resets(resets());
    assert_eq!(step(&hub, "2"), Some(ResetStep::Remove));
    report(&hub, "two", ResetReport::Removed { at: 9 });
    hub.remove_pod("2");
    let _three = hub.connect(pod("3", "a"), "three");
    hub.set_resets(resets());
    assert_eq!(step(&hub, "3"), Some(ResetStep::Forget { removed_at: 9 }), "the counter is removed once");
}
