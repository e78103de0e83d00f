//! Objects that tests create on an API server without a kubelet: namespaces, pods whose status the test sets,
//! Services, policies, and tokens bound to pods.

use std::fmt::Debug;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use sluice_crds::{RateLimitPolicy, RateLimitStore};

use crate::wait::until;

/// Installs the CRDs and waits until the API server serves them.
///
/// # Panics
/// When the API server rejects them.
pub async fn install_crds(client: &Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let params = PatchParams::apply("test").force();
    for (_, yaml) in sluice_crds::crd_files() {
        let crd: CustomResourceDefinition = serde_saphyr::from_str(&yaml).expect("the CRD is readable");
        api.patch(&crd.name_any(), &params, &Patch::Apply(&crd))
            .await
            .expect("the API server accepts the CRD");
    }
    let policies: Api<RateLimitPolicy> = Api::all(client.clone());
    until("the API server serves the CRD", async || policies.list(&Default::default()).await.ok()).await;
}

/// Waits until a condition of a store has the expected status and reason, such as `True Ready`. Returns its message.
pub async fn wait_for_store(api: &Api<RateLimitStore>, store: &str, kind: &str, expected: &str) -> String {
    let last = std::cell::RefCell::new(None);
    until(&format!("{store}: {kind} is {expected}"), async || {
        let store = api.get(store).await.ok()?;
        let condition = store.status?.conditions.into_iter().find(|condition| condition.type_ == kind)?;
        let found = format!("{} {}", condition.status, condition.reason);
        let is_current = condition.observed_generation == store.metadata.generation;
        if last.borrow().as_ref() != Some(&found) {
            eprintln!("{kind}: {found}: {}", condition.message);
            last.replace(Some(found.clone()));
        }
        (is_current && found == expected).then_some(condition.message)
    })
    .await
}

/// A namespace for one test.
#[derive(Clone)]
pub struct TestNamespace {
    /// Client with cluster-admin rights.
    pub client: Client,
    /// Name of the namespace.
    pub name: String,
}

impl TestNamespace {
    /// Creates a namespace with sidecar injection enabled and a service account `default`.
    ///
    /// # Panics
    /// When the API server rejects one of them.
    pub async fn create(client: Client, prefix: &str) -> Self {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = serde_json::from_value(
            json!({"metadata": {"generateName": format!("{prefix}-"), "labels": {"sluice.dev/injection": "enabled"}}}),
        );
        let created = namespaces
            .create(&PostParams::default(), &namespace.expect("a namespace"))
            .await
            .expect("a namespace");
        let this = Self { client, name: created.name_any() };
        let account =
            serde_json::from_value(json!({"metadata": {"name": "default"}})).expect("a service account");
        this.api::<ServiceAccount>()
            .create(&PostParams::default(), &account)
            .await
            .expect("a service account");
        this
    }

    /// Returns the API of one kind in this namespace.
    #[must_use]
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// Creates a pod with a port `http`, with or without a sidecar, and sets its phase to `Running`.
    ///
    /// # Panics
    /// When the API server rejects it.
    pub async fn pod(&self, name: &str, injected: bool, labels: Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "serviceAccountName": "default",
                "nodeName": "nowhere",
                "containers": [{"name": "app", "image": "app", "ports": [{"name": "http", "containerPort": 8080}]}],
            },
        });
        if injected {
            pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 8080}]);
            pod["spec"]["volumes"] = json!([{"name": "sluice-identity", "emptyDir": {}}]);
            pod["spec"]["initContainers"] = json!([{
                "name": "sluice-sidecar", "image": "sidecar", "restartPolicy": "Always",
                "args": ["--proxy=0.0.0.0:8790=127.0.0.1:8080"],
                "volumeMounts": [{"name": "sluice-identity", "mountPath": "/identity"}],
                "ports": [{"name": "http", "containerPort": 8790}],
            }]);
        }
        let api = self.api::<Pod>();
        api.create(&PostParams::default(), &serde_json::from_value(pod).expect("a pod"))
            .await
            .expect("a pod");
        let running = json!({"status": {"phase": "Running", "podIP": "127.0.0.1"}});
        api.patch_status(name, &PatchParams::default(), &Patch::Merge(&running))
            .await
            .expect("the pod is running")
    }

    /// Deletes a pod without a grace period.
    ///
    /// # Panics
    /// When the API server rejects the request.
    pub async fn delete_pod(&self, name: &str) {
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        self.api::<Pod>().delete(name, &params).await.expect("the pod is deleted");
    }

    /// Applies an object of any kind.
    ///
    /// # Panics
    /// When the API server rejects it.
    pub async fn apply_object<K>(&self, name: &str, mut object: Value)
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug,
    {
        object["apiVersion"] = json!(K::api_version(&()));
        object["kind"] = json!(K::kind(&()));
        object["metadata"]["name"] = json!(name);
        let params = PatchParams::apply("test").force();
        self.api::<K>().patch(name, &params, &Patch::Apply(&object)).await.expect("the object is accepted");
    }

    /// Applies a Service whose port 80 targets `target`, the name or number of a pod's port.
    ///
    /// # Panics
    /// When the API server rejects it.
    pub async fn service(&self, name: &str, selector: Value, target: Value) {
        let ports = json!([{"port": 80, "targetPort": target}]);
        self.apply_object::<Service>(name, json!({"spec": {"selector": selector, "ports": ports}})).await;
    }

    /// Sets the address of a pod.
    ///
    /// # Panics
    /// When the API server rejects it.
    pub async fn set_address(&self, pod: &str, address: &str) {
        let status = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        let params = PatchParams::default();
        let set = self.api::<Pod>().patch_status(pod, &params, &Patch::Merge(&status)).await;
        set.expect("the pod has an address");
    }

    /// Applies a policy with strict field validation, as kubectl does.
    ///
    /// # Errors
    /// When the API server rejects it.
    pub async fn apply(&self, name: &str, spec: Value) -> kube::Result<RateLimitPolicy> {
        let policy = json!({"apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy", "metadata": {"name": name}, "spec": spec});
        let params = PatchParams {
            field_validation: Some(kube::api::ValidationDirective::Strict),
            ..PatchParams::apply("test").force()
        };
        self.api::<RateLimitPolicy>().patch(name, &params, &Patch::Apply(&policy)).await
    }

    /// Returns the status and reason of a policy's condition, such as `False NotInjected`, and its message.
    /// Returns nothing while the condition describes an older generation of the policy.
    pub async fn condition(&self, policy: &str, kind: &str) -> Option<(String, String)> {
        let policy = self.api::<RateLimitPolicy>().get(policy).await.ok()?;
        let generation = policy.metadata.generation;
        let condition = policy.status?.conditions.into_iter().find(|condition| condition.type_ == kind)?;
        let current = condition.observed_generation == generation;
        current.then(|| (format!("{} {}", condition.status, condition.reason), condition.message))
    }

    /// Waits until a condition has the expected status and reason, such as `True Ready`. Returns its message.
    pub async fn wait_for(&self, policy: &str, kind: &str, expected: &str) -> String {
        let last = std::cell::RefCell::new(None);
        let description = format!("{policy}: {kind} is {expected}");
        let found = until(&description, async || {
            let found = self.condition(policy, kind).await;
            if last.borrow().as_ref() != Some(&found) {
                eprintln!("{policy} {kind}: {found:?}");
                last.replace(Some(found.clone()));
            }
            found.filter(|(status, _)| status == expected)
        });
        found.await.1
    }

    /// Requests a service-account token that is bound to a pod and valid for one audience.
    ///
    /// # Panics
    /// When the API server rejects the request.
    pub async fn token(&self, pod: &Pod, audience: &str) -> String {
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: vec![audience.into()],
                expiration_seconds: Some(3600),
                bound_object_ref: Some(BoundObjectReference {
                    kind: Some("Pod".into()),
                    api_version: Some("v1".into()),
                    name: Some(pod.name_any()),
                    uid: pod.uid(),
                }),
            },
            ..TokenRequest::default()
        };
        let response = self
            .api::<ServiceAccount>()
            .create_token_request("default", &PostParams::default(), &request)
            .await;
        response.expect("a token").status.expect("a token").token
    }
}
