//! Conditions of a policy while its pods' sidecars confirm, nack, hang, or confirm another hash.

use serde_json::json;
use sluice_config::PolicyHash;
use sluice_config::message::{PolicyFindings, PolicyReport, StoreReport};

use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use sluice_crds::RateLimitPolicy;
use sluice_tests::kubernetes::TestNamespace;
use sluice_tests::wait::until;

use super::fixture::{confirm, invalid_spec, open_session, spec, start};

#[tokio::test]
async fn reconcile_reports_ready_when_every_pod_has_confirmed_the_current_policy() {
    let (namespace, control) = start("confirm").await;
    namespace.service("web", json!({"app": "a"}), json!("http")).await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut one = open_session(&namespace, &control, "one").await;
    let mut two = open_session(&namespace, &control, "two").await;
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
async fn reconcile_reports_pods_that_nack_disconnect_or_confirm_another_hash() {
    let (namespace, control) = start("unconfirmed").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut session = open_session(&namespace, &control, "one").await;
    let (policies, _) = session.policies().await;
    let (uid, published) = policies.policies.into_iter().next().unwrap();

    let other = PolicyReport::Applied { hash: PolicyHash::of("another"), findings: PolicyFindings::NOTHING };
    session.report([(uid.clone(), other)], StoreReport::HEALTHY).await;
    namespace.wait_for("p", "Programmed", "False PodsUnconfirmed").await;

    let nack =
        PolicyReport::Nacked { hash: published.hash.clone(), reason: "unknown\u{1b}[2J kind `magic`".into() };
    session
        .report(
            [(uid.clone(), nack)],
            StoreReport::Failing { fault: sluice_store::StoreFault::Unreachable, cause: None },
        )
        .await;
    let message = namespace.wait_for("p", "Programmed", "False Refused").await;
    assert!(message.contains("one: unknown[2J kind `magic`"), "{message}");
    namespace.wait_for("p", "StoreHealthy", "False Unreachable").await;

    session
        .report(
            [(uid, PolicyReport::Applied { hash: published.hash, findings: PolicyFindings::NOTHING })],
            StoreReport::HEALTHY,
        )
        .await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    drop(session);
    // A confirmation expires some time after its session has ended.
    namespace.wait_for("p", "Programmed", "False PodsUnconfirmed").await;
}

#[tokio::test]
async fn reconcile_names_pods_without_a_sidecar_and_the_command_that_adds_it() {
    let (namespace, control) = start("bare").await;
    namespace.apply("p", spec(5)).await.unwrap();
    namespace.wait_for("p", "Programmed", "False NoPods").await;
    namespace.pod("old", false, json!({"app": "a"})).await;
    let message = namespace.wait_for("p", "Programmed", "False NotInjected").await;
    // It was created long after the label of its namespace, and the webhook of this test is called for no pod.
    let expected = "1 of 1 pod has no sidecar, although pod old was created while the namespace was labelled and this operator \
                    ran: the API server did not call the webhook. To add it, recreate pod/old.";
    assert_eq!(message, expected);
    let told = format!("Warning NotInjected Programmed is False: {message}");
    wait_for_event(&namespace, &told).await;
    namespace.pod("out", false, json!({"app": "a", "sluice.dev/inject": "false"})).await;
    namespace.delete_pod("old").await;
    let mut new = open_session(&namespace, &control, "new").await;
    confirm(&mut new).await;
    let message = namespace.wait_for("p", "Ready", "True Ready").await;
    wait_for_event(&namespace, &format!("Normal Ready Ready is True: {message}")).await;
}

/// Waits for an event about the policy, written as type, reason and note.
async fn wait_for_event(namespace: &TestNamespace, expected: &str) {
    let policy = namespace.api::<RateLimitPolicy>().get("p").await.unwrap();
    until(expected, async || {
        let events = namespace.api::<Event>().list(&ListParams::default()).await.ok()?.items;
        let of_policy = events.iter().filter(|event| {
            let regarding = event.regarding.as_ref();
            regarding.is_some_and(|regarding| regarding.uid == policy.metadata.uid)
        });
        let text = |event: &Event| {
            let parts =
                [&event.type_, &event.reason, &event.note].map(|part| part.clone().unwrap_or_default());
            parts.join(" ")
        };
        of_policy.map(text).any(|text| text == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn reconcile_publishes_the_last_valid_edit_while_the_newest_is_invalid() {
    let (namespace, control) = start("keep").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut session = open_session(&namespace, &control, "one").await;
    let hash = confirm(&mut session).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    namespace.apply("p", invalid_spec()).await.unwrap();
    let message = namespace.wait_for("p", "Accepted", "False Invalid").await;
    assert!(message.starts_with("spec.limits[0].rates[0].per: 9000h is out of range"), "{message}");
    namespace.wait_for("p", "Ready", "False Invalid").await;
    // A pod created now receives the last valid edit too.
    let mut late = open_session(&namespace, &control, "late").await;
    assert_eq!(confirm(&mut late).await, hash);
}
