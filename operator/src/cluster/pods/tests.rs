use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{Request, Response};
use futures::future::join_all;
use kube::client::Body;
use serde_json::json;

use super::*;
use crate::injection::inject::tests::config;

#[tokio::test]
async fn all_who_need_a_pod_at_a_time_wait_for_one_request() {
    let requests = Arc::<AtomicUsize>::default();
    let sent = requests.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        sent.fetch_add(1, Ordering::SeqCst);
        async move {
            // Others ask meanwhile.
            tokio::task::yield_now().await;
            let name = request.uri().path().rsplit('/').next().unwrap_or_default();
            let pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": name, "uid": name},
                "spec": {"containers": []}, "status": {"podIP": "10.0.0.1"},
            });
            Ok::<_, Infallible>(Response::new(Body::from(pod.to_string().into_bytes())))
        }
    });
    let client = kube::Client::new(service, "default");
    let pods = Pods::new(client, Arc::new(config(true)), LimitRanges::default());
    let pod = |uid: &str| {
        let object = json!({"metadata": {"namespace": "n", "name": uid, "uid": uid}});
        let object: PartialObjectMeta<core::Pod> = serde_json::from_value(object).unwrap();
        Arc::new(Pod::read(&object))
    };
    let (one, another) = (pod("1"), pod("2"));
    for pod in [&one, &another] {
        pods.insert(pod.clone());
    }
    let facts = join_all((0..10).map(|_| pods.facts(&one))).await;
    assert!(facts.iter().all(|facts| facts.as_ref().unwrap().is_some()));
    assert_eq!(requests.load(Ordering::SeqCst), 1);
    assert!(pods.facts(&another).await.unwrap().is_some());
    assert_eq!(requests.load(Ordering::SeqCst), 2, "of another pod");
    // The addresses came with the facts, until the pod changes.
    pods.addresses(&one).await.unwrap();
    assert_eq!(requests.load(Ordering::SeqCst), 2);
    let changed = pod("1");
    pods.insert(changed.clone());
    let addresses = join_all((0..10).map(|_| pods.addresses(&changed))).await;
    assert!(addresses.iter().all(|addresses| addresses.as_ref().unwrap().len() == 1));
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}
