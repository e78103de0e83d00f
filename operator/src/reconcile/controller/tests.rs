use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Mutex;

use axum::http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use sluice_config::policy::Mode;
use sluice_crds::Installation;
use tokio::task::AbortHandle;

use super::*;
use crate::cluster::namespaces::LimitRanges;
use crate::cluster::pods::pod::Pod;
use crate::distribution::hub::Hub;
use crate::distribution::session::Identity;
use crate::distribution::stores::{HubStores, StoreSource};
use crate::events::Events;
use crate::injection::inject::tests::config;
use crate::metrics::Metrics;
use crate::queue::Queue;
use crate::reconcile::affected::COUNT_INTERVAL;
use crate::reconcile::context::{Home, Injection, Outputs};
use crate::reconcile::pace::SETTLE;

/// The behaviour of the API server. It accepts every status, unless it hangs.
#[derive(Clone, Copy, PartialEq)]
enum ApiServer {
    Hangs,
    Fails,
    ListsNothing,
}

/// A running controller, with an API server played by the test.
struct Controller {
    context: Arc<Context>,
    /// Statuses that were written.
    written: Arc<Mutex<Vec<Value>>>,
    running: AbortHandle,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.running.abort();
    }
}

impl Controller {
    /// Starts a controller whose tables of pods, Services and namespaces are not listed yet.
    fn start(api_server: ApiServer) -> Self {
        let written = Arc::new(Mutex::new(Vec::new()));
        let statuses = written.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let statuses = statuses.clone();
            async move {
                let response = respond(api_server, request, &statuses).await;
                Ok::<_, Infallible>(response)
            }
        });
        let client = kube::Client::new(service, "default");
        let queue = Arc::new(Queue::default());
        let outputs = Outputs {
            client,
            hub: Arc::new(Hub::new(queue.clone())),
            queue,
            uncounted: Arc::default(),
            metrics: Arc::new(Metrics::default()),
            events: Events::channel().0,
            pod_events: Events::channel().0,
        };
        let context = Arc::new(Context::new(
            outputs,
            Home { installation: Installation::default(), namespace: "sluice-system".into(), service: None },
            Injection { config: Arc::new(config(true)), limit_ranges: LimitRanges::default() },
        ));
        context.outputs.hub.set_stores(HubStores { default: StoreSource::Memory, ..HubStores::default() });
        context.outputs.hub.set_mode(Mode::Enforce);
        let running = tokio::spawn(run(context.clone())).abort_handle();
        Self { context, written, running }
    }

    fn listed(self) -> Self {
        let context = &self.context;
        context.inputs.pods.listed.set();
        context.inputs.services.listed.set();
        context.inputs.inference_pools.listed.set();
        context.inputs.endpoint_slices.listed.set();
        context.inputs.network_policies.listed.set();
        context.inputs.namespaces.listed.set();
        context.inputs.stores.send_replace(Some(BTreeMap::new()));
        self
    }

    /// Does what the watch of policies does for an edit, and waits until the controller is idle.
    /// Inserts a pod with a sidecar that the policies select.
    fn insert_pod(&self, name: &str) {
        self.context.inputs.pods.insert_with_sidecar(&kube::api::ObjectMeta {
            uid: Some(name.into()),
            name: Some(name.into()),
            namespace: Some("n".into()),
            labels: Some([("app".to_owned(), "a".to_owned())].into()),
            ..Default::default()
        });
        self.context.outputs.uncounted.add_observed(["n".to_owned()]);
    }

    async fn apply(&self, name: &str, uid: &str, generation: i64, spec: Value) {
        let key = self.context.inputs.policies.apply(object(name, uid, generation, &spec));
        self.context.outputs.queue.add(key);
        idle().await;
    }

    /// Does what the watch of policies does for a deletion, and waits until the controller is idle.
    async fn delete(&self, name: &str, uid: &str) {
        self.context.inputs.policies.delete(&key(name), uid);
        self.context.outputs.hub.remove(uid);
        idle().await;
    }

    async fn is_open(&self) -> bool {
        tokio::time::timeout(Duration::ZERO, self.context.outputs.hub.opened()).await.is_ok()
    }

    /// Returns the UIDs and requests per hour of the policies that a pod of the namespace would receive.
    fn published(&self) -> Vec<(String, i64)> {
        let identity = Identity {
            enforcer: sluice_crds::policy::Enforcer::Sidecar,
            namespace: "n".into(),
            pod: "p".into(),
            pod_uid: "pod".into(),
            labels: Arc::new([("app".to_owned(), "a".to_owned())].into()),
            expires: None,
        };
        let _closed = self.context.outputs.hub.connect(identity, "s");
        let policies = self.context.outputs.hub.desired("pod", true).unwrap().policies.unwrap().policies;
        let requests = |policy: &str| {
            let policy: Value = serde_json::from_str(policy).unwrap();
            policy["limits"][0]["kind"]["rates"]["base"][0]["requests"].as_i64().unwrap()
        };
        policies.into_iter().map(|(uid, policy)| (uid, requests(policy.policy.get()))).collect()
    }

    /// Returns the reason of a condition in the last status that was written.
    fn reason(&self, kind: &str) -> Option<String> {
        let written = self.written.lock().unwrap();
        let conditions = written.last()?["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|condition| condition["type"] == kind)?;
        Some(found["reason"].as_str()?.to_owned())
    }
}

async fn respond(api: ApiServer, request: Request<Body>, written: &Mutex<Vec<Value>>) -> Response<Body> {
    if api == ApiServer::Hangs {
        std::future::pending::<()>().await;
    }
    let is_patch = request.method() == Method::PATCH;
    let (code, body) = if is_patch {
        let body = request.into_body().collect_bytes().await.unwrap();
        let status: Value = serde_json::from_slice(&body).unwrap();
        written.lock().unwrap().push(status.clone());
        (StatusCode::OK, status)
    } else if api == ApiServer::Fails {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500});
        (StatusCode::INTERNAL_SERVER_ERROR, status)
    } else {
        (StatusCode::OK, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []}))
    };
    Response::builder().status(code).body(Body::from(body.to_string().into_bytes())).unwrap()
}

/// Waits until no task can make progress. Time is paused, so it advances only then.
async fn idle() {
    tokio::time::sleep(2 * SETTLE).await;
}

fn key(name: &str) -> PolicyKey {
    PolicyKey { namespace: "n".into(), name: name.into() }
}

fn object(name: &str, uid: &str, generation: i64, spec: &Value) -> DynamicObject {
    let object = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy",
        "metadata": {
            "namespace": "n", "name": name, "uid": uid, "generation": generation, "resourceVersion": "1",
        },
        "spec": spec,
    });
    serde_json::from_value(object).unwrap()
}

fn spec(requests: i64) -> Value {
    let limit = json!({
        "name": "l", "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": requests, "per": "1h"}],
    });
    // With `Share` a policy is held back until its replicas are known.
    json!({"selector": {"matchLabels": {"app": "a"}}, "onStoreFailure": "Allow", "limits": [limit]})
}

#[tokio::test(start_paused = true)]
async fn sessions_begin_when_every_policy_of_the_first_list_is_published() {
    let controller = Controller::start(ApiServer::Hangs);
    let policies = &controller.context.inputs.policies;
    controller.apply("a", "1", 1, spec(1)).await;
    // The watch has put this one into the table, but the controller has not reconciled it.
    let waiting = policies.apply(object("b", "2", 1, &spec(2)));
    assert!(!controller.is_open().await, "the list is not complete");
    policies.list_is_complete();
    idle().await;
    assert!(!controller.is_open().await, "a listed policy is not published");
    assert_eq!(controller.published(), [("1".to_owned(), 1)]);
    controller.context.outputs.queue.add(waiting);
    idle().await;
    // Neither pods were listed nor has the API server responded.
    assert!(controller.is_open().await);
    assert_eq!(controller.published(), [("1".to_owned(), 1), ("2".to_owned(), 2)]);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_or_deleted_policy_of_the_first_list_does_not_keep_the_hub_closed() {
    let controller = Controller::start(ApiServer::Hangs);
    controller.apply("invalid", "1", 1, json!({"limits": "none"})).await;
    controller.context.inputs.policies.apply(object("deleted", "2", 1, &spec(2)));
    controller.context.inputs.policies.list_is_complete();
    idle().await;
    assert!(!controller.is_open().await);
    controller.delete("deleted", "2").await;
    assert!(controller.is_open().await);
}

#[tokio::test(start_paused = true)]
async fn a_policy_is_compiled_and_its_status_written_once_for_each_event() {
    let controller = Controller::start(ApiServer::ListsNothing).listed();
    for edit in 1..=3 {
        controller.apply("a", "1", edit, spec(edit)).await;
        let written = controller.written.lock().unwrap().len();
        assert_eq!((RECONCILES.get(), written), (edit as usize, edit as usize));
    }
    assert_eq!(controller.reason("Programmed").as_deref(), Some("Pending"));
}

#[tokio::test(start_paused = true)]
async fn events_during_a_reconcile_lead_to_one_more_reconcile() {
    let controller = Controller::start(ApiServer::ListsNothing);
    controller.apply("a", "1", 1, spec(1)).await;
    assert_eq!(RECONCILES.get(), 1);
    for _ in 0..100 {
        controller.context.outputs.queue.add(key("a"));
        idle().await;
    }
    assert_eq!(RECONCILES.get(), 1, "the first reconcile waits until pods are listed");
    let _controller = controller.listed();
    idle().await;
    assert_eq!(RECONCILES.get(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_burst_of_events_leads_to_one_more_reconcile() {
    let controller = Controller::start(ApiServer::ListsNothing).listed();
    controller.apply("a", "1", 1, spec(1)).await;
    let before = RECONCILES.get();
    for _ in 0..40 {
        controller.context.outputs.queue.add(key("a"));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    idle().await;
    assert_eq!(RECONCILES.get() - before, 2);
    // A status that has yet to be computed sees the pods and reports of then.
    let before = RECONCILES.get();
    for _ in 0..40 {
        controller.context.outputs.queue.add_observed([key("a")]);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    idle().await;
    assert_eq!(RECONCILES.get() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn an_edit_is_published_while_the_status_before_it_waits_for_the_api_server() {
    let controller = Controller::start(ApiServer::Hangs).listed();
    for edit in 1..=3 {
        controller.apply("a", "1", edit, spec(edit)).await;
        assert_eq!(controller.published(), [("1".to_owned(), edit)]);
    }
    // More policies than may use the API server at the same time.
    for other in 10..30 {
        controller.apply(&other.to_string(), &other.to_string(), 1, spec(other)).await;
        assert!(controller.published().contains(&(other.to_string(), other)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_policy_created_again_under_its_name_replaces_the_deleted_one() {
    let controller = Controller::start(ApiServer::Hangs).listed();
    controller.apply("a", "1", 1, spec(1)).await;
    let before = controller.context.inputs.policies.get(&key("a")).unwrap();
    controller.delete("a", "1").await;
    assert_eq!(controller.published(), []);
    controller.apply("a", "2", 1, spec(2)).await;
    assert_eq!(controller.published(), [("2".to_owned(), 2)]);
    // A reconcile that had read the deleted object publishes nothing.
    let late = validate(&before, &Installation::default());
    let late = publish(
        &controller.context,
        &key("a"),
        &before,
        late,
        Resolution::Resolved { blobs: Vec::new(), unusable: Vec::new() },
    );
    assert!(late.unwrap().is_none());
    assert_eq!(controller.published(), [("2".to_owned(), 2)]);
}

#[tokio::test(start_paused = true)]
async fn a_failed_reconcile_is_retried_and_publishing_again_changes_nothing() {
    let controller = Controller::start(ApiServer::Fails).listed();
    controller.apply("a", "1", 1, spec(1)).await;
    let mut version = controller.context.outputs.hub.version.subscribe();
    version.mark_unchanged();
    assert_eq!(RECONCILES.get(), 1);
    tokio::time::sleep(RETRY + RETRY_JITTER).await;
    assert_eq!(RECONCILES.get(), 2);
    assert!(!version.has_changed().unwrap());
    assert!(
        controller
            .context
            .outputs
            .metrics
            .text(&controller.context.outputs.hub)
            .contains("reconcile_failures_total 2")
    );
}

#[tokio::test(start_paused = true)]
async fn an_invalid_edit_is_reported_even_if_its_pods_cannot_be_read() {
    let controller = Controller::start(ApiServer::Fails).listed();
    controller.context.inputs.pods.insert(Pod {
        uid: "pod".into(),
        namespace: "n".into(),
        name: "pod".into(),
        labels: Arc::new([("app".to_owned(), "a".to_owned())].into()),
        ends: None,
        created: None,
        owner: None,
        controller: None,
    });
    controller.apply("a", "1", 1, spec(1)).await;
    assert_eq!(controller.reason("Accepted"), None, "the status of a valid policy needs its pods");
    controller.apply("a", "1", 2, json!({"limits": "none"})).await;
    assert_eq!(controller.reason("Accepted").as_deref(), Some("Invalid"));
    assert_eq!(controller.published(), [("1".to_owned(), 1)], "the last valid edit is kept");
}

#[tokio::test(start_paused = true)]
async fn replicas_are_counted_every_second_while_the_status_of_many_pods_waits_longer() {
    const PODS: usize = 4_000;
    let controller = Controller::start(ApiServer::ListsNothing).listed();
    let create = |name: String| {
        controller.insert_pod(&name);
        controller.context.outputs.queue.add(key("a"));
    };
    (0..PODS).for_each(|pod| create(pod.to_string()));
    tokio::time::advance(START).await;
    controller.apply("a", "1", 1, spec(1)).await;
    let uid = controller.published().remove(0).0;
    let replicas =
        || controller.context.outputs.hub.desired("pod", false).unwrap().replicas[&uid].count as usize;
    let written = || controller.written.lock().unwrap().len();
    // A pod that has a session and is none of them counts too.
    assert_eq!((replicas(), written()), (PODS + 1, 1));
    // The edit is no longer new, and pods keep coming.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let mut waited = 0;
    for pod in 0..8 {
        let before = written();
        create(format!("new-{pod}"));
        tokio::time::sleep(COUNT_INTERVAL + 2 * SETTLE).await;
        assert_eq!(replicas(), PODS + pod + 2);
        waited += usize::from(written() == before);
    }
    assert!(waited > 1, "the status was computed as often");
}

#[tokio::test(start_paused = true)]
async fn the_status_of_a_policy_with_pods_does_not_wait_for_those_without() {
    let controller = Controller::start(ApiServer::ListsNothing).listed();
    // As many policies without pods as may be in the middle of requests.
    let all = u32::try_from(controller.context.idle_permits.available_permits()).unwrap();
    let others = controller.context.idle_permits.acquire_many(all).await.unwrap();
    let written = || controller.written.lock().unwrap().len();
    controller.apply("a", "1", 1, spec(1)).await;
    assert_eq!(written(), 0);
    controller.insert_pod("pod");
    tokio::time::advance(START).await;
    controller.apply("b", "2", 1, spec(2)).await;
    assert_eq!(written(), 1);
    drop(others);
    idle().await;
    assert_eq!(written(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_has_just_started_does_not_write_that_pods_are_pending_while_sidecars_connect() {
    let controller = Controller::start(ApiServer::ListsNothing).listed();
    let written = || controller.written.lock().unwrap().len();
    controller.apply("without", "1", 1, spec(1)).await;
    assert_eq!(written(), 1, "nothing connects for a policy without pods");
    controller.insert_pod("pod");
    controller.apply("a", "2", 1, spec(2)).await;
    assert_eq!(written(), 1);
    tokio::time::sleep(START + AT_START).await;
    assert_eq!(written(), 2, "it says so then");
}

#[tokio::test(start_paused = true)]
async fn replicas_are_counted_while_statuses_wait_for_their_permits() {
    let controller = Controller::start(ApiServer::ListsNothing).listed();
    let permits = &controller.context.api_permits;
    let all = u32::try_from(permits.available_permits()).unwrap();
    let statuses = permits.acquire_many(all).await.unwrap();
    controller.insert_pod("1");
    controller.apply("a", "1", 1, spec(1)).await;
    let uid = controller.published().remove(0).0;
    let hub = &controller.context.outputs.hub;
    // A pod that has a session and is none of them counts too.
    let replicas = || hub.desired("pod", false).unwrap().replicas[&uid].count;
    assert_eq!(replicas(), 2);
    controller.insert_pod("2");
    tokio::time::sleep(COUNT_INTERVAL + 2 * SETTLE).await;
    assert_eq!(replicas(), 3);
    assert!(controller.written.lock().unwrap().is_empty());
    drop(statuses);
    tokio::time::sleep(START + AT_START).await;
    assert_eq!(controller.written.lock().unwrap().len(), 1);
}
