use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use kube::client::Body;
use kube::core::Selector;
use serde_json::json;

use super::*;

/// Returns a client of an API server with one pending pod, `web-1` with the label `app: web`, on its last page of pods or on an
/// earlier one, and the number of its requests.
fn api_server(is_last_page: bool) -> (kube::Client, Arc<AtomicUsize>) {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let requests = Arc::new(AtomicUsize::new(0));
    let count = requests.clone();
    let service = tower::service_fn(move |request: axum::http::Request<Body>| {
        count.fetch_add(1, Ordering::Relaxed);
        let uri = request.uri();
        let is_selected = !uri.query().is_some_and(|query| query.contains("labelSelector"));
        let pod = json!({"metadata": {"name": "web-1", "labels": {"app": "web"}}, "status": {}});
        let items = if uri.path().ends_with("/pods") && is_selected { vec![pod] } else { Vec::new() };
        let metadata = json!({"continue": if is_last_page { "" } else { "more" }});
        let list = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": items});
        let response = axum::http::Response::new(Body::from(list.to_string().into_bytes()));
        std::future::ready(Ok::<_, std::io::Error>(response))
    });
    (kube::Client::new(service, "default"), requests)
}

fn selector(app: &str) -> PodSelector {
    [("app".to_owned(), app.to_owned())].into_iter().collect::<Selector>().into()
}

#[tokio::test(start_paused = true)]
async fn the_policies_of_a_namespace_share_what_is_read_of_it() {
    for (is_last_page, for_each) in [(true, 0), (false, 1)] {
        let (client, requests) = api_server(is_last_page);
        let absent = AbsentPods::default();
        let find = async |policy: usize, app: &str, since: Instant| {
            let key = PolicyKey::new("shop", policy.to_string());
            absent.find(&client, &key, since, &selector(app), |_| false).await.unwrap()
        };
        let sent = || requests.swap(0, Ordering::Relaxed);
        let start = Instant::now();
        let others = join_all((0..100).map(|policy| find(policy, "other", start))).await;
        assert!(others.iter().all(|absent| **absent == Absent::default()));
        assert_eq!(sent(), 5 + 100 * for_each, "pods and four kinds of workloads");
        assert_eq!(find(100, "web", start).await.pending.as_deref(), Some("web-1"));
        assert_eq!(sent(), 0);

        // Something has happened since, perhaps to one of these objects.
        tokio::time::advance(Duration::from_millis(1)).await;
        find(101, "other", Instant::now()).await;
        find(100, "other", Instant::now()).await;
        assert_eq!(sent(), 5 + 2 * for_each);

        // Time has led to this.
        tokio::time::advance(KEEP).await;
        for policy in 0..100 {
            find(policy, "other", Instant::now()).await;
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert_eq!(sent(), 5 + 100 * for_each);
        tokio::time::advance(RETAINED).await;
        let other = PolicyKey::new("bank", "p");
        absent.find(&client, &other, Instant::now(), &selector("web"), |_| false).await.unwrap();
        assert_eq!(lock(&absent.read).len(), 1, "what is old is forgotten");
    }
}
