//! The service, with Envoy as a gateway in front of an application with sidecars: one policy for both. It runs alone, because it
//! changes the installation, stops the operator and replaces Redis.

use std::path::Path;

use base64::Engine as _;
use serde_json::json;
use sluice_tests::authority::Authority;
use sluice_tests::checks::Door;
use sluice_tests::client::{get, get_many};
use sluice_tests::node::{Load, SYSTEM, Shop, apply, install, kubectl, run, upgrade};
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;

const GATEWAY: &str = "spiffe://cluster.local/ns/gateways/sa/envoy";

/// Envoy as a process of this host, which can reach the cluster's addresses.
pub(crate) struct Envoy {
    _process: Process,
    _folder: TempDir,
    /// Address of the listener.
    pub(crate) address: String,
    admin: String,
}

impl Envoy {
    /// Starts it in front of a Service of a cluster, whose address this is, and lets it ask about a domain.
    pub(crate) async fn start(domain: &str, application: &str, authority: &Authority) -> Self {
        let application = application.split(':').next().unwrap();
        let service = address_of("sluice-service");
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
            .replace("@SERVICE@", &service)
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
    pub(crate) async fn errors(&self) -> u64 {
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

/// Switches the service on, and lets the gateway ask about a namespace.
pub(crate) fn enable(authority: &Authority, namespace: &str) {
    let values = tempfile::tempdir().unwrap();
    let ca = base64::engine::general_purpose::STANDARD.encode(authority.pem());
    let metadata = json!({"name": "gateways", "namespace": SYSTEM});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"ca.crt": ca}});
    apply(&secret.to_string());
    let file = values.path().join("values.yaml");
    let service = json!({
        "enabled": true,
        "tls": {"clientCA": {"existingSecret": "gateways"}},
        "callers": [
            {"subject": GATEWAY, "namespaces": [namespace]},
            {"subject": format!("{namespace}/default"), "namespaces": [namespace]},
        ],
    });
    std::fs::write(&file, json!({"service": service}).to_string()).unwrap();
    upgrade(&["--values", file.to_str().unwrap(), "--wait", "--timeout", "5m"]);
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

/// An application with the token of a service account asks over HTTP, with the counters of the gateway and the sidecars.
async fn an_application_asks(namespace: &str, requests: usize, sidecars: &str) {
    let token = kubectl(&format!("-n {namespace} create token default --audience=sluice.dev/service"));
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("ca.crt");
    std::fs::write(&authority, secret("sluice-service-tls", "ca\\.crt")).unwrap();
    let address = format!("{}:8080", address_of("sluice-service")).parse().unwrap();
    let caller = vec!["-H".to_owned(), format!("authorization: Bearer {}", token.trim())];
    let application = Door { address, authority: &authority, caller };
    let check =
        |cost| json!({"policy": format!("{namespace}/p"), "key": ["erin"], "cost": cost, "reserve": {}});
    let (status, answer) = application.post("/v1/check", &check(requests));
    assert_eq!((status, &answer["allowed"]), (200, &json!(true)), "{answer}");
    let erin = [("x-client", "erin")];
    assert_eq!(get(sidecars, "/", &erin).await.status, 429, "all of it is reserved");
    let settlement = json!({"id": answer["reservation"]["id"], "cost": requests - 1});
    // Any replica settles.
    let (status, answer) = application.post("/v1/settle", &settlement);
    assert_eq!((status, &answer["settled"]), (200, &json!(true)), "{answer}");
    // A sidecar may remember its denial for a second.
    until("a sidecar admits what was given back", async || {
        (get(sidecars, "/", &erin).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(get(sidecars, "/", &erin).await.status, 429);
    let (status, answer) = Door { caller: vec![], ..application }.post("/v1/check", &check(1));
    assert_eq!(status, 401, "{answer}");
}

/// The service needs nothing of the API server.
fn has_no_rights() {
    let account = format!("system:serviceaccount:{SYSTEM}:sluice-service");
    for (verb, resource) in [
        ("get", "secrets"),
        ("list", "pods"),
        ("get", "configmaps"),
        ("get", "ratelimitpolicies.sluice.dev"),
        ("create", "tokenreviews.authentication.k8s.io"),
        ("create", "events"),
    ] {
        let arguments = ["auth", "can-i", verb, resource, "--all-namespaces", "--as", &account];
        let (_, answer) = run("kubectl", &arguments, "");
        assert!(answer.trim_end().ends_with("no"), "{verb} {resource}: {answer}");
    }
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
    enable(&authority, "edge");
    shop.wait_for("p", "Programmed", "True Programmed").await;
    let (ok, text) = run("helm", &["test", "sluice", "--namespace", SYSTEM], "");
    assert!(ok && text.contains("sluice-verify-service"), "{text}");
    has_no_rights();
    let message = shop.wait_for("p", "Ready", "Unknown NoChecksYet").await;
    assert!(message.contains(&format!("sluice-service.{SYSTEM}.svc:8081")), "{message}");
    eprintln!("{}", kubectl("-n edge get ratelimitpolicies.sluice.dev p -o wide"));

    let application = shop.address("web");
    let envoy = Envoy::start("edge", &application, &authority).await;
    // 3 N through the gateway and then a sidecar: each request counts once.
    let tally = get_many(&envoy.address, 3 * N, 8, &[("x-client", "chained")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (N, 2 * N), "{tally:?}");
    // N of 3 N, a third through the gateway and the others to the pods.
    let alice = [("x-client", "alice")];
    let (through, direct) =
        tokio::join!(get_many(&envoy.address, N, 4, &alice), get_many(&application, 2 * N, 4, &alice));
    assert_eq!(through.count(200) + direct.count(200), N, "{through:?} {direct:?}");
    an_application_asks("edge", N, &application).await;
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
    // Another certificate of the same authority.
    let certificate = secret("sluice-service-tls", "tls\\.crt");
    kubectl(&format!("-n {SYSTEM} delete secret sluice-service-tls"));
    until("the operator has issued another certificate", async || {
        let name = "secret/sluice-service-tls";
        let (found, _) = run("kubectl", &["-n", SYSTEM, "get", name], "");
        (found && secret("sluice-service-tls", "tls\\.crt") != certificate).then_some(())
    })
    .await;
    let sluice = binary("sluice");
    let (ok, text) = run(sluice.to_str().unwrap(), &["status", "-n", SYSTEM, "--callers"], "");
    assert!(ok && text.contains(GATEWAY), "{text}");
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
