//! The operator as a process on a real API server, with sidecars played by the test: status tells the truth about
//! sidecars that confirm, refuse, hang, or confirm something else.

use serde_json::json;
use sluice_config::PolicyHash;
use sluice_config::message::{LiveReplicas, PolicyReport, Replica, StoreReport};
use sluice_tests::cluster::TestNamespace;
use sluice_tests::control::{Control, Stream};
use sluice_tests::control_plane::ControlPlane;
use sluice_tests::operator::Operator;
use sluice_tests::wait::until;
use tokio::sync::OnceCell;

const STORE: &str = "redis://127.0.0.1:1";

static OPERATOR: OnceCell<Operator> = OnceCell::const_new();

/// One operator for all tests of this file, and a namespace for each.
async fn start(prefix: &str) -> (TestNamespace, Control) {
    let plane = ControlPlane::shared().await;
    let operator = OPERATOR.get_or_init(|| Operator::start(plane, "reconcile-system", STORE)).await;
    let namespace = TestNamespace::create(plane.client().await, prefix).await;
    (namespace, Control::new(&operator.control, &operator.authority()))
}

fn spec(requests: i64) -> serde_json::Value {
    json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{"name": "l", "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": requests, "per": "1h"}]}],
    })
}

async fn sidecar(namespace: &TestNamespace, control: &Control, pod: &str) -> Stream {
    let pod = namespace.pod(pod, true, json!({"app": "a"})).await;
    control.connect(&namespace.token(&pod, "sluice.dev").await, None).await.expect("a stream")
}

/// Confirms everything that the next event says.
async fn confirm(stream: &mut Stream) -> PolicyHash {
    let (policies, _) = stream.policies().await;
    let applied = |hash: &PolicyHash| PolicyReport::Applied { hash: hash.clone() };
    let hash = policies.policies.values().next().expect("a policy").hash.clone();
    stream
        .report(
            policies.policies.iter().map(|(uid, p)| (uid.clone(), applied(&p.hash))),
            StoreReport::Healthy,
        )
        .await;
    hash
}

#[tokio::test]
async fn reconcile_is_ready_when_every_pod_has_confirmed_this_very_policy() {
    let (namespace, control) = start("confirm").await;
    namespace.service("web", json!({"app": "a"}), json!("http")).await;
    namespace.apply("p", spec(5)).await.unwrap();
    let (mut one, mut two) =
        (sidecar(&namespace, &control, "one").await, sidecar(&namespace, &control, "two").await);
    let message = namespace.wait_for("p", "Programmed", "False PodsUnconfirmed").await;
    assert!(
        message.contains("2 of 2 pods") && message.contains("one") && message.contains("two"),
        "{message}"
    );
    let first = confirm(&mut one).await;
    confirm(&mut two).await;
    namespace.wait_for("p", "Programmed", "True Programmed").await;
    namespace.wait_for("p", "Captured", "True AllTraffic").await;
    namespace.wait_for("p", "StoreHealthy", "True Healthy").await;
    namespace.wait_for("p", "Ready", "True Ready").await;

    namespace.apply("p", spec(7)).await.unwrap();
    namespace.wait_for("p", "Programmed", "False Pending").await;
    namespace.wait_for("p", "Ready", "False Pending").await;
    assert_ne!(confirm(&mut one).await, first);
    confirm(&mut two).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
}

#[tokio::test]
async fn reconcile_reports_pods_that_refuse_hang_or_confirm_another_hash() {
    let (namespace, control) = start("liars").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut stream = sidecar(&namespace, &control, "one").await;
    let (policies, _) = stream.policies().await;
    let (uid, published) = policies.policies.into_iter().next().unwrap();

    let other = PolicyReport::Applied { hash: PolicyHash::of("another") };
    stream.report([(uid.clone(), other)], StoreReport::Healthy).await;
    namespace.wait_for("p", "Programmed", "False PodsUnconfirmed").await;

    let refused =
        PolicyReport::Nacked { hash: published.hash.clone(), reason: "unknown\u{1b}[2J kind `magic`".into() };
    stream.report([(uid.clone(), refused)], StoreReport::Failing { fault: "unreachable".into() }).await;
    let message = namespace.wait_for("p", "Programmed", "False Refused").await;
    assert!(message.contains("one: unknown[2J kind `magic`"), "{message}");
    namespace.wait_for("p", "StoreHealthy", "False Unreachable").await;

    stream.report([(uid, PolicyReport::Applied { hash: published.hash })], StoreReport::Healthy).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    drop(stream);
    // A confirmation lapses some time after its stream has ended.
    namespace.wait_for("p", "Programmed", "False PodsUnconfirmed").await;
}

#[tokio::test]
async fn reconcile_names_pods_without_a_sidecar_and_the_command_that_mends_them() {
    let (namespace, control) = start("bare").await;
    namespace.apply("p", spec(5)).await.unwrap();
    namespace.wait_for("p", "Programmed", "False NoPods").await;
    namespace.pod("old", false, json!({"app": "a"})).await;
    let message = namespace.wait_for("p", "Programmed", "False NotInjected").await;
    assert_eq!(message, "1 of 1 pod carry no sidecar: delete and create anew pod/old.");
    namespace.pod("out", false, json!({"app": "a", "sluice.dev/inject": "false"})).await;
    namespace.delete_pod("old").await;
    let mut new = sidecar(&namespace, &control, "new").await;
    confirm(&mut new).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
}

#[tokio::test]
async fn reconcile_names_the_service_that_leads_past_the_sidecars() {
    let (namespace, control) = start("bypass").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut stream = sidecar(&namespace, &control, "one").await;
    confirm(&mut stream).await;
    namespace.service("legacy", json!({"app": "a"}), json!(8080)).await;
    let message = namespace.wait_for("p", "Captured", "False BypassedByService").await;
    assert_eq!(
        message,
        "Service legacy port 80 leads to 8080 of the pods, past the sidecars: set its targetPort to \"http\"."
    );
    namespace.wait_for("p", "Ready", "False BypassedByService").await;
    namespace.service("legacy", json!({"app": "a"}), json!("http")).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
}

#[tokio::test]
async fn reconcile_keeps_the_last_good_edit_when_a_worse_one_gets_in() {
    let (namespace, control) = start("keep").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut stream = sidecar(&namespace, &control, "one").await;
    let hash = confirm(&mut stream).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    // The schema cannot see this: without the webhook it gets in.
    let mut bad = spec(5);
    bad["limits"][0]["rates"] = json!([{"requests": 1, "per": "9000h"}]);
    namespace.apply("p", bad).await.unwrap();
    let message = namespace.wait_for("p", "Accepted", "False Invalid").await;
    assert!(message.starts_with("spec.limits[0].rates[0].per: 9000h is out of range"), "{message}");
    namespace.wait_for("p", "Ready", "False Invalid").await;
    // A pod that comes now gets the last good one.
    let mut late = sidecar(&namespace, &control, "late").await;
    assert_eq!(confirm(&mut late).await, hash);
}

#[tokio::test]
async fn reconcile_tells_sidecars_of_deletion_and_says_nothing_twice() {
    let (namespace, control) = start("delete").await;
    namespace.apply("p", spec(5)).await.unwrap();
    namespace.apply("q", spec(6)).await.unwrap();
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let token = namespace.token(&pod, "sluice.dev").await;
    let mut stream = until("both policies are in the stream", async || {
        let mut stream = control.connect(&token, None).await.ok()?;
        let (policies, id) = stream.policies().await;
        (policies.full && policies.policies.len() == 2).then_some((stream, id))
    })
    .await;
    let api = namespace.api::<sluice_crds::RateLimitPolicy>();
    let gone = api.get("p").await.unwrap().metadata.uid.unwrap();
    api.delete("p", &Default::default()).await.unwrap();
    let (delta, id) = stream.0.policies().await;
    assert!(!delta.full && delta.policies.is_empty() && delta.removed == [gone], "{delta:?}");
    assert_ne!(id, stream.1);
    // Who has applied all of it already is told nothing until something changes.
    let mut again = control.connect(&token, Some(&id)).await.unwrap();
    namespace.apply("q", spec(7)).await.unwrap();
    let (delta, _) = again.policies().await;
    assert!(!delta.full && delta.policies.len() == 1, "{delta:?}");
}

/// Reads the stream until it says that this pod is `index` of `count` of those that share the policy.
async fn is_told(stream: &mut Stream, policy: &str, index: u32, count: u32) {
    let reading = async {
        loop {
            let event = stream.event().await.expect("the stream goes on");
            let Some(data) = event.strip_prefix("event: live\n") else { continue };
            let data = data.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
            let live: LiveReplicas = serde_json::from_str(data).expect("an event of those that share");
            if live.policies.get(policy) == Some(&Replica { index, count }) {
                assert_eq!(live.policies.len(), 1, "nothing about policies of others");
                return;
            }
        }
    };
    let told = tokio::time::timeout(sluice_tests::wait::BOUND, reading).await;
    told.unwrap_or_else(|_| panic!("is not told that it is {index} of {count}"));
}

#[tokio::test]
async fn reconcile_tells_sidecars_how_many_share_a_policy_whether_they_have_a_stream_or_not() {
    let (namespace, control) = start("live").await;
    let uid = namespace.apply("p", spec(5)).await.unwrap().metadata.uid.unwrap();
    let mut other = spec(5);
    other["selector"] = json!({"matchLabels": {"app": "b"}});
    namespace.apply("other", other).await.unwrap();
    let mut pods = Vec::new();
    for name in ["one", "two", "three"] {
        pods.push(namespace.pod(name, true, json!({"app": "a"})).await);
    }
    namespace.pod("bare", false, json!({"app": "a"})).await;
    namespace.pod("b", true, json!({"app": "b"})).await;
    let of = |pod: &k8s_openapi::api::core::v1::Pod| pod.metadata.uid.clone().unwrap();
    let index = |pods: &[&k8s_openapi::api::core::v1::Pod], pod: &k8s_openapi::api::core::v1::Pod| {
        pods.iter().filter(|other| of(other) < of(pod)).count() as u32
    };
    // The third has no stream.
    let mut streams = Vec::new();
    for pod in &pods[..2] {
        let token = namespace.token(pod, "sluice.dev").await;
        streams.push(control.connect(&token, None).await.expect("a stream"));
    }
    let hash = confirm(&mut streams[0]).await;
    confirm(&mut streams[1]).await;
    let all: Vec<_> = pods.iter().collect();
    // What was said before the policies is over; a stream that begins anew is told first.
    for (pod, stream) in pods.iter().zip(&mut streams) {
        let token = namespace.token(pod, "sluice.dev").await;
        *stream = control.connect(&token, None).await.expect("a stream");
        is_told(stream, &uid, index(&all, pod), 3).await;
    }
    namespace.delete_pod("three").await;
    for (pod, stream) in pods.iter().zip(&mut streams) {
        is_told(stream, &uid, index(&all[..2], pod), 2).await;
    }
    // An edit that is invalid leaves what was there in force, for those that come later too.
    let mut bad = spec(5);
    bad["limits"][0]["rates"] = json!([{"requests": 1, "per": "9000h"}]);
    namespace.apply("p", bad).await.unwrap();
    namespace.wait_for("p", "Accepted", "False Invalid").await;
    let four = namespace.pod("four", true, json!({"app": "a"})).await;
    let now = [&pods[0], &pods[1], &four];
    for (pod, stream) in pods.iter().zip(&mut streams) {
        is_told(stream, &uid, index(&now, pod), 3).await;
    }
    // All of this has changed no policy.
    let token = namespace.token(&four, "sluice.dev").await;
    let mut late = control.connect(&token, None).await.expect("a stream");
    assert_eq!(late.policies().await.0.policies[&uid].hash, hash);
}

#[tokio::test]
async fn reconcile_says_who_shares_a_policy_before_the_policy_where_it_matters() {
    let (namespace, control) = start("local").await;
    let mut streams = Vec::new();
    for name in ["one", "two"] {
        let mut stream = sidecar(&namespace, &control, name).await;
        assert!(stream.policies().await.0.policies.is_empty());
        streams.push(stream);
    }
    let mut local = spec(5);
    local["consistency"] = json!("Local");
    let uid = namespace.apply("p", local).await.unwrap().metadata.uid.unwrap();
    for stream in &mut streams {
        let mut told = false;
        let reading = async {
            loop {
                let event = stream.event().await.expect("the stream goes on");
                if event.contains(&uid) && event.starts_with("event: policies\n") {
                    return;
                }
                told |= event.contains(&uid) && event.starts_with("event: live\n");
            }
        };
        tokio::time::timeout(sluice_tests::wait::BOUND, reading).await.expect("the policy");
        assert!(told, "the policy came first");
    }
}

#[tokio::test]
async fn stream_needs_a_token_of_a_pod_that_is_there() {
    let (namespace, control) = start("tokens").await;
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let denied = async |token: &str| control.connect(token, None).await.err().map(|status| status.as_u16());
    assert_eq!(denied("nonsense").await, Some(401));
    assert_eq!(denied("admin-token").await, Some(401));
    assert_eq!(denied(&namespace.token(&pod, "another-audience").await).await, Some(401));
    let token = namespace.token(&pod, "sluice.dev").await;
    assert_eq!(denied(&token).await, None);
    namespace.delete_pod("one").await;
    until("a token of a pod that is gone is worth nothing", async || {
        denied(&token).await.filter(|code| *code == 401)
    })
    .await;
}

#[tokio::test]
async fn stream_ends_with_its_pod() {
    let (namespace, control) = start("ends").await;
    let mut stream = sidecar(&namespace, &control, "one").await;
    let (policies, _) = stream.policies().await;
    assert!(policies.full && policies.policies.is_empty());
    namespace.delete_pod("one").await;
    assert_eq!(stream.event().await, None);
}
