use std::time::Duration;

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
