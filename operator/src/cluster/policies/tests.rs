use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake};
use std::time::Duration;

use kube::api::ApiResource;

use super::*;

fn object(name: &str, uid: &str, generation: i64) -> DynamicObject {
    let mut object = DynamicObject::new(name, &ApiResource::erase::<RateLimitPolicy>(&())).within("n");
    object.metadata.uid = Some(uid.into());
    object.metadata.generation = Some(generation);
    object
}

fn key(name: &str) -> PolicyKey {
    PolicyKey { namespace: "n".into(), name: name.into() }
}

async fn is_done(future: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(Duration::ZERO, future).await.is_ok()
}

#[tokio::test]
async fn the_first_list_is_published_when_each_of_its_policies_is() {
    let policies = Policies::default();
    for name in ["a", "b", "c"] {
        policies.apply(object(name, name, 1));
    }
    let publish = |name: &str, generation: i64| {
        policies.publish_if_current(&key(name), &object(name, name, generation), || ()).is_some()
    };
    assert!(publish("a", 1));
    policies.apply(object("b", "b", 2));
    assert!(!publish("b", 1), "an older edit does not count");
    policies.list_is_complete();
    assert!(!is_done(policies.all_published()).await);
    assert!(publish("b", 2));
    assert!(!is_done(policies.all_published()).await);
    policies.delete(&key("c"), "c");
    policies.apply(object("later", "later", 1));
    assert!(is_done(policies.all_published()).await, "later policies are not waited for");
}

#[tokio::test]
async fn an_empty_list_is_published_when_it_is_complete() {
    let policies = Policies::default();
    assert!(!is_done(policies.all_published()).await);
    policies.list_is_complete();
    assert!(is_done(policies.all_published()).await);
}

#[tokio::test]
async fn a_deleted_edited_or_recreated_policy_is_not_published_as_it_was() {
    let policies = Policies::default();
    let first = object("a", "1", 1);
    let is_published = || policies.publish_if_current(&key("a"), &first, || ()).is_some();
    assert!(!is_published());
    policies.apply(first.clone());
    policies.delete(&key("a"), "another");
    assert!(is_published(), "the deletion was of another object");

    let mut status_written = first.clone();
    status_written.metadata.resource_version = Some("2".into());
    policies.apply(status_written);
    assert!(is_published() && !is_done(policies.superseded(&key("a"), &first)).await);

    for newer in [object("a", "1", 2), object("a", "2", 1)] {
        policies.apply(newer);
        assert!(!is_published() && is_done(policies.superseded(&key("a"), &first)).await);
    }
    policies.delete(&key("a"), "2");
    assert!(!is_published() && is_done(policies.superseded(&key("a"), &first)).await);
}

#[tokio::test]
async fn the_table_has_an_own_write_before_the_watch_reports_it() {
    let policies = Policies::default();
    policies.list_is_complete();
    let at = |version: &str| {
        let mut object = object("a", "1", 1);
        object.metadata.resource_version = Some(version.into());
        object
    };
    let known = || policies.get(&key("a")).unwrap().metadata.resource_version.clone().unwrap();
    policies.apply(at("9"));
    policies.wrote(at("12"));
    assert_eq!(known(), "12");
    assert_eq!(
        policies.apply_change(at("10")).1,
        Origin::Other,
        "somebody has changed a label before the write"
    );
    assert_eq!(known(), "12", "the write was a later change");
    assert_eq!(policies.apply_change(at("12")).1, Origin::Known);
    assert_eq!(policies.apply_change(at("12")).1, Origin::Known, "a list has it again");
    policies.apply(at("15"));
    policies.wrote(at("14"));
    assert_eq!(known(), "15", "the watch was faster than the response");
    policies.apply(at("16"));
    assert_eq!(known(), "16");

    // A watch that is restarted may never report the version that was written.
    policies.wrote(at("18"));
    policies.list_is_complete();
    policies.apply(at("17"));
    assert_eq!(known(), "17");
    let mut again = at("30");
    again.metadata.uid = Some("2".into());
    policies.wrote(again);
    assert_eq!(known(), "17", "of a policy that was created again");
}

#[tokio::test]
async fn what_is_listed_with_another_spec_is_another_edit_though_nobody_has_edited_it() {
    let policies = Policies::default();
    let mut before = object("a", "1", 1);
    before.metadata.resource_version = Some("9".into());
    before.data = serde_json::json!({"spec": {"mode": "Shadow"}});
    policies.apply(before.clone());
    policies.list_is_complete();
    assert_eq!(policies.apply_change(before.clone()).1, Origin::Known);
    let mut after = before.clone();
    after.data["spec"]["invented"] = "x".into();
    assert_eq!(policies.apply_change(after.clone()).1, Origin::Other);
    assert_eq!(policies.get(&key("a")).unwrap().data, after.data);
    assert!(policies.publish_if_current(&key("a"), &before, || ()).is_none());
    assert!(is_done(policies.superseded(&key("a"), &before)).await);
    assert!(policies.publish_if_current(&key("a"), &after, || ()).is_some());
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn who_waits_for_the_end_of_an_edit_hears_of_it_and_of_nothing_else() {
    let policies = Policies::default();
    policies.apply(object("a", "a", 1));
    policies.apply(object("b", "b", 1));
    let edit = || drop(policies.apply(object("a", "a", 2)));
    let delete = || policies.delete(&key("a"), "a");
    for (generation, end) in [(1, &edit as &dyn Fn()), (2, &delete)] {
        let (key, edit, wakes) = (key("a"), object("a", "a", generation), Arc::new(Wakes::default()));
        let mut waiting = pin!(policies.superseded(&key, &edit));
        let waker = wakes.clone().into();
        let mut context = Context::from_waker(&waker);
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        policies.apply(object("b", "b", generation + 1));
        policies.apply(edit.clone());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "another policy, and the same edit");
        end();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
    }
}
