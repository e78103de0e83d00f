use serde_json::{Value, json};

use super::*;

fn service() -> WebhookService {
    WebhookService { namespace: "sluice-system".into(), name: "sluice-webhook".into() }
}

/// Returns both configurations as the chart makes them, after a change.
fn configurations(change: impl FnOnce(&mut Value, &mut Value)) -> Configurations {
    let client = |path: &str| json!({"service": {"namespace": "sluice-system", "name": "sluice-webhook", "path": path, "port": 443}, "caBundle": "Q0E="});
    let names = json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "sluice-system"]});
    let hook = |injection: &str, inject: &str, value: &str| {
        json!({
            "name": "hook", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": client("/inject"),
            "namespaceSelector": {"matchExpressions": [{"key": "sluice.dev/injection", "operator": injection, "values": ["enabled"]}, names]},
            "objectSelector": {"matchExpressions": [{"key": "sluice.dev/inject", "operator": inject, "values": [value]}]},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        })
    };
    let mut mutating = json!({"metadata": {"name": "sluice"}, "webhooks": [hook("In", "NotIn", "false"), hook("NotIn", "In", "true")]});
    let mut validating = json!({"metadata": {"name": "sluice"}, "webhooks": [{
        "name": "hook", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": client("/validate"),
        "rules": [{"apiGroups": ["sluice.dev"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"], "resources": ["ratelimitpolicies", "ratelimitstores"]}],
    }]});
    change(&mut mutating, &mut validating);
    Configurations {
        mutating: serde_json::from_value(mutating).ok(),
        validating: serde_json::from_value(validating).ok(),
    }
}

#[test]
fn the_configurations_of_the_chart_are_as_they_must_be() {
    let configurations = configurations(|_, _| {});
    assert_eq!(configurations.problem("sluice", &service()), None);
    assert_eq!(configurations.excluded(), ["kube-system".to_owned(), "sluice-system".to_owned()].into());
    assert!(configurations.trust("CA") && !configurations.trust("other"));
}

#[test]
fn every_change_that_keeps_the_webhook_from_being_called_is_named() {
    type Case = (fn(&mut Value, &mut Value), &'static str);
    let cases: [Case; 9] = [
        (|mutating, _| *mutating = Value::Null, "the MutatingWebhookConfiguration sluice does not exist"),
        (
            |_, validating| *validating = Value::Null,
            "the ValidatingWebhookConfiguration sluice does not exist",
        ),
        (|mutating, _| mutating["webhooks"] = json!([]), "has no webhooks"),
        (
            |mutating, _| mutating["webhooks"][0]["clientConfig"]["service"]["name"] = json!("other"),
            "does not lead to the path /inject of the Service sluice-system/sluice-webhook",
        ),
        (
            |_, validating| {
                validating["webhooks"][0]["clientConfig"]["service"]["namespace"] = json!("other");
            },
            "does not lead to the path /validate",
        ),
        (
            |mutating, _| mutating["webhooks"][1]["rules"][0]["resources"] = json!(["services"]),
            "has no rule for the creation of pods",
        ),
        (
            |mutating, _| {
                mutating["webhooks"][0]["namespaceSelector"]["matchExpressions"][0]["values"] = json!(["on"]);
            },
            "selects no namespaces with the label sluice.dev/injection=enabled",
        ),
        (
            |mutating, _| {
                let never = json!([{"key": "sluice.dev/inject", "operator": "DoesNotExist"}]);
                for hook in [0, 1] {
                    mutating["webhooks"][hook]["objectSelector"]["matchExpressions"] = never.clone();
                }
            },
            "selects no pods with the label sluice.dev/inject=true",
        ),
        (
            |_, validating| validating["webhooks"][0]["rules"][0]["operations"] = json!(["CREATE"]),
            "has no rule for policies and stores",
        ),
    ];
    for (change, expected) in cases {
        let problem = configurations(change).problem("sluice", &service()).unwrap_or_default();
        assert!(problem.contains(expected) && problem.contains("helm upgrade"), "{expected}: {problem}");
    }
}
