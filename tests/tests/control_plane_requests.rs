//! Requests of the operator to the API server, on a control plane of its own, which counts them.

use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use sluice_config::message::{PolicyFindings, PolicyReport, StoreReport};
use sluice_tests::components::{ControlClient, Operator, Session};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};

/// Nothing listens here. The sidecars' reports decide about the store.
const STORE_URL: &str = "redis://127.0.0.1:1";

/// Applies policies for the pods with the label `app: a`.
async fn apply(namespace: &TestNamespace, policies: &[&str], requests: i64) {
    for name in policies {
        let limit = json!({
            "name": "l", "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": requests, "per": "1h"}],
        });
        let spec = json!({"selector": {"matchLabels": {"app": "a"}}, "limits": [limit]});
        namespace.apply(name, spec).await.unwrap();
    }
}

/// Creates pods with sidecars, and a token for each.
async fn pods(namespace: &TestNamespace, count: usize) -> Vec<(Pod, String)> {
    join_all((0..count).map(|n| async move {
        let pod = namespace.pod(&format!("pod-{n}"), true, json!({"app": "a"})).await;
        let token = namespace.token(&pod, "sluice.dev").await;
        (pod, token)
    }))
    .await
}

/// Follows a session until it has this many policies, and reports each as applied when it comes.
async fn follow(mut session: Session, count: usize) -> Session {
    let mut reports = std::collections::BTreeMap::new();
    while reports.len() < count {
        for (uid, published) in session.policies().await.0.policies {
            let hash = published.hash;
            let applied = PolicyReport::Applied { hash, findings: PolicyFindings::NOTHING };
            reports.insert(uid, applied);
        }
        session.report(reports.clone(), StoreReport::HEALTHY).await;
    }
    session
}

/// Returns how many requests the API server has counted in a line with all these texts.
async fn requests(namespace: &TestNamespace, texts: &[&str]) -> u64 {
    let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
    let page = namespace.client.request_text(request).await.unwrap();
    let lines = page.lines().filter(|line| line.starts_with("apiserver_request_total{"));
    let lines = lines.filter(|line| texts.iter().all(|text| line.contains(text)));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

#[tokio::test]
async fn no_write_of_status_conflicts_with_the_one_before() {
    const POLICIES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let plane = ControlPlane::start().await;
    let operator = Operator::start(&plane, "sluice-system", STORE_URL).await;
    let namespace = TestNamespace::create(plane.client().await, "many").await;
    let control = ControlClient::new(&operator.control_url, operator.ca_file());
    apply(&namespace, &POLICIES, 5).await;
    let pods = pods(&namespace, 20).await;
    let mut sessions = Vec::new();
    for (_, token) in &pods {
        // One after another, as in a rollout.
        let session = control.connect(token, None).await.expect("a session");
        sessions.push(follow(session, POLICIES.len()).await);
    }
    for policy in POLICIES {
        namespace.wait_for(policy, "Programmed", "True Programmed").await;
    }
    let of_status = ["resource=\"ratelimitpolicies\"", "subresource=\"status\""];
    let conflicts = requests(&namespace, &[&of_status[..], &["code=\"409\""]].concat()).await;
    let written = requests(&namespace, &[&of_status[..], &["code=\"200\""]].concat()).await;
    println!("{written} writes of status, {conflicts} conflicts");
    assert!(written >= 5 && conflicts == 0, "{written} writes, {conflicts} conflicts");
}

#[tokio::test]
async fn an_operator_that_restarts_reads_no_pod_twice() {
    const PODS: usize = 60;
    let plane = ControlPlane::start().await;
    let mut operator = Operator::start(&plane, "sluice-system", STORE_URL).await;
    let namespace = TestNamespace::create(plane.client().await, "restart").await;
    apply(&namespace, &["a", "b"], 5).await;
    let pods = pods(&namespace, PODS).await;
    let connect_all = async |operator: &Operator| {
        let control = ControlClient::new(&operator.control_url, operator.ca_file());
        let sessions = pods.iter().map(|(_, token)| async {
            let session = control.connect(token, None).await.expect("a session");
            follow(session, 2).await
        });
        let sessions = join_all(sessions).await;
        for policy in ["a", "b"] {
            namespace.wait_for(policy, "Programmed", "True Programmed").await;
        }
        sessions
    };
    let reads = async || requests(&namespace, &["resource=\"pods\"", "verb=\"GET\""]).await;
    drop(connect_all(&operator).await);
    let before = reads().await;
    assert!(before <= PODS as u64, "{before} requests for {PODS} pods");
    operator.process.stop();
    let operator = Operator::start(&plane, "sluice-system", STORE_URL).await;
    let _sessions = connect_all(&operator).await;
    let at_restart = reads().await - before;
    println!("{before} and {at_restart} requests for {PODS} pods");
    // They are listed together, but for those that are needed before the others.
    assert!(at_restart <= 32, "{at_restart} requests for {PODS} pods");
}
