//! Quotas, as the API server enforces them through the webhook.

use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};
use sluice_crds::RateLimitPolicy;
use sluice_tests::kubernetes::TestNamespace;
use sluice_tests::wait::until;

use super::fixture::{review_policies, start};

/// Returns a policy with this number of limits for the pods with some labels.
fn limits(count: usize, labels: Value) -> Value {
    let limit = |n| json!({"name": format!("l{n}"), "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": 5, "per": "1h"}]});
    json!({"selector": {"matchLabels": labels}, "limits": (0..count).map(limit).collect::<Vec<_>>()})
}

/// Creates a namespace, and waits until the operator reviews its policies.
async fn reviewed(prefix: &str) -> TestNamespace {
    let (namespace, _control) = start(prefix).await;
    review_policies(&namespace).await;
    until("the API server calls the webhook", async || {
        // One that was created before would not be refused again: its spec does not change.
        refusal(&namespace, &format!("invalid-{:x}", rand::random::<u32>()), super::fixture::invalid_spec())
            .await
            .filter(|text| text.contains("9000h"))
    })
    .await;
    namespace
}

async fn refusal(namespace: &TestNamespace, name: &str, spec: Value) -> Option<String> {
    namespace.apply(name, spec).await.err().map(|error| error.to_string())
}

#[tokio::test]
async fn quotas_of_a_pod_hold_for_all_its_policies_together() {
    let namespace = reviewed("quotas").await;
    let (web, api) = (json!({"app": "web"}), json!({"app": "api"}));
    assert_eq!(refusal(&namespace, "p", limits(20, web.clone())).await, None);
    let text = refusal(&namespace, "q", limits(13, web.clone())).await.unwrap();
    let expected = "pods with app=web would have 2 policies with 33 limits for every request, and a request can meet 32. \
                    Remove limits or policies, or ask the administrators of Sluice for more";
    assert!(text.contains(expected), "{text}");
    assert_eq!(refusal(&namespace, "q", limits(12, web.clone())).await, None);
    assert!(refusal(&namespace, "q", limits(13, web.clone())).await.is_some(), "an edit that adds a limit");
    assert_eq!(refusal(&namespace, "q", limits(11, web)).await, None);
    // Policies that no pod has in common do not add up, until one has both labels.
    assert_eq!(refusal(&namespace, "r", limits(20, api)).await, None);
    namespace.pod("both", true, json!({"app": "api", "tier": "x"})).await;
    let text = refusal(&namespace, "s", limits(13, json!({"tier": "x"}))).await.unwrap();
    assert!(text.contains("pods with tier=x would have 2 policies"), "{text}");
    let api = namespace.api::<RateLimitPolicy>();
    api.delete("r", &Default::default()).await.unwrap();
    assert_eq!(refusal(&namespace, "s", limits(13, json!({"tier": "x"}))).await, None);
}

#[tokio::test]
async fn quotas_hold_for_the_pods_of_a_workload_also_before_it_exists() {
    let namespace = reviewed("quotas-of-targets").await;
    let of_web = |count| {
        let mut spec = limits(count, json!({}));
        spec.as_object_mut().unwrap().remove("selector");
        spec["targetRefs"] =
            json!([{"kind": "Deployment", "name": "web"}, {"kind": "CronJob", "name": "report"}]);
        spec
    };
    assert_eq!(refusal(&namespace, "p", of_web(20)).await, None);
    let text = refusal(&namespace, "q", of_web(13)).await.unwrap();
    let expected = "pods of deployment/web, cronjob/report would have 2 policies with 33 limits for every request, and a request can meet 32";
    assert!(text.contains(expected), "{text}");

    let labels = json!({"app": "web"});
    let template =
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app", "image": "app"}]}});
    let web = json!({"spec": {"selector": {"matchLabels": labels}, "template": template}});
    namespace.apply_object::<Deployment>("web", web).await;
    let text = refusal(&namespace, "r", limits(13, labels)).await.unwrap();
    assert!(text.contains("pods with app=web would have 2 policies with 33 limits"), "{text}");
}
