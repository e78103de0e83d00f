//! Others that change pods: webhooks before and after Sluice's, and MutatingAdmissionPolicies.

use std::convert::Infallible;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, PostParams};
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use sluice_tests::authority::Authority;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Who changes a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changer {
    /// A webhook that the API server asks before Sluice's.
    WebhookBefore,
    /// A webhook that it asks after Sluice's.
    WebhookAfter,
    /// A MutatingAdmissionPolicy with this reinvocation policy.
    Policy(&'static str),
}

/// Starts a server of webhooks, and registers one before and one after Sluice's. Each applies the JSON patch that an annotation of the
/// pod has.
pub async fn register_webhooks(client: &kube::Client) {
    let authority = Authority::new();
    let port = serve(&authority).await;
    for (name, annotation) in [("a-before", "before"), ("z-after", "after")] {
        let configuration = json!({
            "metadata": {"name": name},
            "webhooks": [{
                "name": "test.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "reinvocationPolicy": "Never", "failurePolicy": "Fail",
                "clientConfig": {"url": format!("https://localhost:{port}/{annotation}"), "caBundle": BASE64.encode(authority.pem())},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
            }],
        });
        let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(configuration).unwrap()).await.unwrap();
    }
}

async fn serve(authority: &Authority) -> u16 {
    let (certificate, key) = authority.issue_dns("localhost");
    let certificate = rustls_pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
    let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder().with_no_client_auth();
    let acceptor = TlsAcceptor::from(Arc::new(config.with_single_cert(vec![certificate], key).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let _ =
                    http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(review)).await;
            });
        }
    });
    port
}

async fn review(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let annotation = format!("test{}", request.uri().path());
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let mut response = json!({"uid": review["request"]["uid"], "allowed": true});
    if let Some(patch) = review["request"]["object"]["metadata"]["annotations"][&annotation].as_str() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(BASE64.encode(patch));
    }
    let review =
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    Ok(Response::new(review.to_string().into()))
}

/// Creates a MutatingAdmissionPolicy for the pods of a namespace, with a JSON patch that it applies if a condition of CEL is met.
pub async fn create_policy(
    client: &kube::Client,
    namespace: &str,
    reinvocation: &str,
    condition: &str,
    patch: &Value,
) {
    let operations: Vec<_> = patch.as_array().unwrap().iter().map(operation).collect();
    let policy = json!({
        "metadata": {"name": namespace},
        "spec": {
            "reinvocationPolicy": reinvocation, "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]},
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": format!("{condition} ? [{}] : []", operations.join(", "))}}],
        },
    });
    let binding = json!({
        "metadata": {"name": namespace},
        "spec": {"policyName": namespace, "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}},
    });
    for (kind, object) in [("MutatingAdmissionPolicy", policy), ("MutatingAdmissionPolicyBinding", binding)] {
        let resource = ApiResource::from_gvk_with_plural(
            &GroupVersionKind::gvk("admissionregistration.k8s.io", "v1", kind),
            &format!("{}s", kind.to_lowercase()).replace("policys", "policies"),
        );
        let mut object: DynamicObject = serde_json::from_value(object).unwrap();
        object.types =
            Some(kube::core::TypeMeta { api_version: resource.api_version.clone(), kind: kind.into() });
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        api.create(&PostParams::default(), &object).await.unwrap();
    }
}

/// Returns an operation of a JSON patch in CEL.
fn operation(operation: &Value) -> String {
    let value = operation.get("value").map(|value| format!(", value: {}", cel(value))).unwrap_or_default();
    format!("JSONPatch{{op: {}, path: {}{value}}}", operation["op"], operation["path"])
}

/// Returns a value in CEL, whose lists and maps have items of one type.
fn cel(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{name:?}: dyn({})", cel(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => {
            let items = items.iter().map(|item| format!("dyn({})", cel(item)));
            format!("[{}]", items.collect::<Vec<_>>().join(", "))
        }
        scalar => scalar.to_string(),
    }
}
