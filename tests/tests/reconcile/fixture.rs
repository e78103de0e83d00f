//! One operator for all tests of this binary, and the sidecars' side of a session.

use base64::Engine as _;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use sluice_config::PolicyHash;
use sluice_config::message::{PolicyFindings, PolicyReport, StoreReport};
use sluice_tests::client::get;
use sluice_tests::components::{ControlClient, Operator, Session};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use tokio::sync::OnceCell;

/// Nothing listens here. The sidecars' reports decide about the store.
const STORE_URL: &str = "redis://127.0.0.1:1";

/// A namespace that the webhook configuration excludes.
pub const EXCLUDED: &str = "reconcile-excluded";

static OPERATOR: OnceCell<Operator> = OnceCell::const_new();

/// Starts the operator unless it is running, and creates a namespace for one test.
pub async fn start(prefix: &str) -> (TestNamespace, ControlClient) {
    let plane = ControlPlane::shared().await;
    let operator = OPERATOR
        .get_or_init(|| async {
            install_inference_pools(&plane.client().await).await;
            let operator = Operator::start(plane, "reconcile-system", STORE_URL).await;
            configure_webhooks(&operator, &plane.client().await).await;
            operator
        })
        .await;
    let namespace = TestNamespace::create(plane.client().await, prefix).await;
    (namespace, ControlClient::new(&operator.control_url, operator.ca_file()))
}

/// Installs the part of the definition of InferencePools that the operator reads.
async fn install_inference_pools(client: &Client) {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({
        "metadata": {
            "name": "inferencepools.inference.networking.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a part for tests"},
        },
        "spec": {
            "group": "inference.networking.k8s.io", "scope": "Namespaced",
            "names": {"kind": "InferencePool", "plural": "inferencepools"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = serde_json::from_value(crd).expect("a definition");
    api.create(&PostParams::default(), &crd).await.expect("the API server accepts it");
}

/// Creates webhook configurations as the chart's, by which the API server calls the webhook for no pod, and for the policies
/// in the operator's namespace only: the tests of this binary create pods without sidecars, and invalid policies.
async fn configure_webhooks(operator: &Operator, client: &Client) {
    let ca = base64(&std::fs::read(operator.ca_file()).expect("the CA's file"));
    let expression = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
    let hook = |name: &str, path: &str, rule: Value| {
        json!({
            "name": name, "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
            "clientConfig": {"url": format!("{}{path}", operator.webhook_url), "caBundle": ca}, "rules": [rule],
        })
    };
    let pods =
        json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    let inject = |name: &str, injection: &str, label: Value| {
        let mut hook = hook(name, "/inject", pods.clone());
        let excluded = expression("kubernetes.io/metadata.name", "NotIn", &[EXCLUDED]);
        let never = json!({"key": "never", "operator": "Exists"});
        let labelled = expression("sluice.dev/injection", injection, &["enabled"]);
        hook["namespaceSelector"] = json!({"matchExpressions": [labelled, excluded, never]});
        hook["objectSelector"] = json!({"matchExpressions": [label]});
        hook
    };
    let mutating = json!({
        "metadata": {"name": "sluice"},
        "webhooks": [
            inject("namespace.inject.sluice.dev", "In", expression("sluice.dev/inject", "NotIn", &["false"])),
            inject("pod.inject.sluice.dev", "NotIn", expression("sluice.dev/inject", "In", &["true"])),
        ],
    });
    let mut validate = hook(
        "validate.sluice.dev",
        "/validate",
        json!({
            "apiGroups": ["sluice.dev"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
            "resources": ["ratelimitpolicies", "ratelimitstores"],
        }),
    );
    validate["namespaceSelector"] =
        json!({"matchLabels": {"kubernetes.io/metadata.name": "reconcile-system"}});
    let validating = json!({"metadata": {"name": "sluice"}, "webhooks": [validate]});
    let params = PostParams::default();
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    api.create(&params, &serde_json::from_value(mutating).expect("a configuration")).await.expect("accepted");
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    api.create(&params, &serde_json::from_value(validating).expect("a configuration"))
        .await
        .expect("accepted");
}

/// Lets the operator review the policies of a namespace.
pub async fn review_policies(namespace: &TestNamespace) {
    let operator = OPERATOR.get().expect("the operator runs");
    let ca = std::fs::read(operator.ca_file()).expect("the CA's file");
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace.name},
        "webhooks": [{
            "name": "validate.sluice.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": format!("{}/validate", operator.webhook_url), "caBundle": base64(&ca)},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
            "rules": [{
                "apiGroups": ["sluice.dev"], "apiVersions": ["v1alpha1"], "operations": ["CREATE", "UPDATE"],
                "resources": ["ratelimitpolicies"],
            }],
        }],
    });
    let client = ControlPlane::shared().await.client().await;
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let webhook = serde_json::from_value(webhook).expect("a webhook configuration");
    api.create(&PostParams::default(), &webhook).await.expect("the API server accepts it");
}

fn base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Returns the operator's metrics.
pub async fn metrics() -> String {
    let operator = OPERATOR.get().expect("the operator runs");
    get(operator.admin_url.trim_start_matches("http://"), "/metrics", &[]).await.body
}

/// Returns a policy for the pods with the label `app: a`.
pub fn spec(requests: i64) -> serde_json::Value {
    json!({
        "selector": {"matchLabels": {"app": "a"}},
        "limits": [{"name": "l", "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": requests, "per": "1h"}]}],
    })
}

/// Returns a policy that the CRD's schema accepts and the operator does not. Without the webhook, the API
/// server stores it.
pub fn invalid_spec() -> serde_json::Value {
    let mut invalid = spec(5);
    invalid["limits"][0]["rates"] = json!([{"requests": 1, "per": "9000h"}]);
    invalid
}

/// Creates a pod with the label `app: a` and a sidecar, and opens the sidecar's session.
pub async fn open_session(namespace: &TestNamespace, control: &ControlClient, pod: &str) -> Session {
    let pod = namespace.pod(pod, true, json!({"app": "a"})).await;
    control.connect(&namespace.token(&pod, "sluice.dev").await, None).await.expect("a session")
}

/// Waits for the next event with policies and reports all of them as applied. Returns the hash of the first.
pub async fn confirm(session: &mut Session) -> PolicyHash {
    // A session may begin before its policy is published.
    let policies = loop {
        let (policies, _) = session.policies().await;
        if !policies.policies.is_empty() {
            break policies;
        }
    };
    let applied =
        |hash: &PolicyHash| PolicyReport::Applied { hash: hash.clone(), findings: PolicyFindings::NOTHING };
    let hash = policies.policies.values().next().expect("a policy").hash.clone();
    let reports = policies.policies.iter().map(|(uid, published)| (uid.clone(), applied(&published.hash)));
    session.report(reports, StoreReport::HEALTHY).await;
    hash
}
