//! Sessions of sidecars with the operator: who gets one, and which events it sends.

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use sluice_config::message::{LiveReplicas, Replica};
use sluice_tests::components::Session;
use sluice_tests::wait::{BOUND, until};

use super::fixture::{confirm, invalid_spec, metrics, open_session, spec, start};

#[tokio::test]
async fn session_sends_deletions_and_does_not_repeat_what_the_sidecar_has_applied() {
    let (namespace, control) = start("delete").await;
    namespace.apply("p", spec(5)).await.unwrap();
    namespace.apply("q", spec(6)).await.unwrap();
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let token = namespace.token(&pod, "sluice.dev").await;
    let (mut session, first_id) = until("both policies are in the session", async || {
        let mut session = control.connect(&token, None).await.ok()?;
        let (policies, id) = session.policies().await;
        (policies.full && policies.policies.len() == 2).then_some((session, id))
    })
    .await;
    let api = namespace.api::<sluice_crds::RateLimitPolicy>();
    let deleted = api.get("p").await.unwrap().metadata.uid.unwrap();
    api.delete("p", &Default::default()).await.unwrap();
    let (delta, id) = session.policies().await;
    assert!(!delta.full && delta.policies.is_empty() && delta.removed == [deleted], "{delta:?}");
    assert_ne!(id, first_id);
    // The new session starts at the last event that the sidecar applied: it sends nothing until something
    // changes.
    let mut resumed = control.connect(&token, Some(&id)).await.unwrap();
    namespace.apply("q", spec(7)).await.unwrap();
    let (delta, _) = resumed.policies().await;
    assert!(!delta.full && delta.policies.len() == 1, "{delta:?}");
}

/// Reads events until one reports this pod as replica `index` of `count` of the policy.
async fn wait_for_replica(session: &mut Session, policy: &str, index: u32, count: u32) {
    let reading = async {
        loop {
            let event = session.event().await.expect("the session goes on");
            let Some(data) = event.strip_prefix("event: live\n") else { continue };
            let data = data.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
            let live: LiveReplicas = serde_json::from_str(data).expect("an event with replicas");
            if live.policies.get(policy) == Some(&Replica { index, count }) {
                assert_eq!(live.policies.len(), 1, "the event names no policy of other pods");
                return;
            }
        }
    };
    let found = tokio::time::timeout(BOUND, reading).await;
    found.unwrap_or_else(|_| panic!("no event reports replica {index} of {count}"));
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap()
}

/// Returns the index that a pod should have: replicas are numbered in the order of their UIDs.
fn index(replicas: &[&Pod], pod: &Pod) -> u32 {
    replicas.iter().filter(|other| uid(other) < uid(pod)).count() as u32
}

#[tokio::test]
async fn session_reports_all_running_replicas_of_a_policy_with_or_without_a_session() {
    let (namespace, control) = start("live").await;
    let policy_uid = namespace.apply("p", spec(5)).await.unwrap().metadata.uid.unwrap();
    let mut other = spec(5);
    other["selector"] = json!({"matchLabels": {"app": "b"}});
    namespace.apply("other", other).await.unwrap();
    let mut pods = Vec::new();
    for name in ["one", "two", "three"] {
        pods.push(namespace.pod(name, true, json!({"app": "a"})).await);
    }
    namespace.pod("bare", false, json!({"app": "a"})).await;
    namespace.pod("b", true, json!({"app": "b"})).await;
    // The third pod has no session.
    let mut sessions = Vec::new();
    for pod in &pods[..2] {
        let token = namespace.token(pod, "sluice.dev").await;
        sessions.push(control.connect(&token, None).await.expect("a session"));
    }
    let hash = confirm(&mut sessions[0]).await;
    confirm(&mut sessions[1]).await;
    let all: Vec<_> = pods.iter().collect();
    // `confirm` has skipped the events before the policies. A new session sends the replicas first.
    for (pod, session) in pods.iter().zip(&mut sessions) {
        let token = namespace.token(pod, "sluice.dev").await;
        *session = control.connect(&token, None).await.expect("a session");
        wait_for_replica(session, &policy_uid, index(&all, pod), 3).await;
    }
    namespace.delete_pod("three").await;
    for (pod, session) in pods.iter().zip(&mut sessions) {
        wait_for_replica(session, &policy_uid, index(&all[..2], pod), 2).await;
    }
    // After an invalid edit the last valid one stays active, also for pods that are created later.
    namespace.apply("p", invalid_spec()).await.unwrap();
    namespace.wait_for("p", "Accepted", "False Invalid").await;
    let four = namespace.pod("four", true, json!({"app": "a"})).await;
    let now = [&pods[0], &pods[1], &four];
    for (pod, session) in pods.iter().zip(&mut sessions) {
        wait_for_replica(session, &policy_uid, index(&now, pod), 3).await;
    }
    // Changes of the replicas have not changed the policy.
    let token = namespace.token(&four, "sluice.dev").await;
    let mut late = control.connect(&token, None).await.expect("a session");
    assert_eq!(late.policies().await.0.policies[&policy_uid].hash, hash);
}

#[tokio::test]
async fn session_sends_the_replicas_of_a_local_policy_before_the_policy() {
    let (namespace, control) = start("local").await;
    let mut sessions = Vec::new();
    for name in ["one", "two"] {
        let mut session = open_session(&namespace, &control, name).await;
        assert!(session.policies().await.0.policies.is_empty());
        sessions.push(session);
    }
    let mut local = spec(5);
    local["consistency"] = json!("Local");
    let policy_uid = namespace.apply("p", local).await.unwrap().metadata.uid.unwrap();
    for session in &mut sessions {
        let mut replicas_received = false;
        let reading = async {
            loop {
                let event = session.event().await.expect("the session goes on");
                if event.contains(&policy_uid) && event.starts_with("event: policies\n") {
                    return;
                }
                replicas_received |= event.contains(&policy_uid) && event.starts_with("event: live\n");
            }
        };
        tokio::time::timeout(BOUND, reading).await.expect("the policy");
        assert!(replicas_received, "the policy came first");
    }
}

#[tokio::test]
async fn session_needs_a_token_of_an_existing_pod() {
    let (namespace, control) = start("tokens").await;
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let rejected = async |token: &str| control.connect(token, None).await.err().map(|status| status.as_u16());
    assert_eq!(rejected("nonsense").await, Some(401));
    assert_eq!(rejected("admin-token").await, Some(401));
    assert_eq!(rejected(&namespace.token(&pod, "another-audience").await).await, Some(401));
    let token = namespace.token(&pod, "sluice.dev").await;
    assert_eq!(rejected(&token).await, None);
    let bare = namespace.pod("bare", false, json!({"app": "a"})).await;
    assert_eq!(rejected(&namespace.token(&bare, "sluice.dev").await).await, Some(403), "it has no sidecar");
    // The label applies to the next pod. A sidecar that runs has its session.
    let opted_out = namespace.pod("out", true, json!({"sluice.dev/inject": "false"})).await;
    assert_eq!(rejected(&namespace.token(&opted_out, "sluice.dev").await).await, None);
    namespace.delete_pod("one").await;
    until("the token of a deleted pod is rejected", async || {
        rejected(&token).await.filter(|code| *code == 403)
    })
    .await;
    let metrics = metrics().await;
    assert!(metrics.contains("sluice_operator_token_reviews_total 0\n"), "its keys decide: {metrics}");
}

#[tokio::test]
async fn session_of_a_pod_that_no_policy_selects_has_no_access_to_the_store() {
    let (namespace, control) = start("access").await;
    let mut session = open_session(&namespace, &control, "one").await;
    let mut access = async || loop {
        let event = session.event().await.expect("the session goes on");
        let Some(data) = event.strip_prefix("event: credentials\ndata: ") else { continue };
        let message: serde_json::Value = serde_json::from_str(data).expect("a message");
        return message["stores"]["default"]["access"]["redis"]["endpoints"].is_array();
    };
    assert!(!access().await);
    namespace.apply("p", spec(5)).await.unwrap();
    assert!(access().await, "a policy selects the pod");
    namespace.api::<sluice_crds::RateLimitPolicy>().delete("p", &Default::default()).await.unwrap();
    assert!(!access().await, "no policy selects it any more");
}

#[tokio::test]
async fn session_has_a_secret_for_hashing_keys_that_only_its_namespace_knows() {
    let mut secrets = Vec::new();
    for (prefix, pods) in [("secrets-a", &["one", "two"][..]), ("secrets-b", &["one"])] {
        let (namespace, control) = start(prefix).await;
        namespace.apply("p", spec(5)).await.unwrap();
        for pod in pods {
            let mut session = open_session(&namespace, &control, pod).await;
            let event = loop {
                let event = session.event().await.expect("the session goes on");
                // The policy may not be published yet.
                if event.starts_with("event: credentials\n") && event.contains("keySecret") {
                    break event;
                }
            };
            let data = event.lines().find_map(|line| line.strip_prefix("data: ")).expect("data");
            let message: serde_json::Value = serde_json::from_str(data).expect("a message");
            secrets.push(
                message["stores"]["default"]["access"]["keySecret"].as_str().expect("a secret").to_owned(),
            );
        }
    }
    assert!(secrets[0] == secrets[1] && secrets[1] != secrets[2], "{secrets:?}");
}

#[tokio::test]
async fn session_ends_with_the_reason_if_what_it_sends_is_no_report() {
    let (namespace, control) = start("refused").await;
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let token = namespace.token(&pod, "sluice.dev").await;
    for (line, reason) in [
        ("no report".to_owned(), "a report is not valid"),
        (json!({"version": 99, "policies": {}}).to_string(), "reports of version 99 are not supported"),
        ("[".repeat(262_145), "a report is longer than 262144 bytes"),
    ] {
        let mut session = control.connect(&token, None).await.unwrap();
        // It may have ended before all was sent.
        let _ = session.try_send_line(line).await;
        let refused: String = session.message("refused").await;
        assert!(refused.starts_with(reason), "{refused}");
        assert_eq!(session.event().await, None);
    }
}

#[tokio::test]
async fn session_ends_when_its_pod_is_deleted() {
    let (namespace, control) = start("ends").await;
    let mut session = open_session(&namespace, &control, "one").await;
    let (policies, _) = session.policies().await;
    assert!(policies.full && policies.policies.is_empty());
    namespace.delete_pod("one").await;
    while session.event().await.is_some() {}
}
