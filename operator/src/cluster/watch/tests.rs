use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ObjectMeta;
use kube::runtime::watcher::Error;

use super::*;

fn object(name: &str, uid: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            namespace: Some("n".into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    }
}

/// Follows the events and returns the changes in short: `+name/uid`, `-name/uid`, `listed`.
async fn changes(events: Vec<Result<Event<ConfigMap>>>) -> Vec<String> {
    let mut changes = Vec::new();
    follow(futures::stream::iter(events), |change| {
        changes.push(match change {
            Change::Applied(object) => format!("+{}/{}", object.name_any(), object.uid().unwrap()),
            Change::Deleted { key, uid } => {
                assert_eq!(key.namespace, "n");
                format!("-{}/{uid}", key.name)
            }
            Change::Listed => "listed".into(),
        });
    })
    .await;
    changes
}

#[tokio::test(start_paused = true)]
async fn an_object_created_again_under_its_name_is_first_reported_as_deleted() {
    let events = vec![
        Ok(Event::Init),
        Ok(Event::InitApply(object("a", "1"))),
        Ok(Event::InitDone),
        Ok(Event::Apply(object("a", "2"))),
        Ok(Event::Init),
        Ok(Event::InitApply(object("a", "3"))),
        Ok(Event::InitDone),
        Ok(Event::Delete(object("a", "3"))),
    ];
    let expected = ["+a/1", "listed", "-a/1", "+a/2", "-a/2", "+a/3", "listed", "-a/3"];
    assert_eq!(changes(events).await, expected);
}

#[tokio::test(start_paused = true)]
async fn an_object_deleted_during_a_restart_is_reported_even_if_the_list_before_broke_off() {
    let events = vec![
        Ok(Event::Init),
        Ok(Event::InitApply(object("a", "1"))),
        Ok(Event::InitApply(object("b", "2"))),
        Err(Error::NoResourceVersion),
        Ok(Event::Init),
        Ok(Event::InitApply(object("b", "2"))),
        Ok(Event::InitDone),
    ];
    assert_eq!(changes(events).await, ["+a/1", "+b/2", "+b/2", "-a/1", "listed"]);
}
