//! The status of a policy, about the pods that it finds and those that it does not.

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ResourceQuota};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use sluice_config::message::{PolicyFindings, PolicyReport};
use sluice_crds::RateLimitPolicy;
use sluice_tests::kubernetes::TestNamespace;
use sluice_tests::wait::until;

use super::fixture::{EXCLUDED, confirm, metrics, open_session, spec, start};

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
    let applied = || PolicyReport::Applied { hash: hash.clone(), findings: PolicyFindings::NOTHING };
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

#[tokio::test]
async fn a_pod_that_is_pending_is_named_with_what_it_waits_for() {
    let (namespace, _) = start("pending").await;
    let pod = json!({
        "metadata": {"name": "web-1", "labels": {"app": "a"}},
        "spec": {"serviceAccountName": "default", "containers": [{"name": "app", "image": "app"}]},
    });
    let pods = namespace.api::<Pod>();
    pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    let condition = json!({
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient cpu.",
    });
    let status = json!({"status": {"phase": "Pending", "conditions": [condition]}});
    pods.patch_status("web-1", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    namespace.apply("p", spec(5)).await.unwrap();
    let expected = "Pod web-1 is pending: it is not scheduled: 0/3 nodes are available: 3 Insufficient cpu.";
    let (status, message) = wait_for_message(&namespace, "Programmed", expected).await;
    assert_eq!(
        (status.as_str(), message.as_str()),
        ("False Pending", expected),
        "no alarm in the first seconds"
    );
    namespace.wait_for("p", "Programmed", "False NoPods").await;
}

#[tokio::test]
async fn a_workload_that_cannot_create_pods_is_named_in_the_words_of_the_api_server() {
    let (namespace, _) = start("replica-failure").await;
    let template = json!({
        "metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "app", "image": "app"}]},
    });
    let spec_of_web = json!({"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template});
    namespace.apply_object::<Deployment>("web", json!({"spec": spec_of_web})).await;
    let condition = json!({
        "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
        "message": "pods \"web-5d-\" is forbidden: exceeded quota: small, requested: limits.cpu=1",
    });
    let status = json!({"status": {"conditions": [condition]}});
    let deployments = namespace.api::<Deployment>();
    deployments.patch_status("web", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    namespace.apply("p", spec(5)).await.unwrap();
    let expected = "The pods of deployment/web cannot be created: pods \"web-5d-\" is forbidden: exceeded quota: small, requested: limits.cpu=1.";
    wait_for_message(&namespace, "Programmed", expected).await;
}

#[tokio::test]
async fn the_pods_of_an_excluded_namespace_are_not_told_to_label_it() {
    let (mut namespace, _) = start("excluded").await;
    let object = json!({"metadata": {"name": EXCLUDED}});
    let api: Api<Namespace> = Api::all(namespace.client.clone());
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    namespace.name = EXCLUDED.to_owned();
    namespace.apply("p", spec(5)).await.unwrap();
    namespace.pod("old", false, json!({"app": "a"})).await;
    let (_, message) = wait_for_message(&namespace, "Programmed", "injection.excludedNamespaces").await;
    assert!(!message.contains("kubectl label"), "{message}");
}

#[tokio::test]
async fn an_authority_that_cannot_be_written_is_told_in_the_words_of_the_api_server() {
    let (namespace, control) = start("authority").await;
    until("the namespace has the authority", async || {
        namespace.api::<ConfigMap>().get("sluice-ca").await.ok()
    })
    .await;
    let quota = json!({"spec": {"hard": {"configmaps": "0"}}});
    namespace.apply_object::<ResourceQuota>("none", quota).await;
    let status = json!({"status": {"hard": {"configmaps": "0"}, "used": {"configmaps": "1"}}});
    let quotas = namespace.api::<ResourceQuota>();
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    namespace.api::<ConfigMap>().delete("sluice-ca", &kube::api::DeleteParams::default()).await.unwrap();
    namespace.apply("p", spec(5)).await.unwrap();
    let _session = open_session(&namespace, &control, "one").await;
    let (_, message) = wait_for_message(&namespace, "Programmed", "The ConfigMap sluice-ca").await;
    assert!(message.contains("exceeded quota: none"), "{message}");
}

#[tokio::test]
async fn a_policy_that_a_finalizer_keeps_says_so() {
    let (namespace, control) = start("finalizer").await;
    namespace.apply("p", spec(5)).await.unwrap();
    let mut session = open_session(&namespace, &control, "one").await;
    confirm(&mut session).await;
    namespace.wait_for("p", "Ready", "True Ready").await;
    let policies = namespace.api::<RateLimitPolicy>();
    let finalizers = |names: &[&str]| json!({"metadata": {"finalizers": names}});
    let set = async |names: &[&str]| {
        policies.patch("p", &PatchParams::default(), &Patch::Merge(&finalizers(names))).await.unwrap()
    };
    set(&["example.com/audit"]).await;
    policies.delete("p", &kube::api::DeleteParams::default()).await.unwrap();
    let (status, _) = wait_for_message(&namespace, "Ready", "until its finalizers are removed").await;
    assert_eq!(status, "True Ready");
    set(&[]).await;
}

#[tokio::test]
async fn a_change_of_the_webhook_configuration_is_put_back_or_told() {
    let (namespace, _) = start("webhook-path").await;
    let api: Api<MutatingWebhookConfiguration> = Api::all(namespace.client.clone());
    let authority = async || {
        let object = api.get("sluice").await.unwrap();
        object.webhooks.unwrap()[0].client_config.ca_bundle.clone().unwrap_or_default().0
    };
    let ours = until("the authority is there", async || {
        let authority = authority().await;
        (!authority.is_empty() && metrics().await.contains("sluice_operator_webhook_not_called 0"))
            .then_some(authority)
    })
    .await;
    let foreign = json!([{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": ""}]);
    let foreign: json_patch::Patch = serde_json::from_value(foreign).unwrap();
    api.patch("sluice", &PatchParams::default(), &Patch::Json::<()>(foreign)).await.unwrap();
    until("the authority is put back", async || (authority().await == ours).then_some(())).await;
    let events: Api<Event> = Api::namespaced(namespace.client.clone(), "default");
    until("an event tells of it", async || {
        let events = events.list(&ListParams::default()).await.ok()?.items;
        events.into_iter().find(|event| event.reason.as_deref() == Some("CABundleChanged"))
    })
    .await;
    // Without its rule, no pod gets a sidecar any more.
    let rules = json!([{"op": "replace", "path": "/webhooks/0/rules/0/resources", "value": ["services"]}]);
    let rules: json_patch::Patch = serde_json::from_value(rules).unwrap();
    api.patch("sluice", &PatchParams::default(), &Patch::Json::<()>(rules)).await.unwrap();
    until("the metric tells of it", async || {
        metrics().await.contains("sluice_operator_webhook_not_called 1").then_some(())
    })
    .await;
    let restored = json!([{"op": "replace", "path": "/webhooks/0/rules/0/resources", "value": ["pods"]}]);
    let restored: json_patch::Patch = serde_json::from_value(restored).unwrap();
    api.patch("sluice", &PatchParams::default(), &Patch::Json::<()>(restored)).await.unwrap();
    until("the path works again", async || {
        metrics().await.contains("sluice_operator_webhook_not_called 0").then_some(())
    })
    .await;
}
