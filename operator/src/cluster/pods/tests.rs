use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{Request, Response};
use futures::future::join_all;
use kube::client::Body;
use serde_json::json;

use super::*;
use crate::cluster::pods::pod::{Labels, for_shared};
use crate::injection::inject::tests::config;

/// A table of pods whose API server counts the requests. Its pods have their names as UIDs.
struct Counted {
    pods: Pods,
    requests: Arc<AtomicUsize>,
}

/// Returns a pod as the API server has it.
fn object(name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": name, "uid": name},
        "spec": {"containers": [{
            "name": "sluice-sidecar", "args": ["--proxy=0.0.0.0:8790=127.0.0.1:8080"],
            "volumeMounts": [{"name": "sluice-identity", "mountPath": "/identity"}],
        }]},
        "status": {"podIP": "10.0.0.1"},
    })
}

impl Counted {
    fn new() -> Self {
        let requests = Arc::<AtomicUsize>::default();
        let sent = requests.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            sent.fetch_add(1, Ordering::SeqCst);
            async move {
                // Others ask meanwhile.
                tokio::task::yield_now().await;
                let response = match request.uri().path().rsplit('/').next().unwrap_or_default() {
                    "pods" => {
                        let items: Vec<_> = (0..100).map(|n| object(&n.to_string())).collect();
                        json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items})
                    }
                    name => object(name),
                };
                Ok::<_, Infallible>(Response::new(Body::from(response.to_string().into_bytes())))
            }
        });
        let client = kube::Client::new(service, "default");
        Self { pods: Pods::new(client, Arc::new(config(true)), LimitRanges::default()), requests }
    }

    /// Does what the watch does for a pod.
    fn insert(&self, name: &str) -> Arc<Pod> {
        let object: PartialObjectMeta<core::Pod> = serde_json::from_value(object(name)).unwrap();
        self.pods.insert(Pod::read(&object.metadata)).1
    }

    async fn facts(&self, pod: &Arc<Pod>) -> Option<Arc<PodFacts>> {
        self.pods.facts("n", std::slice::from_ref(pod)).await.unwrap().remove(0)
    }

    fn requests(&self) -> usize {
        self.requests.swap(0, Ordering::SeqCst)
    }
}

#[tokio::test]
async fn all_who_need_a_pod_at_a_time_wait_for_one_request() {
    let table = Counted::new();
    let (one, another) = (table.insert("1"), table.insert("2"));
    let facts = join_all((0..10).map(|_| table.facts(&one))).await;
    assert!(facts.iter().all(Option::is_some));
    assert_eq!(table.requests(), 1);
    assert!(table.facts(&another).await.is_some());
    assert_eq!(table.requests(), 1, "of another pod");
    // The addresses came with the facts, until the pod changes.
    let addresses = async |pod: &Arc<Pod>| {
        table.pods.addresses("n", std::slice::from_ref(pod)).await.unwrap().remove(0).unwrap()
    };
    addresses(&one).await;
    assert_eq!(table.requests(), 0);
    let changed = table.insert("1");
    let all = join_all((0..10).map(|_| addresses(&changed))).await;
    assert!(all.iter().all(|addresses| addresses.len() == 1));
    assert_eq!(table.requests(), 1);
}

#[tokio::test]
async fn many_pods_of_a_namespace_are_listed() {
    let table = Counted::new();
    let pods: Vec<_> = (0..100).map(|n| table.insert(&n.to_string())).collect();
    let facts = join_all(pods.iter().map(|pod| table.facts(pod))).await;
    assert!(facts.iter().all(Option::is_some));
    assert_eq!(table.requests(), 2, "the first one alone, then all others");
}

#[tokio::test]
async fn a_pod_that_is_read_before_the_watch_reports_it_is_not_read_again() {
    let table = Counted::new();
    let (pod, facts) = table.pods.read_unreported("n", "1").await.unwrap().unwrap();
    assert!(facts.injected && table.pods.get("n", "1").is_none());
    let reported = table.insert("1");
    assert_eq!(pod, reported);
    assert_eq!(table.facts(&reported).await, Some(facts));
    assert_eq!(table.requests(), 1);
    assert!(!table.pods.is_gone("n", "1"));
    table.pods.remove("n", "1");
    assert!(table.pods.is_gone("n", "1") && table.facts(&reported).await.is_none());
}

#[tokio::test]
async fn neighbours_share_equal_labels_and_facts_until_one_changes() {
    let table = Counted::new();
    let pods: Vec<_> = ["web-1", "web-2", "web-3"].map(|name| table.insert(name)).into();
    assert!(pods.iter().all(|pod| Arc::ptr_eq(&pod.labels, &pods[0].labels)));
    let mut facts = Vec::new();
    for pod in &pods {
        facts.push(table.facts(pod).await.unwrap());
    }
    assert!(facts.iter().all(|known| Arc::ptr_eq(known, &facts[0])));
    let mut changed = Pod::clone(&pods[1]);
    changed.labels = Arc::new([("app".to_owned(), "other".to_owned())].into());
    let (before, changed) = table.pods.insert(changed);
    assert_eq!((before.as_ref(), changed.labels.len()), (Some(&pods[1]), 1));
    assert!(pods[0].labels.is_empty() && table.pods.get("n", "web-3").unwrap().labels.is_empty());
    // It shares them again when they are equal again.
    assert!(Arc::ptr_eq(&table.insert("web-2").labels, &pods[0].labels));
}

#[test]
fn a_question_about_labels_is_asked_once_for_all_that_share_them() {
    let labels = |app: &str| Labels::new([("app".to_owned(), app.to_owned())].into());
    let (a, b) = (labels("a"), labels("b"));
    let asked = AtomicUsize::new(0);
    let mut is_a = for_shared(|labels| {
        asked.fetch_add(1, Ordering::SeqCst);
        labels["app"] == "a"
    });
    // Neighbours of one workload, equal labels that are not shared, and pods of two workloads in turn.
    for (labels, expected, times) in
        [(&a, true, 1), (&a, true, 1), (&labels("a"), true, 2), (&b, false, 3), (&a, true, 4), (&b, false, 5)]
    {
        assert_eq!((is_a(labels), asked.load(Ordering::SeqCst)), (expected, times));
    }
}

#[test]
fn the_workload_of_a_pod_is_named_as_kubectl_names_it() {
    let owner = |api_version: &str, kind: &str, name: &str| {
        let owner =
            json!({"apiVersion": api_version, "kind": kind, "name": name, "uid": "1", "controller": true});
        let labels = json!({"pod-template-hash": "6f"});
        let metadata = json!({"name": "p", "labels": labels, "ownerReferences": [owner]});
        Pod::read(&serde_json::from_value(metadata).unwrap()).owner
    };
    for (api_version, kind, name, expected) in [
        ("apps/v1", "ReplicaSet", "web-6f", Some("deployment/web")),
        ("apps/v1", "ReplicaSet", "web", Some("replicaset/web")),
        ("apps/v1", "StatefulSet", "db", Some("statefulset/db")),
        ("batch/v1", "Job", "once", Some("job/once")),
        ("v1", "ReplicationController", "old", Some("replicationcontroller/old")),
        ("apps.kruise.io/v1beta1", "StatefulSet", "db", Some("statefulset.apps.kruise.io/db")),
        ("example.com/v1", "ReplicaSet", "web-6f", Some("replicaset.example.com/web-6f")),
        ("a;b/v1", "StatefulSet", "db", None),
        ("apps/v1", "StatefulSet", "$(b)", None),
    ] {
        assert_eq!(owner(api_version, kind, name).as_deref(), expected, "{api_version} {kind} {name}");
    }
}
