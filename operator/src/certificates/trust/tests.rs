use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use http_body_util::Full;
use hyper::{Request, Response};
use kube::client::Body;
use serde_json::json;

use super::*;
use crate::names::ObjectKey;

/// A namespace with its ConfigMap.
fn map(authority: &str) -> ConfigMap {
    let map =
        json!({"metadata": {"namespace": "shop", "name": CONFIG_MAP}, "data": {CONFIG_MAP_KEY: authority}});
    serde_json::from_value(map).unwrap()
}

/// Returns a client of an API server that takes every write, and does this before it answers.
fn client(before_the_answer: impl Fn() + Clone + Send + 'static) -> kube::Client {
    let service = tower::service_fn(move |_: Request<Body>| {
        before_the_answer();
        let answer = Full::from(serde_json::to_vec(&map("ours")).unwrap());
        async { Ok::<_, std::io::Error>(Response::new(answer)) }
    });
    kube::Client::new(service, "shop")
}

/// Publishes the authority again and again until nothing is due. Returns the number of writes.
async fn published(maps: &AuthorityMaps, before_the_answer: impl Fn(u32) + Clone + Send + 'static) -> u32 {
    let writes = Arc::new(AtomicU32::new(0));
    let client = client({
        let writes = writes.clone();
        move || before_the_answer(writes.fetch_add(1, Ordering::Relaxed))
    });
    let namespaces = BTreeSet::from(["shop".to_owned()]);
    for _ in 0..5 {
        maps.publish(&client, &namespaces, "ours").await;
    }
    writes.load(Ordering::Relaxed)
}

fn listed(present: Option<&str>) -> AuthorityMaps {
    let maps = AuthorityMaps::default();
    present.into_iter().for_each(|present| maps.observe(Change::Applied(map(present))));
    maps.observe(Change::Listed);
    maps
}

#[tokio::test]
async fn an_authority_is_written_once_though_the_watch_is_late() {
    let maps = listed(None);
    assert_eq!(published(&maps, |_| {}).await, 1);
    maps.observe(Change::Applied(map("ours")));
    assert_eq!(published(&maps, |_| {}).await, 0);
    maps.observe(Change::Applied(map("theirs")));
    assert_eq!(published(&maps, |_| {}).await, 1);
    maps.observe(Change::Deleted { key: ObjectKey::new("shop", CONFIG_MAP), uid: String::new() });
    assert_eq!(published(&maps, |_| {}).await, 1);
    maps.observe(Change::Listed);
    assert_eq!(published(&maps, |_| {}).await, 1, "it may have been deleted while nothing was watched");
}

#[tokio::test]
async fn what_somebody_else_writes_before_the_answer_to_a_write_is_replaced_too() {
    let maps = Arc::new(listed(Some("theirs")));
    let watched = maps.clone();
    let writes = published(&maps, move |write| {
        if write == 0 {
            watched.observe(Change::Applied(map("ours")));
            watched.observe(Change::Applied(map("theirs again")));
        }
    });
    assert_eq!(writes.await, 2);
}

#[tokio::test]
async fn another_authority_is_written_at_once() {
    let maps = listed(None);
    assert_eq!(published(&maps, |_| {}).await, 1);
    let namespaces = BTreeSet::from(["shop".to_owned()]);
    let writes = Arc::new(AtomicU32::new(0));
    let client = client({
        let writes = writes.clone();
        move || {
            writes.fetch_add(1, Ordering::Relaxed);
        }
    });
    maps.publish(&client, &namespaces, "new").await;
    assert_eq!(writes.load(Ordering::Relaxed), 1);
}
