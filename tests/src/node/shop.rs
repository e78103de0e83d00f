//! A namespace for one test, with applications that have sidecars, and policies.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::api::{Api, ApiResource, DynamicObject};
use serde_json::{Value, json};
use sluice_crds::RateLimitPolicy;

use crate::node::command::{apply, kubectl};
use crate::wait::until;

/// A namespace with sidecar injection enabled.
pub struct Shop {
    /// Name of the namespace.
    pub namespace: String,
}

impl Shop {
    /// Creates the namespace.
    #[must_use]
    pub fn open(namespace: &str) -> Self {
        let label = "sluice.dev/injection: enabled";
        apply(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}, labels: {{{label}}}}}}}"
        ));
        Self { namespace: namespace.to_owned() }
    }

    /// Deploys an application with `replicas` pods behind a Service of the same name, and waits for the
    /// rollout.
    pub fn deploy(&self, name: &str, replicas: u32) {
        self.deploy_with(name, replicas, |_| ());
    }

    /// Does the same, with a change of the `spec` of the pods. Their application is its first container.
    pub fn deploy_with(&self, name: &str, replicas: u32, change: impl FnOnce(&mut Value)) {
        let mut pods = json!({
            "terminationGracePeriodSeconds": 15,
            "containers": [{
                "name": "app",
                "image": "sluice.local/toolbox:test",
                "args": ["serve"],
                "ports": [{"name": "http", "containerPort": 8080}],
                "readinessProbe": {"httpGet": {"path": "/readyz", "port": "http"}, "periodSeconds": 1},
                "securityContext": {
                    "runAsNonRoot": true,
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
        });
        change(&mut pods);
        let (metadata, labels) = (json!({"name": name, "namespace": self.namespace}), json!({"app": name}));
        let deployment = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pods},
            },
        });
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {"selector": labels, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
        });
        apply(&json!({"apiVersion": "v1", "kind": "List", "items": [deployment, service]}).to_string());
        self.wait_for_rollout(name);
    }

    /// Replaces all pods of an application, and waits until the old ones are gone.
    pub async fn restart(&self, name: &str) {
        let before = self.pods(name);
        kubectl(&format!("-n {} rollout restart deployment/{name}", self.namespace));
        self.wait_for_rollout(name);
        until("the old pods are gone", async || {
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.pods(name).is_disjoint(&before).then_some(())
        })
        .await;
    }

    /// Waits until the rollout of a Deployment has finished.
    pub fn wait_for_rollout(&self, name: &str) {
        kubectl(&format!("-n {} rollout status deployment/{name} --timeout=180s", self.namespace));
    }

    /// Returns the cluster address of a Service, `HOST:PORT`. The host can reach it.
    #[must_use]
    pub fn address(&self, service: &str) -> String {
        kubectl(&format!(
            "-n {} get service {service} -o jsonpath={{.spec.clusterIP}}:{{.spec.ports[0].port}}",
            self.namespace
        ))
    }

    /// Returns the names of an application's pods.
    #[must_use]
    pub fn pods(&self, app: &str) -> BTreeSet<String> {
        let query =
            format!("-n {} get pods -l app={app} -o jsonpath={{.items[*].metadata.name}}", self.namespace);
        kubectl(&query).split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the addresses of an application's pods.
    #[must_use]
    pub fn pod_addresses(&self, app: &str) -> Vec<String> {
        let query =
            format!("-n {} get pods -l app={app} -o jsonpath={{.items[*].status.podIP}}", self.namespace);
        kubectl(&query).split_whitespace().map(str::to_owned).collect()
    }

    /// Applies a policy for the pods of an app that admits `requests` requests per hour for each value of the header
    /// `x-client`.
    pub fn limit(&self, name: &str, app: &str, requests: u32) {
        self.limit_pods(name, &of_app(app), requests, "1h");
    }

    /// Applies the same policy for the pods of a workload.
    pub fn limit_workload(&self, name: &str, kind: &str, workload: &str, requests: u32) {
        let target = format!("targetRefs: [{{kind: {kind}, name: {workload}}}]");
        self.limit_pods(name, &target, requests, "1h");
    }

    /// Applies the same policy for the pods of an app, but with a period that does not end while a test runs.
    pub fn limit_in_all(&self, name: &str, app: &str, requests: usize) {
        self.limit_pods(name, &of_app(app), u32::try_from(requests).expect("a limit"), "8784h");
    }

    fn limit_pods(&self, name: &str, pods: &str, requests: u32, period: &str) {
        apply(&format!(
            "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: {name}, namespace: {ns}}}
spec:
  {pods}
  limits:
  - name: per-client
    key: {{parts: [{{header: {{name: x-client}}}}]}}
    rates: [{{requests: {requests}, per: {period}}}]
",
            ns = self.namespace
        ));
    }

    /// Waits until a condition of a policy has the expected status and reason, such as `True Ready`, and describes the
    /// current generation of the policy. Returns its message.
    ///
    /// # Panics
    /// When there is no cluster.
    pub async fn wait_for(&self, policy: &str, kind: &str, expected: &str) -> String {
        // Many tests wait at the same time, and a process for each look would keep the others from their work.
        let client = kube::Client::try_default().await.expect("KUBECONFIG names a cluster");
        let policies = ApiResource::erase::<RateLimitPolicy>(&());
        let policies: Api<DynamicObject> = Api::namespaced_with(client, &self.namespace, &policies);
        until(&format!("{policy}: {kind} is {expected}"), async || {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let object = policies.get_opt(policy).await.ok()??;
            let conditions = object.data["status"]["conditions"].as_array()?;
            let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
            let text = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
            let is_current = condition["observedGeneration"].as_i64() == object.metadata.generation;
            let is_expected = format!("{} {}", text("status"), text("reason")) == expected;
            (is_current && is_expected).then(|| text("message"))
        })
        .await
    }
}

fn of_app(app: &str) -> String {
    format!("selector: {{matchLabels: {{app: {app}}}}}")
}
