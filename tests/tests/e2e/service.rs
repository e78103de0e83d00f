//! The service, with Envoy as a gateway in front of an application with sidecars: one policy for both. It runs alone, because it
//! changes the installation, stops the operator and replaces Redis.

use std::path::Path;

use base64::Engine as _;
use serde_json::json;
use sluice_tests::authority::Authority;
use sluice_tests::client::{get, get_many};
use sluice_tests::node::{Load, SYSTEM, Shop, apply, install, kubectl, upgrade};
use sluice_tests::process::{Process, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;

const GATEWAY: &str = "spiffe://cluster.local/ns/gateways/sa/envoy";

/// Envoy as a process of this host, which can reach the cluster's addresses.
struct Envoy {
    _process: Process,
    _folder: TempDir,
    address: String,
    admin: String,
}

impl Envoy {
    async fn start(domain: &str, application: &str, service: &str, authority: &Authority) -> Self {
        let envoy = std::env::var("SLUICE_ENVOY").expect("SLUICE_ENVOY is the path of Envoy: run `make e2e`");
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = authority.issue_uri(GATEWAY);
        for (name, text) in
            [("tls.crt", certificate), ("tls.key", key), ("ca.crt", secret("sluice-service-tls", "ca\\.crt"))]
        {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let [listen, admin] = [free_port(), free_port()];
        let yaml = include_str!("envoy.yaml")
            .replace("@DOMAIN@", domain)
            .replace("@APPLICATION@", application)
            .replace("@SERVICE@", service)
            .replace("@FOLDER@", &folder.path().display().to_string())
            .replace("@LISTEN@", &listen.to_string())
            .replace("@ADMIN@", &admin.to_string());
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, yaml).unwrap();
        let arguments = ["-c", &file.display().to_string(), "--use-dynamic-base-id", "--concurrency", "1"]
            .map(str::to_owned);
        let process = Process::start(Path::new(&envoy), &arguments, &[], &folder.path().join("log"), "KILL");
        let [address, admin] = [listen, admin].map(|port| format!("127.0.0.1:{port}"));
        until("Envoy is ready", async || {
            tokio::net::TcpStream::connect(&address).await.ok()?;
            tokio::net::TcpStream::connect(&admin).await.ok()?;
            (get(&admin, "/ready", &[]).await.status == 200).then_some(())
        })
        .await;
        Self { _process: process, _folder: folder, address, admin }
    }

    /// Returns the number of questions that had no answer.
    async fn errors(&self) -> u64 {
        let text = get(&self.admin, "/stats?filter=ratelimit.error", &[]).await.body;
        text.lines().filter_map(|line| line.rsplit_once(": ")?.1.parse::<u64>().ok()).sum()
    }
}

fn secret(name: &str, field: &str) -> String {
    let text = kubectl(&format!("-n {SYSTEM} get secret {name} -o jsonpath={{.data.{field}}}"));
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text.trim()).unwrap()).unwrap()
}

fn address_of(service: &str) -> String {
    kubectl(&format!("-n {SYSTEM} get service {service} -o jsonpath={{.spec.clusterIP}}")).trim().to_owned()
}

/// Applies the policy of the gateway and the sidecars.
fn limit(namespace: &str, requests: usize) {
    apply(&format!(
        "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {{name: p, namespace: {namespace}}}
spec:
  enforcedBy: [Sidecar, Service]
  selector: {{matchLabels: {{app: web}}}}
  limits:
  - name: per-client
    matches:
    - path: {{prefix: /}}
    - rls: {{domain: {namespace}, entries: [{{key: client}}]}}
    key: {{parts: [{{header: {{name: x-client}}, descriptorKey: client}}]}}
    rates: [{{requests: {requests}, per: 8784h}}]
    algorithm: {{fixedWindow: {{}}}}
"
    ));
}

fn rollout(workload: &str) {
    kubectl(&format!("-n {SYSTEM} rollout status {workload} --timeout=180s"));
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_a_gateway_and_sidecars_enforce_one_policy_through_failures() {
    const N: usize = 60;
    install();
    let shop = Shop::open("edge");
    shop.deploy("web", 2);
    limit("edge", N);
    let message = shop.wait_for("p", "Programmed", "False NoService").await;
    assert!(message.contains("service.enabled"), "{message}");

    let authority = Authority::new();
    let values = tempfile::tempdir().unwrap();
    let ca = base64::engine::general_purpose::STANDARD.encode(authority.pem());
    apply(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "gateways", "namespace": SYSTEM}, "data": {"ca.crt": ca}}).to_string());
    let file = values.path().join("values.yaml");
    let service = json!({
        "enabled": true,
        "tls": {"clientCA": {"existingSecret": "gateways"}},
        "callers": [{"subject": GATEWAY, "namespaces": ["edge"]}],
    });
    std::fs::write(&file, json!({"service": service}).to_string()).unwrap();
    upgrade(&["--values", file.to_str().unwrap(), "--wait", "--timeout", "5m"]);
    shop.wait_for("p", "Programmed", "True Programmed").await;
    let message = shop.wait_for("p", "Ready", "Unknown NoChecksYet").await;
    assert!(message.contains(&format!("sluice-service.{SYSTEM}.svc:8081")), "{message}");
    eprintln!("{}", kubectl("-n edge get ratelimitpolicies.sluice.dev p -o wide"));

    let application = shop.address("web");
    let ip = application.split(':').next().unwrap();
    let envoy = Envoy::start("edge", ip, &address_of("sluice-service"), &authority).await;
    // 3 N through the gateway and then a sidecar: each request counts once.
    let tally = get_many(&envoy.address, 3 * N, 8, &[("x-client", "chained")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (N, 2 * N), "{tally:?}");
    // N of 3 N, a third through the gateway and the others to the pods.
    let alice = [("x-client", "alice")];
    let (through, direct) =
        tokio::join!(get_many(&envoy.address, N, 4, &alice), get_many(&application, 2 * N, 4, &alice));
    assert_eq!(through.count(200) + direct.count(200), N, "{through:?} {direct:?}");
    shop.wait_for("p", "Ready", "True Ready").await;
    eprintln!("{}", kubectl("-n edge get ratelimitpolicies.sluice.dev p -o wide"));
    eprintln!("{}", kubectl("-n edge describe ratelimitpolicies.sluice.dev p"));

    // Under load: the replicas of the service are replaced, one dies, the operator is gone, an edit is enforced.
    limit("edge", 100_000);
    shop.wait_for("p", "Ready", "True Ready").await;
    let load = Load::start(&envoy.address);
    kubectl(&format!("-n {SYSTEM} rollout restart deployment/sluice-service"));
    rollout("deployment/sluice-service");
    let pods = format!(
        "-n {SYSTEM} get pods -l sluice.dev/component=service -o jsonpath={{.items[0].metadata.name}}"
    );
    kubectl(&format!("-n {SYSTEM} delete pod {}", kubectl(&pods).trim()));
    rollout("deployment/sluice-service");
    kubectl(&format!("-n {SYSTEM} scale deployment/sluice-operator --replicas=0"));
    until("no operator runs", async || {
        let query = format!("-n {SYSTEM} get pods -l app.kubernetes.io/component=operator -o name");
        kubectl(&query).trim().is_empty().then_some(())
    })
    .await;
    let tally = get_many(&envoy.address, 20, 4, &[("x-client", "bob")]).await;
    assert_eq!(tally.count(200), 20, "{tally:?}");
    kubectl(&format!("-n {SYSTEM} scale deployment/sluice-operator --replicas=2"));
    rollout("deployment/sluice-operator");
    limit("edge", 7);
    shop.wait_for("p", "Programmed", "True Programmed").await;
    let tally = get_many(&envoy.address, 20, 4, &[("x-client", "carol")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (7, 13), "{tally:?}");
    load.expect_no_loss().await;
    assert_eq!(envoy.errors().await, 0, "questions without an answer");

    // Redis starts again, empty. Each question is answered meanwhile.
    kubectl(&format!("-n {SYSTEM} delete pod -l app.kubernetes.io/component=redis --wait=false"));
    let tally = get_many(&envoy.address, 40, 4, &[("x-client", "dave")]).await;
    assert_eq!(tally.count(200) + tally.count(429), 40, "{tally:?}");
    assert!(tally.count(200) >= 1, "{tally:?}");
    assert_eq!(envoy.errors().await, 0, "questions without an answer");
    rollout("deployment/sluice-redis");
    upgrade(&["--wait", "--timeout", "5m"]);
    shop.wait_for("p", "Programmed", "False NoService").await;
}
