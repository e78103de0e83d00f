//! A real node (`tests/node/node.sh up`), used by the commands that a user types. `KUBECONFIG` and `PATH` come from
//! `tests/node/node.sh env`.

use std::process::{Command, Output, Stdio};

use std::io::Write as _;

use crate::cluster::root;
use crate::wait::until;

/// The namespace of the installation.
pub const SYSTEM: &str = "sluice-system";

/// Runs a command; returns whether it succeeded and what it printed, errors included.
///
/// # Panics
/// When the program is not there.
#[must_use]
pub fn run(program: &str, arguments: &[&str], input: &str) -> (bool, String) {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program}: {error}; is a node up (make e2e)?"));
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("the input is read");
    let Output { status, stdout, stderr } = child.wait_with_output().expect("the program ends");
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    eprintln!("$ {program} {}\n{text}", arguments.join(" "));
    (status.success(), text)
}

/// Runs kubectl; returns what it printed.
///
/// # Panics
/// When it fails.
pub fn kubectl(arguments: &str) -> String {
    let (ok, text) = run("kubectl", &arguments.split(' ').collect::<Vec<_>>(), "");
    assert!(ok, "kubectl {arguments}: {text}");
    text
}

/// Applies manifests; returns whether the API server took them, and what it said.
#[must_use]
pub fn apply(manifest: &str) -> (bool, String) {
    run("kubectl", &["apply", "-f", "-"], manifest)
}

/// Applies manifests.
///
/// # Panics
/// When the API server refuses them.
pub fn applied(manifest: &str) {
    let (ok, text) = apply(manifest);
    assert!(ok, "{text}");
}

/// Installs Sluice as the README says, with the images that were loaded; once is enough.
///
/// # Panics
/// When it does not come up.
pub fn install() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(install_now);
}

fn install_now() {
    let tag = std::env::var("SLUICE_E2E_TAG").expect("SLUICE_E2E_TAG: run `make e2e`");
    let tag = ["operator.image.tag", "sidecar.image.tag"].map(|name| format!("{name}={tag}"));
    let (ok, text) = run(
        "helm",
        &[
            "upgrade",
            "--install",
            "sluice",
            "charts/sluice",
            "--namespace",
            SYSTEM,
            "--create-namespace",
            "--set",
            &tag[0],
            "--set",
            &tag[1],
            "--set",
            "redis.image.repository=sluice.local/redis",
            "--set",
            "redis.image.tag=test",
            // A busy test machine must not make a check fall back.
            "--set",
            "redis.latencyBudget=2s",
            "--wait",
            "--timeout",
            "5m",
        ],
        "",
    );
    assert!(ok, "{text}");
}

/// A namespace with sidecars for one test.
pub struct Shop {
    /// Its name.
    pub namespace: String,
}

impl Shop {
    /// Makes one.
    #[must_use]
    pub fn open(namespace: &str) -> Self {
        let label = "sluice.dev/injection: enabled";
        applied(&format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}, labels: {{{label}}}}}}}"
        ));
        Self { namespace: namespace.to_owned() }
    }

    /// Deploys an application of `replicas` pods behind a Service, and waits until it is rolled out.
    pub fn deploy(&self, name: &str, replicas: u32) {
        applied(&format!(
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
        self.rolled_out(name);
    }

    /// Waits until a Deployment is rolled out.
    pub fn rolled_out(&self, name: &str) {
        kubectl(&format!("-n {} rollout status deployment/{name} --timeout=180s", self.namespace));
    }

    /// Where a Service is reached from the host.
    #[must_use]
    pub fn address(&self, service: &str) -> String {
        kubectl(&format!(
            "-n {} get service {service} -o jsonpath={{.spec.clusterIP}}:{{.spec.ports[0].port}}",
            self.namespace
        ))
    }

    /// The addresses of an application's pods.
    #[must_use]
    pub fn pods(&self, app: &str) -> Vec<String> {
        let query =
            format!("-n {} get pods -l app={app} -o jsonpath={{.items[*].status.podIP}}", self.namespace);
        kubectl(&query).split_whitespace().map(str::to_owned).collect()
    }

    /// Applies a policy of `requests` an hour for each value of the header `x-client`.
    pub fn limit(&self, name: &str, app: &str, requests: u32) {
        applied(&format!(
            "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: {name}, namespace: {ns}}}
spec:
  selector: {{matchLabels: {{app: {app}}}}}
  limits:
  - name: per-client
    key: {{parts: [{{header: {{name: x-client}}}}]}}
    rates: [{{requests: {requests}, per: 1h}}]
",
            ns = self.namespace
        ));
    }

    /// The status and reason of a condition of this very generation, and its message.
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

    /// Waits until a condition is as expected; returns its message.
    pub async fn wait_for(&self, policy: &str, kind: &str, expected: &str) -> String {
        until(&format!("{policy}: {kind} is {expected}"), async || {
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            self.condition(policy, kind).filter(|(status, _)| status == expected)
        })
        .await
        .1
    }
}
