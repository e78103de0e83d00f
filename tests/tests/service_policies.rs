//! Policies that the service enforces: a real API server, operator and Redis, the service with TLS and callers, and sidecars.

mod caller;

use std::path::{Path, PathBuf};

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::api::{Api, PostParams};
use serde_json::{Value, json};
use sluice_service::messages::OVER_LIMIT;
use sluice_tests::authority::Authority;
use sluice_tests::checks::Door;
use sluice_tests::client::get;
use sluice_tests::components::sidecar::flood;
use sluice_tests::components::{Operator, Redis, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;

use self::caller::{Caller, write_server};

/// The name in the certificate of the gateway.
const GATEWAY: &str = "spiffe://cluster.local/ns/gateways/sa/envoy";

/// A pod of the service, as a process.
struct Service {
    process: Process,
    grpc: u16,
    http: u16,
    admin: String,
    debug: String,
    authority: PathBuf,
    folder: TempDir,
}

impl Service {
    async fn start(
        system: &TestNamespace,
        pod: &Pod,
        operator: &Operator,
        authority: &Authority,
        callers: &Value,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        std::fs::write(at("token"), system.token(pod, "sluice.dev").await).unwrap();
        write_callers(folder.path(), callers);
        write_server(authority, folder.path());
        let [grpc, http, admin, debug] = [(); 4].map(|()| free_port());
        let arguments = vec![
            format!("--operator={}", operator.control_url),
            format!("--ca-file={}", operator.ca_file().display()),
            format!("--token-file={}", at("token")),
            format!("--state-dir={}", folder.path().display()),
            format!("--grpc=127.0.0.1:{grpc}"),
            format!("--http=127.0.0.1:{http}"),
            format!("--admin=127.0.0.1:{admin}"),
            format!("--debug=127.0.0.1:{debug}"),
            format!("--tls-cert-file={}", at("tls.crt")),
            format!("--tls-key-file={}", at("tls.key")),
            format!("--client-ca-file={}", at("ca.crt")),
            format!("--callers-file={}", at("callers.yaml")),
            "--drain-delay=0s".to_owned(),
        ];
        let process =
            Process::start(&binary("sluice-service"), &arguments, &[], &folder.path().join("log"), "TERM");
        let [admin, debug] = [admin, debug].map(|port| format!("127.0.0.1:{port}"));
        Self { process, grpc, http, admin, debug, authority: folder.path().join("ca.crt"), folder }
    }

    async fn is_ready(&mut self) {
        let (process, admin) = (&mut self.process, &self.admin);
        until("the service is ready", async || {
            assert!(process.is_running(), "the service has ended:\n{}", process.output());
            tokio::net::TcpStream::connect(admin.as_str()).await.ok()?;
            (get(admin, "/readyz", &[]).await.status == 200).then_some(())
        })
        .await;
    }

    /// Returns its door for an application, which shows this.
    fn door(&self, caller: &[&str]) -> Door<'_> {
        let caller = caller.iter().map(|&argument| argument.to_owned()).collect();
        Door { address: ([127, 0, 0, 1], self.http).into(), authority: &self.authority, caller }
    }

    async fn callers(&self) -> Value {
        serde_json::from_str(&get(&self.debug, "/callers", &[]).await.body).unwrap()
    }
}

fn write_callers(folder: &Path, callers: &Value) {
    // JSON is YAML.
    std::fs::write(folder.join("callers.yaml"), json!({"callers": callers}).to_string()).unwrap();
}

/// Creates the operator's namespace with a pod of the service.
async fn system(plane: &ControlPlane, name: &str) -> TestNamespace {
    let system = TestNamespace { client: plane.client().await, name: name.to_owned() };
    let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).unwrap();
    system.api::<ServiceAccount>().create(&PostParams::default(), &account).await.unwrap();
    system
}

async fn service_pod(system: &TestNamespace, name: &str) -> Pod {
    system.pod(name, false, json!({"sluice.dev/component": "service"})).await
}

/// A limit for requests with the header `x-user` and for descriptors with the key `user`.
fn both(domain: &str, requests: usize) -> Value {
    json!({
        "enforcedBy": ["Sidecar", "Service"],
        "selector": {"matchLabels": {"app": "shop"}},
        "limits": [{
            "name": "per-user",
            "matches": [{"path": {"prefix": "/"}}, {"rls": {"domain": domain, "entries": [{"key": "user"}]}}],
            "key": {"parts": [{"header": {"name": "x-user"}, "descriptorKey": "user"}]},
            "rates": [{"requests": requests, "per": "8784h"}],
            "algorithm": {"fixedWindow": {}},
        }],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_of_sidecars_and_the_service_has_one_counter_for_both() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (plane, redis, authority) = (ControlPlane::shared().await, Redis::start().await, Authority::new());
    let control_url = format!("https://127.0.0.1:{}", free_port());
    let arguments = ["--service-account=default", "--domains=legacy.example=elsewhere"];
    let operator = Operator::start_with(plane, "service-system", &redis.url, &control_url, &arguments).await;
    let system = system(plane, "service-system").await;
    let shop = TestNamespace::create(plane.client().await, "shop").await;
    let domain = shop.name.as_str();

    // Without a pod of the service, the policy is enforced by half of those that it names.
    shop.apply("p", both(domain, 10)).await.unwrap();
    let pod = shop.pod("web-1", true, json!({"app": "shop"})).await;
    let sidecar = Sidecar::start(&shop, &pod, &operator).await;
    let message = shop.wait_for("p", "Programmed", "False NoService").await;
    assert!(message.contains("No pod of the service runs"), "{message}");

    let callers = json!([{"subject": GATEWAY, "namespaces": [domain]}]);
    let pod = service_pod(&system, "sluice-service-1").await;
    let mut service = Service::start(&system, &pod, &operator, &authority, &callers).await;
    service.is_ready().await;
    shop.wait_for("p", "Programmed", "True Programmed").await;
    let message = shop.wait_for("p", "Captured", "Unknown NoChecksYet").await;
    assert!(message.contains(domain) && message.contains(":8081"), "{message}");

    // A caller that is not listed, or that names another namespace, is refused, and nothing is charged.
    let mut gateway = Caller::connect(service.grpc, &authority, Some(GATEWAY)).await;
    let refused = gateway.ask("another", &[("user", "a")]).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("may not ask about the domain \"another\""), "{refused}");
    let mut stranger =
        Caller::connect(service.grpc, &authority, Some("spiffe://cluster.local/ns/x/sa/y")).await;
    let refused = stranger.ask(domain, &[("user", "a")]).await.unwrap_err();
    assert!(refused.message().contains("is not listed: add it to service.callers"), "{refused}");

    // 30 requests through the gateway and 30 to the pod, at the same time: 10 in all.
    let asking = join_all((0..30).map(|_| {
        let mut caller = gateway.clone();
        async move { caller.ask(domain, &[("user", "alice")]).await.unwrap() }
    }));
    let (answers, tally) = tokio::join!(asking, flood([&sidecar], 30, 10, &[("x-user", "alice")]));
    let admitted = answers.iter().filter(|is_admitted| **is_admitted).count();
    assert_eq!(admitted + tally.count(200), 10, "{admitted} of the gateway, {tally:?}");
    assert_eq!(tally.count(200) + tally.count(429), 30, "{tally:?}");
    assert!(gateway.ask(domain, &[("user", "bob")]).await.unwrap(), "another client");
    assert!(gateway.ask(domain, &[("tenant", "alice")]).await.unwrap(), "no limit is for it");
    let message = shop.wait_for("p", "Captured", "True ChecksArrive").await;
    assert!(
        message.contains("No known route bypasses the sidecars.") && message.contains(domain),
        "{message}"
    );
    shop.wait_for("p", "Ready", "True Ready").await;
    let pods =
        shop.api::<sluice_crds::RateLimitPolicy>().get("p").await.unwrap().status.unwrap().pods.unwrap();
    assert_eq!(pods.summary, "2/2");

    let page = service.callers().await;
    assert_eq!(page["callers"][0]["subject"], GATEWAY, "{page}");
    assert_eq!(page["callers"][0]["refused"], 1, "{page}");
    assert_eq!(page["refused"].as_array().unwrap().len(), 2, "{page}");
    let metrics = get(&service.admin, "/metrics", &[]).await.body;
    assert!(metrics.contains("sluice_callers_refused_total{reason=\"domain\"} 1"), "{metrics}");

    // A request that passes the gateway and then the pod counts once.
    let mut passed = 0;
    for n in 0..30 {
        let answer = gateway.answer(domain, &[("user", "chained")]).await.unwrap();
        let header = |name: &str| answer.response_headers_to_add.iter().find(|header| header.key == name);
        assert_eq!(header("x-ratelimit-limit").unwrap().value, "10");
        if answer.overall_code == OVER_LIMIT {
            assert!(n >= 10 && answer.request_headers_to_add.is_empty() && header("retry-after").is_some());
            continue;
        }
        let [mark] = answer.request_headers_to_add.as_slice() else { panic!("{answer:?}") };
        let name = str::from_utf8(&mark.key).unwrap();
        assert_eq!(header("x-ratelimit-remaining").unwrap().value, (9 - n).to_string());
        let marked = [("x-user", "chained"), (name, mark.value.as_str())];
        passed += usize::from(get(&sidecar.address, "/", &marked).await.status == 200);
        // For another client the mark proves nothing.
        let stolen = [("x-user", "thief"), (name, mark.value.as_str())];
        let expected = if n < 10 { 200 } else { 429 };
        assert_eq!(get(&sidecar.address, "/", &stolen).await.status, expected);
    }
    assert_eq!(passed, 10);
    assert_eq!(get(&sidecar.address, "/", &[("x-user", "chained")]).await.status, 429);
    assert_eq!(get(&sidecar.address, "/", &[("x-user", "thief")]).await.status, 429);

    // An edit reaches both.
    shop.apply("p", both(domain, 11)).await.unwrap();
    shop.wait_for("p", "Programmed", "True Programmed").await;
    assert!(gateway.ask(domain, &[("user", "alice")]).await.unwrap());
    assert_eq!(get(&sidecar.address, "/", &[("x-user", "alice")]).await.status, 429);

    // A domain that is not the namespace's own.
    shop.apply("other", both("legacy.example", 5)).await.unwrap();
    let message = shop.wait_for("other", "Accepted", "False DomainNotGranted").await;
    assert!(message.contains("\"legacy.example\" is not granted to the namespace"), "{message}");

    // A gateway's own policy, whose pods are those of the service alone.
    let spec = json!({"enforcedBy": ["Service"], "limits": [{
        "name": "all", "rates": [{"requests": 2, "per": "8784h"}], "allowOverride": {"maximum": 3},
        "matches": [{"rls": {"domain": format!("{domain}/edge"), "entries": [{"key": "path", "prefix": "/v1/"}]}}],
    }]});
    shop.apply("edge", spec).await.unwrap();
    shop.wait_for("edge", "Programmed", "True Programmed").await;
    let edge = format!("{domain}/edge");
    let mut admitted = 0;
    for _ in 0..5 {
        admitted += usize::from(gateway.ask(&edge, &[("path", "/v1/pay")]).await.unwrap());
    }
    assert_eq!(admitted, 2);
    shop.wait_for("edge", "Ready", "True Ready").await;

    // The operator is gone: the service goes on.
    drop(operator);
    assert!(!gateway.ask(domain, &[("user", "alice")]).await.unwrap());
    assert!(gateway.ask(domain, &[("user", "carol")]).await.unwrap());

    // Whoever an authority vouched for that is trusted no longer must go.
    let other = Authority::new();
    write_server(&other, service.folder.path());
    until("the old authority's callers are refused", async || {
        gateway.ask(domain, &[("user", "dave")]).await.is_err().then_some(())
    })
    .await;
    let mut gateway = Caller::connect(service.grpc, &other, Some(GATEWAY)).await;
    assert!(gateway.ask(domain, &[("user", "erin")]).await.unwrap());
    write_callers(service.folder.path(), &json!([{"subject": GATEWAY, "namespaces": ["nothing"]}]));
    until("the caller has lost its grant", async || {
        gateway.ask(domain, &[("user", "dave")]).await.is_err().then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_is_known_by_the_token_of_its_service_account_and_by_no_other_token() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (plane, redis, authority) = (ControlPlane::shared().await, Redis::start().await, Authority::new());
    let control_url = format!("https://127.0.0.1:{}", free_port());
    let operator = Operator::start_with(
        plane,
        "tokens-system",
        &redis.url,
        &control_url,
        &["--service-account=default"],
    )
    .await;
    let system = system(plane, "tokens-system").await;
    let shop = TestNamespace::create(plane.client().await, "tokens").await;
    let domain = shop.name.as_str();
    let spec = json!({"enforcedBy": ["Service"], "limits": [{
        "name": "per-user", "rates": [{"requests": 2, "per": "8784h"}], "algorithm": {"fixedWindow": {}},
        "matches": [{"rls": {"domain": domain, "entries": [{"key": "user"}]}}],
        "key": {"parts": [{"descriptor": {"key": "user"}}]},
    }]});
    shop.apply("p", spec).await.unwrap();
    let heads = json!({"enforcedBy": ["Service"], "limits": [{
        "name": "all", "rates": [{"requests": 3, "per": "8784h"}], "algorithm": {"fixedWindow": {}},
        "matches": [{"path": {"prefix": "/shown"}}],
    }]});
    shop.apply("heads", heads).await.unwrap();
    let callers = json!([{"subject": format!("{domain}/default"), "namespaces": [domain]}]);
    let pod = service_pod(&system, "sluice-service-1").await;
    let mut service = Service::start(&system, &pod, &operator, &authority, &callers).await;
    service.is_ready().await;
    // A service is ready with what its operator knew, which may be nothing of a policy that was just applied.
    shop.wait_for("p", "Programmed", "True Programmed").await;
    shop.wait_for("heads", "Programmed", "True Programmed").await;
    let pod = shop.pod("app-1", false, json!({"app": "app"})).await;
    let mut caller = Caller::connect(service.grpc, &authority, None).await;
    let unidentified = caller.ask(domain, &[("user", "a")]).await.unwrap_err();
    assert_eq!(unidentified.code(), tonic::Code::Unauthenticated, "{unidentified}");

    let token = shop.token(&pod, "sluice.dev/service").await;
    let mut caller = caller.with_token(&token);
    until("the keys of the API server have come", async || caller.ask(domain, &[("user", "b")]).await.ok())
        .await;
    let mut admitted = 0;
    for _ in 0..4 {
        admitted += usize::from(caller.ask(domain, &[("user", "a")]).await.unwrap());
    }
    assert_eq!(admitted, 2);
    let (head, signature) = token.rsplit_once('.').unwrap();
    let forged = format!("{head}.{}", signature.chars().rev().collect::<String>());
    for (token, what) in [
        (shop.token(&pod, "sluice.dev").await, "another audience"),
        (forged.clone(), "another signature"),
        ("nonsense".to_owned(), "no token"),
    ] {
        let refused = caller.with_token(&token).ask(domain, &[("user", "c")]).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{what}: {refused}");
    }
    // Over HTTP, the same callers and the same counters: `a` has asked twice.
    let bearer = format!("authorization: Bearer {token}");
    let application = service.door(&["-H", &bearer]);
    let check =
        |client: &str, cost: u64| json!({"policy": format!("{domain}/p"), "key": [client], "cost": cost});
    let (status, answer) = application.post("/v1/check", &check("a", 1));
    assert_eq!((status, &answer["allowed"]), (200, &json!(false)), "{answer}");
    let mut reserve = check("d", 2);
    reserve["reserve"] = json!({});
    let (_, answer) = application.post("/v1/check", &reserve);
    let id = &answer["reservation"]["id"];
    assert!(!caller.ask(domain, &[("user", "d")]).await.unwrap(), "{answer}");
    let (status, answer) = application.post("/v1/settle", &json!({"id": id, "cost": 1}));
    assert_eq!((status, &answer["settled"]), (200, &json!(true)), "{answer}");
    assert!(caller.ask(domain, &[("user", "d")]).await.unwrap());
    let (status, answer) = application.post("/v1/check", &json!({"policy": "elsewhere/p", "key": ["a"]}));
    assert_eq!(status, 404, "{answer}");
    let bearer = |token: &str| format!("authorization: Bearer {token}");
    let other_audience = shop.token(&pod, "sluice.dev").await;
    for caller in [&[] as &[&str], &["-H", &bearer(&forged)], &["-H", &bearer(&other_audience)]] {
        let (status, answer) = service.door(caller).post("/v1/check", &check("e", 1));
        assert_eq!(status, 401, "{answer}");
    }
    // A gateway shows the token in a header of its own. `authorization` is its client's.
    let head =
        ["-H", "x-sluice-method: GET", "-H", "x-sluice-target: /shown", "-H", "x-sluice-address: 192.0.2.7"];
    let gateway = |more: &[&str], path: &str| {
        let all: Vec<_> = head.iter().chain(more).copied().collect();
        service.door(&all).post(path, &json!({})).0
    };
    let (of_gateway, of_client) = (format!("sluice-{}", bearer(&token)), bearer(&token));
    let path = format!("/v1/auth/nginx/{domain}/-");
    assert_eq!(gateway(&["-H", &of_client], &path), 401);
    assert_eq!(gateway(&["-H", &of_gateway, "-H", "authorization: Basic eDp5"], &path), 200);
    // It may name one namespace alone, so it need not.
    assert_eq!(gateway(&["-H", &of_gateway], "/v1/auth/nginx/-/-"), 200);
    assert_eq!(gateway(&["-H", &of_gateway], "/v1/auth/nginx/elsewhere/-"), 404);
    let mut envoy = caller.clone();
    assert_eq!(envoy.shows("/shown", None).await.unwrap(), 200);
    assert_eq!(envoy.shows("/shown", Some(domain)).await.unwrap(), 429);
    let refused = envoy.shows("/shown", Some("elsewhere")).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused}");
    let message = shop.wait_for("heads", "Captured", "True ChecksArrive").await;
    assert!(message.contains("gateways ask the service"), "{message}");
    // A service account of another namespace is somebody else.
    let token = system.token(&service_pod(&system, "sluice-service-2").await, "sluice.dev/service").await;
    let refused = caller.with_token(&token).ask(domain, &[("user", "c")]).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::PermissionDenied, "{refused}");
    assert!(refused.message().contains("tokens-system/default is not listed"), "{refused}");
    let (status, answer) = service.door(&["-H", &bearer(&token)]).post("/v1/check", &check("e", 1));
    assert_eq!(
        (status, answer["detail"].as_str().unwrap().contains("tokens-system/default")),
        (403, true),
        "{answer}"
    );
    // A pod of the operator's namespace without the label is none of the service's.
    let stranger = system.pod("other", false, json!({})).await;
    let callers = json!([]);
    let stranger = Service::start(&system, &stranger, &operator, &authority, &callers).await;
    until("the operator refuses it", async || stranger.process.output().contains("403").then_some(())).await;
    assert_ne!(get(&stranger.admin, "/readyz", &[]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policies_of_the_example_are_enforced() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let (plane, redis, authority) = (ControlPlane::shared().await, Redis::start().await, Authority::new());
    let control_url = format!("https://127.0.0.1:{}", free_port());
    let arguments = ["--service-account=default"];
    let operator = Operator::start_with(plane, "example-system", &redis.url, &control_url, &arguments).await;
    let system = system(plane, "example-system").await;
    // The example names its namespace, whose domains it uses.
    let shop = TestNamespace { client: plane.client().await, name: "shop".to_owned() };
    let namespace = serde_json::from_value(json!({"metadata": {"name": "shop"}})).unwrap();
    Api::<Namespace>::all(shop.client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/service-both.yaml");
    let mut names = Vec::new();
    for document in std::fs::read_to_string(file).unwrap().split("\n---\n") {
        let policy: Value = serde_saphyr::from_str(document).unwrap();
        let name = policy["metadata"]["name"].as_str().unwrap().to_owned();
        shop.apply(&name, policy["spec"].clone()).await.unwrap();
        names.push(name);
    }
    assert_eq!(names, ["budget", "edge"]);
    let callers = json!([{"subject": GATEWAY, "namespaces": ["shop"]}]);
    let pod = service_pod(&system, "sluice-service-1").await;
    let mut service = Service::start(&system, &pod, &operator, &authority, &callers).await;
    service.is_ready().await;
    shop.wait_for("edge", "Programmed", "True Programmed").await;
    let mut gateway = Caller::connect(service.grpc, &authority, Some(GATEWAY)).await;
    let mut admitted = 0;
    for _ in 0..15 {
        let login = [("route", "login"), ("remote_address", "192.0.2.7")];
        admitted += usize::from(gateway.ask("shop", &login).await.unwrap());
    }
    // A sliding window admits as many at most, while the minute changes too.
    assert_eq!(admitted, 10);
    for (tenant, is_limited) in [("free-1", true), ("paid-1", false)] {
        let answer = gateway.answer("shop", &[("tenant", tenant)]).await.unwrap();
        assert_eq!(answer.statuses[0].current_limit.is_some(), is_limited, "{tenant}");
    }
    let customer = gateway.answer("shop", &[("route", "v1"), ("customer", "acme")]).await.unwrap();
    assert_eq!(customer.statuses[0].current_limit.as_ref().unwrap().requests_per_unit, 600);
}
