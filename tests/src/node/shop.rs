//! A namespace for one test, with applications that have sidecars, and policies.

use crate::node::command::{apply, kubectl, run};
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
        apply(&format!(
            "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {ns}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 15
      containers:
      - name: app
        image: sluice.local/toolbox:test
        args: [serve]
        ports: [{{name: http, containerPort: 8080}}]
        readinessProbe: {{httpGet: {{path: /readyz, port: http}}, periodSeconds: 1}}
        securityContext: {{runAsNonRoot: true, allowPrivilegeEscalation: false, capabilities: {{drop: [ALL]}}, seccompProfile: {{type: RuntimeDefault}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {ns}}}
spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80, targetPort: http}}]}}
",
            ns = self.namespace
        ));
        self.wait_for_rollout(name);
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
        self.limit_pods(name, &format!("selector: {{matchLabels: {{app: {app}}}}}"), requests);
    }

    /// Applies the same policy for the pods of a Deployment.
    pub fn limit_deployment(&self, name: &str, deployment: &str, requests: u32) {
        self.limit_pods(name, &format!("targetRefs: [{{kind: Deployment, name: {deployment}}}]"), requests);
    }

    fn limit_pods(&self, name: &str, pods: &str, requests: u32) {
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
    rates: [{{requests: {requests}, per: 1h}}]
",
            ns = self.namespace
        ));
    }

    /// Returns the status and reason of a policy's condition, such as `True Ready`, and its message. Returns
    /// nothing while the condition describes an older generation of the policy.
    #[must_use]
    pub fn condition(&self, policy: &str, kind: &str) -> Option<(String, String)> {
        let (ok, text) = run(
            "kubectl",
            &["-n", &self.namespace, "get", "ratelimitpolicies.sluice.dev", policy, "-o", "json"],
            "",
        );
        let object: serde_json::Value = serde_json::from_str(&text).ok().filter(|_| ok)?;
        let conditions = object["status"]["conditions"].as_array()?;
        let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
        let current = condition["observedGeneration"] == object["metadata"]["generation"];
        let text = |name: &str| condition[name].as_str().unwrap_or_default().to_owned();
        current.then(|| (format!("{} {}", text("status"), text("reason")), text("message")))
    }

    /// Waits until a condition has the expected status and reason. Returns its message.
    pub async fn wait_for(&self, policy: &str, kind: &str, expected: &str) -> String {
        until(&format!("{policy}: {kind} is {expected}"), async || {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            self.condition(policy, kind).filter(|(status, _)| status == expected)
        })
        .await
        .1
    }
}
