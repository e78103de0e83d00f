//! One operator for all tests of this binary, and the sidecars' side of a session.

use base64::Engine as _;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::api::{Api, PostParams};
use serde_json::json;
use sluice_config::PolicyHash;
use sluice_config::message::{PolicyReport, StoreReport};
use sluice_tests::client::get;
use sluice_tests::components::{ControlClient, Operator, Session};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use tokio::sync::OnceCell;

/// Nothing listens here. The sidecars' reports decide about the store.
const STORE_URL: &str = "redis://127.0.0.1:1";

static OPERATOR: OnceCell<Operator> = OnceCell::const_new();

/// Starts the operator unless it is running, and creates a namespace for one test.
pub async fn start(prefix: &str) -> (TestNamespace, ControlClient) {
    let plane = ControlPlane::shared().await;
    let operator = OPERATOR.get_or_init(|| Operator::start(plane, "reconcile-system", STORE_URL)).await;
    let namespace = TestNamespace::create(plane.client().await, prefix).await;
    (namespace, ControlClient::new(&operator.control_url, operator.ca_file()))
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
    let applied = |hash: &PolicyHash| PolicyReport::Applied {
        hash: hash.clone(),
        untrusted_proxy: None,
        nearly_full: Vec::new(),
    };
    let hash = policies.policies.values().next().expect("a policy").hash.clone();
    let reports = policies.policies.iter().map(|(uid, published)| (uid.clone(), applied(&published.hash)));
    session.report(reports, StoreReport::Healthy).await;
    hash
}
