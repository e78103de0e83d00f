//! What the status of a policy says about the pods that it finds, and about those that it does not.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use sluice_config::message::PolicyReport;
use sluice_crds::RateLimitPolicy;
use sluice_tests::kubernetes::TestNamespace;
use sluice_tests::wait::until;

use crate::fixture::{confirm, open_session, spec, start};

/// Waits until the message of a condition contains a text. Returns the status with the reason, and the message.
async fn wait_for_message(namespace: &TestNamespace, kind: &str, text: &str) -> (String, String) {
    until(&format!("{kind} says {text}"), async || {
        namespace.condition("p", kind).await.filter(|(_, message)| message.contains(text))
    })
    .await
}

/// Waits for an event about the object with this UID, and returns its type, reason and note.
async fn wait_for_event(namespace: &TestNamespace, uid: &str, reason: &str) -> String {
    until(&format!("an event {reason}"), async || {
        let events = namespace.api::<Event>().list(&ListParams::default()).await.ok()?.items;
        let mut found = events.into_iter().filter(|event| {
            let of_object = event.regarding.as_ref().and_then(|object| object.uid.as_deref()) == Some(uid);
            of_object && event.reason.as_deref() == Some(reason)
        });
        let event = found.next()?;
        Some(format!("{} {}", event.type_.unwrap_or_default(), event.note.unwrap_or_default()))
    })
    .await
}

#[tokio::test]
async fn an_application_that_does_not_answer_is_told_and_the_policy_stays_ready() {
    let (namespace, control) = start("silent").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut session = open_session(&namespace, &control, "one").await;
    let hash = confirm(&mut session).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    let policy = namespace.api::<RateLimitPolicy>().get("p").await.unwrap().metadata.uid.unwrap();
    let applied =
        || PolicyReport::Applied { hash: hash.clone(), untrusted_proxy: None, nearly_full: Vec::new() };
    session.report_unreachable([(policy.clone(), applied())], &[8080]).await;
    let (status, message) =
        wait_for_message(&namespace, "Ready", "has accepted no connection on port 8080").await;
    assert!(status == "True Ready" && message.contains("pod one"), "{status}: {message}");
    let pod = namespace.api::<Pod>().get("one").await.unwrap().metadata.uid.unwrap();
    let told = wait_for_event(&namespace, &pod, "ApplicationUnreachable").await;
    assert!(told.starts_with("Warning The application in pod one has accepted no connection"), "{told}");
    session.report_unreachable([(policy, applied())], &[]).await;
    until("the application answers", async || {
        let (_, message) = namespace.condition("p", "Ready").await?;
        (!message.contains("8080")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_pod_that_is_labelled_to_have_no_sidecar_counts_while_its_sidecar_runs() {
    let (namespace, control) = start("labelled-out").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut session = open_session(&namespace, &control, "one").await;
    confirm(&mut session).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    let label = json!({"metadata": {"labels": {"sluice.dev/inject": "false"}}});
    namespace.api::<Pod>().patch("one", &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
    let (status, message) = wait_for_message(&namespace, "Programmed", "applies to the next pod").await;
    assert!(status == "True Programmed" && message.contains("delete pod one"), "{status}: {message}");
    // It is still limited, so edits reach it.
    namespace.apply("p", spec(7)).await.unwrap();
    confirm(&mut session).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
}
