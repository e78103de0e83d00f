//! The installation of Envoy Gateway, its Envoys, and routes with policies.

use std::time::Instant;

use futures::future::join_all;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};
use sluice_tests::client::{Response, Tally, send};
use sluice_tests::node::{apply, kubectl, run};
use sluice_tests::wait::until;

/// Namespace of Envoy Gateway, its Envoys and the service.
pub const SYSTEM: &str = "envoy-gateway-system";
/// Port of the listener in the pods of Envoy, which may not listen on port 80.
const PORT: u16 = 10_080;

/// Installs or upgrades Envoy Gateway with this image in place of ratelimit's, and more options for Helm.
pub fn upgrade(image: &str, more: &[&str]) {
    let chart = std::env::var("SLUICE_GATEWAY_CHART").expect("run tests/interop/envoy-gateway.sh");
    let value =
        format!("config.envoyGateway.provider.kubernetes.rateLimitDeployment.container.image={image}");
    let values = "tests/tests/envoy_gateway/values.yaml";
    let name = ["upgrade", "--install", "eg", &chart, "--namespace", SYSTEM, "--create-namespace"];
    let options = ["--values", values, "--set", &value, "--wait", "--timeout", "5m"];
    let (ok, text) = run("helm", &[&name[..], &options, more].concat(), "");
    assert!(ok, "{text}");
}

/// Returns the reference of the service's image.
pub fn service_image() -> String {
    std::env::var("SLUICE_GATEWAY_IMAGE").expect("run tests/interop/envoy-gateway.sh")
}

/// Waits until this image is what answers in place of ratelimit.
pub async fn wait_for_image(image: &str) {
    until(&format!("the Deployment has the image {image}"), async || {
        let query =
            format!("-n {SYSTEM} get deployment/envoy-ratelimit --ignore-not-found -o jsonpath={{..image}}");
        (kubectl(&query).trim() == image).then_some(())
    })
    .await;
    rollout("envoy-ratelimit");
}

/// Waits until a Deployment of the system has only new pods, and they are ready.
pub fn rollout(deployment: &str) {
    kubectl(&format!("-n {SYSTEM} rollout status deployment/{deployment} --timeout=180s"));
}

/// A Gateway with two Envoys.
pub struct Gateway {
    /// Addresses of the Envoys.
    pub envoys: Vec<String>,
}

impl Gateway {
    /// Installs everything with the service in place of ratelimit, unless that is done, and waits until both Envoys are ready.
    pub async fn open() -> Self {
        static ONCE: tokio::sync::OnceCell<()> = tokio::sync::OnceCell::const_new();
        ONCE.get_or_init(async || {
            upgrade(&service_image(), &[]);
            apply(include_str!("gateway.yaml"));
            wait_for_image(&service_image()).await;
            // An earlier run may have counted.
            kubectl("-n redis-system rollout status deployment/redis --timeout=180s");
            kubectl("-n redis-system exec deployment/redis -- redis-cli flushall");
        })
        .await;
        Self::find().await
    }

    /// Waits until two Envoys are ready, and no other.
    pub async fn find() -> Self {
        let envoys = until("two Envoys are ready", async || {
            let query = "get pods -l gateway.envoyproxy.io/owning-gateway-name=eg -o json";
            let pods: Value = serde_json::from_str(&kubectl(&format!("-n {SYSTEM} {query}"))).unwrap();
            let pods = pods["items"].as_array().unwrap();
            let ready = |pod: &&Value| {
                pod["metadata"]["deletionTimestamp"].is_null()
                    && pod["status"]["conditions"].as_array().is_some_and(|conditions| {
                        conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
                    })
            };
            let ready: Vec<_> = pods.iter().filter(ready).collect();
            let address = |pod: &Value| format!("{}:{PORT}", pod["status"]["podIP"].as_str().unwrap());
            (ready.len() == 2 && pods.len() == 2).then(|| ready.into_iter().map(address).collect())
        })
        .await;
        Self { envoys }
    }

    /// Adds a route for the host `NAME.test`, and a policy with these rules, in YAML.
    pub async fn limit(&self, name: &str, rules: &str) {
        route(name, &[&format!("{name}.test")]);
        set_rules(name, rules).await;
    }

    /// Sends a request to an Envoy.
    pub async fn ask(&self, envoy: usize, request: &Request<'_>) -> Response {
        let Request { method, host, path, headers } = request;
        let mut text = format!("{method} {path} HTTP/1.1\r\nhost: {host}.test\r\nconnection: close\r\n");
        headers.iter().for_each(|(name, value)| text.push_str(&format!("{name}: {value}\r\n")));
        send(&self.envoys[envoy % self.envoys.len()], (text + "\r\n").as_bytes()).await
    }

    /// Sends a request `n` times at once, one half to each Envoy.
    pub async fn ask_many(&self, n: usize, request: &Request<'_>) -> Tally {
        let mut tally = Tally::default();
        let responses = join_all((0..n).map(|envoy| self.ask(envoy, request))).await;
        responses.iter().for_each(|response| tally.count_response(response));
        tally
    }

    /// Waits until both Envoys and the service know the rule of a request: then a response names the limit. Returns how many
    /// requests were charged and admitted on the way.
    pub async fn wait_for_limit(&self, limit: u32, request: &Request<'_>) -> usize {
        let (mut charged, prefix) = (0, format!("{limit},"));
        for envoy in 0..self.envoys.len() {
            until(&format!("Envoy {envoy} enforces {limit} for {request:?}"), async || {
                let response = self.ask(envoy, request).await;
                let named = response.header("x-ratelimit-limit")?;
                charged += usize::from(response.status == 200);
                named.starts_with(&prefix).then_some(())
            })
            .await;
        }
        charged
    }

    /// Expects that exactly `limit` of many requests are admitted, with those that were needed to see that the rule is in force.
    pub async fn expect_exactly(&self, limit: u32, request: &Request<'_>) {
        let charged = self.wait_for_limit(limit, request).await;
        let tally = self.ask_many(limit as usize + 60, request).await;
        println!("{request:?}: {charged} before, {tally:?}");
        assert_eq!(charged + tally.count(200), limit as usize, "{request:?}");
        assert_eq!(tally.count(200) + tally.count(429), limit as usize + 60, "{tally:?}");
    }

    /// Expects that no rule of the policy is about a request.
    pub async fn expect_no_limit(&self, request: &Request<'_>) {
        let tally = self.ask_many(60, request).await;
        assert_eq!(tally.count(200), 60, "{request:?}: {tally:?}");
        assert_eq!(self.ask(0, request).await.header("x-ratelimit-limit"), None, "{request:?}");
    }
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// Name of the route.
    pub host: &'a str,
    /// Path and query.
    pub path: &'a str,
    /// Headers.
    pub headers: &'a [(&'a str, &'a str)],
}

impl<'a> Request<'a> {
    /// A request for the path `/` of a route.
    pub fn get(host: &'a str, headers: &'a [(&'a str, &'a str)]) -> Self {
        Self { method: "GET", host, path: "/", headers }
    }
}

/// Adds a route for some hosts, or for all.
pub fn route(name: &str, hosts: &[&str]) {
    apply(
        &json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "HTTPRoute",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {
                "parentRefs": [{"name": "eg"}],
                "hostnames": hosts,
                "rules": [{"backendRefs": [{"name": "web", "port": 8080}]}],
            },
        })
        .to_string(),
    );
}

/// Returns a policy for some routes, with rules in YAML.
pub fn policy(name: &str, routes: &[&str], rules: &str) -> String {
    let rules: Value = serde_saphyr::from_str(rules).expect("rules in YAML");
    let target =
        |route: &&str| json!({"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route});
    json!({
        "apiVersion": "gateway.envoyproxy.io/v1alpha1",
        "kind": "BackendTrafficPolicy",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "targetRefs": routes.iter().map(target).collect::<Vec<_>>(),
            "rateLimit": {"global": {"rules": rules}},
        },
    })
    .to_string()
}

/// Replaces the rules of a policy, which is named after its only route, and waits until it is accepted.
pub async fn set_rules(name: &str, rules: &str) {
    apply(&policy(name, &[name], rules));
    accepted(name).await;
}

/// Waits until a policy is accepted for all its routes. Returns when that was.
pub async fn accepted(name: &str) -> Instant {
    let client = kube::Client::try_default().await.expect("KUBECONFIG names a cluster");
    let policies = GroupVersionKind::gvk("gateway.envoyproxy.io", "v1alpha1", "BackendTrafficPolicy");
    let resource = ApiResource::from_gvk_with_plural(&policies, "backendtrafficpolicies");
    let policies: Api<DynamicObject> = Api::namespaced_with(client, "default", &resource);
    until(&format!("{name} is accepted"), async || {
        let object = policies.get_opt(name).await.ok()??;
        let ancestors = object.data["status"]["ancestors"].as_array()?;
        let is_accepted = |ancestor: &Value| {
            ancestor["conditions"].as_array().into_iter().flatten().any(|condition| {
                condition["type"] == "Accepted"
                    && condition["status"] == "True"
                    && condition["observedGeneration"].as_i64() == object.metadata.generation
            })
        };
        (!ancestors.is_empty() && ancestors.iter().all(is_accepted)).then(Instant::now)
    })
    .await
}
