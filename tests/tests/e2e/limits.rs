//! Sluice on a real node: policies applied with kubectl, requests through a Service, counters in Redis.

use std::net::SocketAddr;

use base64::Engine as _;
use redis::io::AsyncDNSResolver;
use redis::{AsyncConnectionConfig, RedisFuture, TlsCertificates};
use sluice_config::key::{Identity, KeyBuilder, KeySource, OnMissing};
use sluice_config::{KeySecret, RequestAttributes};
use sluice_limiter::Record;
use sluice_store::{KeyHash, RedisOptions};
use sluice_tests::client::{get, get_many};
use sluice_tests::node::{SYSTEM, Shop, apply, install, kubectl, run, try_apply};
use sluice_tests::process::binary;
use sluice_tests::wait::until;

/// Reads a field of one of the installation's Secrets.
fn secret(name: &str, field: &str) -> String {
    let text = kubectl(&format!("-n {SYSTEM} get secret {name} -o jsonpath={{.data.{field}}}"));
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text.trim()).unwrap()).unwrap()
}

/// Resolves every name to one address.
struct Only(SocketAddr);

impl AsyncDNSResolver for Only {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        _: &'b str,
        _: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move { Ok(Box::new(std::iter::once(self.0)) as _) })
    }
}

/// Connects to the embedded Redis with the right to read. The administrator has no right to keys, but makes a user.
async fn connect_to_redis() -> redis::aio::MultiplexedConnection {
    let address = kubectl(&format!("-n {SYSTEM} get service sluice-redis -o jsonpath={{.spec.clusterIP}}"));
    let address = format!("{}:6379", address.trim()).parse().unwrap();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let ca = secret("sluice-redis", "ca\\.crt");
    let connect = async |user: &str, password: &str| {
        let url = format!("rediss://{user}:{password}@sluice-redis.{SYSTEM}.svc:6379");
        let certificates = TlsCertificates { client_tls: None, root_cert: Some(ca.clone().into_bytes()) };
        let client = redis::Client::build_with_tls(url, certificates).unwrap();
        // The name is known in the cluster only.
        let config = AsyncConnectionConfig::new().set_dns_resolver(Only(address));
        client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
    };
    let (user, password) = (secret("sluice-redis", "username"), secret("sluice-redis", "password"));
    let mut administrator = connect(&user, &password).await;
    let mut reader = redis::cmd("ACL");
    reader.arg(&["SETUSER", "reader", "reset", "on", ">reader", "~*", "-@all", "+get", "+time"]);
    reader.query_async::<()>(&mut administrator).await.unwrap();
    connect("reader", "reader").await
}

/// Reads from Redis the count of the current hour for one value of `x-client`.
async fn stored_count(scope: &str, client: &str) -> u64 {
    let key_secret = KeySecret::try_from(secret("sluice-store-key", "key")).unwrap();
    let key_secret = key_secret.of_namespace(scope.split('/').next().unwrap());
    let builder = KeyBuilder::new(
        &[KeySource::Header { name: "x-client".into(), verified_by: None }],
        OnMissing::Shared,
    )
    .unwrap();
    let headers =
        [(http::HeaderName::from_static("x-client"), client.parse().unwrap())].into_iter().collect();
    let (uri, peer) = (http::Uri::from_static("/"), "127.0.0.1".parse().unwrap());
    let request = RequestAttributes::new(&http::Method::GET, &uri, &headers, peer);
    let Identity::Key(hash) = builder.identify(&key_secret, &request, &request.path_readings(), peer) else {
        unreachable!()
    };
    let mut connection = connect_to_redis().await;
    let key = RedisOptions::from_url("redis://redis").unwrap().key_name(scope, KeyHash(hash));
    let value: Vec<u8> = redis::cmd("GET").arg(&key).query_async(&mut connection).await.unwrap();
    let records = Record::decode_all(&value).unwrap();
    assert_eq!(records.len(), 1, "{key} holds {value:?}");
    records[0].current
}

/// Waits until the next full hour of Redis's clock, which counts, is more than two minutes away. The requests
/// take one minute at most.
async fn avoid_the_full_hour() {
    let mut redis = connect_to_redis().await;
    until("the next full hour is not near", async || {
        let (seconds, _): (u64, u64) = redis::cmd("TIME").query_async(&mut redis).await.ok()?;
        (seconds % 3600 < 3480).then_some(())
    })
    .await;
}

/// Reads the lines of the metric `sluice_fallback_total` from all pods of an application. Prints why checks failed.
async fn fallbacks(shop: &Shop, app: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for pod in shop.pod_addresses(app) {
        let metrics = get(&format!("{pod}:8791"), "/metrics", &[]).await;
        assert_eq!(metrics.status, 200);
        assert!(metrics.body.contains("sluice_decisions"), "{}", metrics.body);
        let faults =
            metrics.body.lines().filter(|l| l.starts_with("sluice_store_faults") && !l.ends_with(" 0"));
        println!("{pod}: {:?}", faults.collect::<Vec<_>>());
        lines.extend(metrics.body.lines().filter(|l| l.starts_with("sluice_fallback")).map(str::to_owned));
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn e2e_three_pods_admit_exactly_n_of_3n_concurrent_requests() {
    const N: usize = 300;
    install();
    let shop = Shop::open("shop");
    shop.deploy("checkout", 3);
    shop.limit_workload("checkout", "Deployment", "checkout", N as u32);
    shop.wait_for("checkout", "Ready", "True Ready").await;
    let address = shop.address("checkout");
    avoid_the_full_hour().await;

    let tally = get_many(&address, 3 * N, 60, &[("x-client", "alice")]).await;
    println!("{tally:?}");
    assert_eq!((tally.count(200), tally.count(429)), (N, 2 * N), "{tally:?}");
    assert_eq!(tally.by_pod.len(), 3, "{tally:?}");
    assert!(tally.by_pod.values().all(|&admitted| admitted >= N / 10), "{tally:?}");
    let fallbacks = fallbacks(&shop, "checkout").await;
    assert!(fallbacks.len() >= 3 && fallbacks.iter().all(|line| line.ends_with(" 0")), "{fallbacks:?}");
    assert_eq!(stored_count("shop/checkout/per-client", "alice").await, N as u64);

    let denied = get(&address, "/", &[("x-client", "alice")]).await;
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").is_some() && denied.body.contains("per-client"), "{denied:?}");
    let other = get(&address, "/", &[("x-client", "bob")]).await;
    assert_eq!((other.status, other.header("x-ratelimit-remaining")), (200, Some("299")), "{other:?}");

    // Numbers alone are written at most once in 10 s.
    until("the table has all pods", async || {
        let row = kubectl("-n shop get ratelimitpolicies.sluice.dev checkout --no-headers");
        let row: Vec<_> = row.split_whitespace().collect();
        (row[..5] == ["checkout", "True", "True", "3/3", "Healthy"]).then_some(())
    })
    .await;
    kubectl("-n shop describe ratelimitpolicies.sluice.dev checkout");

    who_is_limited(2 * N + 1);
    a_client_is_reset(&address, N).await;
    a_client_is_unblocked(&shop, &address).await;

    // An edit takes effect on all pods, without a restart, and keeps the counts.
    let before = kubectl(
        "-n shop get pods -l app=checkout -o jsonpath={.items[*].metadata.uid}{.items[*].status.initContainerStatuses[*].restartCount}",
    );
    shop.limit_workload("checkout", "Deployment", "checkout", N as u32 + 50);
    shop.wait_for("checkout", "Ready", "True Ready").await;
    let tally = get_many(&address, 150, 30, &[("x-client", "alice")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (50, 100), "{tally:?}");
    let after = kubectl(
        "-n shop get pods -l app=checkout -o jsonpath={.items[*].metadata.uid}{.items[*].status.initContainerStatuses[*].restartCount}",
    );
    assert_eq!(before, after);

    kubectl("-n shop delete ratelimitpolicies.sluice.dev checkout");
    until("deleting the policy lifts the limit", async || {
        let tally = get_many(&address, 30, 10, &[("x-client", "alice")]).await;
        (tally.count(200) == 30).then_some(())
    })
    .await;
}

/// Runs `sluice` as a plugin of kubectl. Reports whether it succeeded, and what it printed, with single spaces.
fn try_sluice(arguments: &str) -> (bool, String) {
    let plugins = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(binary("sluice"), plugins.path().join("kubectl-sluice")).unwrap();
    let path = format!("{}:{}", plugins.path().display(), std::env::var("PATH").unwrap());
    let (ok, text) = run("env", &["bash", "-c", &format!("PATH={path} kubectl sluice {arguments}")], "");
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n");
    (ok, lines.collect())
}

fn sluice(arguments: &str) -> String {
    let (ok, text) = try_sluice(arguments);
    assert!(ok, "{text}");
    text
}

/// Gives alice, who has used up her quota, the whole of it back in all pods.
async fn a_client_is_reset(address: &str, quota: usize) {
    let refused = sluice("unblock shop/checkout per-client alice");
    assert!(refused.contains(" is not blocked by limit per-client of policy shop/checkout. "), "{refused}");
    let done = sluice("reset shop/checkout per-client alice");
    assert_eq!(done, "The counter is removed, and 3 pods have forgotten the client.\n");
    let peeked = sluice("peek shop/checkout per-client alice");
    assert!(peeked.contains(&format!(" {quota} of {quota} left")), "{peeked}");
    let tally = get_many(address, 3 * quota, 60, &[("x-client", "alice")]).await;
    assert_eq!((tally.count(200), tally.count(429)), (quota, 2 * quota), "{tally:?}");
    let table = kubectl("-n shop get counterresets");
    let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[1..5], ["checkout", "per-client", "True", "Complete"], "{table}");
    let (ok, error) = try_sluice("reset shop/checkout per-clients alice");
    assert!(!ok && error.contains("has no limit per-clients: its limits are per-client"), "{error}");
}

/// Ends the block of a client that all pods refuse.
async fn a_client_is_unblocked(shop: &Shop, address: &str) {
    apply(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: login, namespace: shop}\nspec:\n  \
         targetRefs: [{kind: Deployment, name: checkout}]\n  limits:\n  - name: per-user\n    \
         key: {parts: [{header: {name: x-user}}]}\n    rates: [{requests: 2, per: 1h}]\n    \
         onLimit: {block: {after: 5, within: 1h, for: 1h}}\n",
    );
    shop.wait_for("login", "Ready", "True Ready").await;
    let tally = get_many(address, 60, 20, &[("x-user", "eve")]).await;
    assert_eq!(tally.count(200), 2, "{tally:?}");
    assert!(sluice("peek shop/login per-user eve").contains(" blocked for "));
    let done = sluice("unblock shop/login per-user eve");
    assert_eq!(done, "The counter is removed, and 3 pods have forgotten the client.\n");
    let tally = get_many(address, 60, 20, &[("x-user", "eve")]).await;
    assert_eq!(tally.count(200), 2, "{tally:?}");
    kubectl("-n shop delete ratelimitpolicies.sluice.dev login");
}

/// Asks about the clients of the deployment as a plugin of kubectl: alice was denied so many times, and bob has sent one
/// request.
fn who_is_limited(denied: usize) {
    let top = sluice("top -n shop");
    assert!(top.contains(&format!("\nshop/checkout per-client Reject {denied} ")), "{top}");
    assert_eq!(top.lines().count(), 2, "{top}");
    let key = top.trim_end().rsplit(' ').next().unwrap();
    let peeked = sluice("peek shop/checkout per-client alice");
    assert!(peeked.contains(&format!("key {key}\n")) && peeked.contains(" 0 of 300 left"), "{peeked}");
    let explained = sluice("explain -n shop -l app=checkout -H 'x-client: bob' /");
    assert!(explained.contains(" 299 of 300 left"), "{explained}");
    assert!(explained.ends_with("The request would be admitted.\n"), "{explained}");
    let status = sluice("status -n shop --pods");
    assert!(status.contains("\nshop/checkout 3/3 True Healthy\n"), "{status}");
    let versions = status.lines().filter(|line| line.ends_with("default healthy"));
    assert_eq!(versions.count(), 3, "{status}");
    let help = sluice("top --help");
    assert!(help.contains("Usage: kubectl sluice top"), "{help}");
}

#[tokio::test]
async fn e2e_status_reports_pods_older_than_the_label_with_the_command_that_injects_them() {
    install();
    apply("{apiVersion: v1, kind: Namespace, metadata: {name: early}}");
    let shop = Shop { namespace: "early".into() };
    shop.deploy("web", 2);
    shop.limit("p", "web", 5);
    let message = shop.wait_for("p", "Programmed", "False NotInjected").await;
    let [label, restart] = [
        "label --overwrite namespace early sluice.dev/injection=enabled",
        "-n early rollout restart deployment/web",
    ];
    assert_eq!(
        message,
        format!(
            "2 of 2 pods have no sidecar. To add it, run `kubectl {label}`, then run `kubectl {restart}`."
        )
    );
    kubectl(label);
    kubectl(restart);
    shop.wait_for_rollout("web");
    shop.wait_for("p", "Ready", "True Ready").await;
}

#[tokio::test]
async fn e2e_a_sidecar_that_hangs_keeps_programmed_false() {
    install();
    let shop = Shop::open("hang");
    shop.deploy("web", 1);
    shop.limit("p", "web", 5);
    shop.wait_for("p", "Ready", "True Ready").await;
    // This pod brings a container that looks like the sidecar, so the webhook leaves it alone. It never opens a
    // session.
    apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: fake, namespace: hang, labels: {app: web}}
spec:
  containers:
  - {name: app, image: 'sluice.local/toolbox:test', args: [serve], ports: [{containerPort: 8080}]}
  - name: sluice-sidecar
    image: 'sluice.local/toolbox:test'
    args: [sleep, 1h, '--proxy=[::]:8790=127.0.0.1:8080']
    volumeMounts: [{name: sluice-identity, mountPath: /identity}]
  volumes: [{name: sluice-identity, emptyDir: {}}]
",
    );
    let message = shop.wait_for("p", "Programmed", "False PodsUnconfirmed").await;
    assert!(
        message.contains("1 of 2 pods")
            && message.contains("fake (its sidecar is not connected to the operator)"),
        "{message}"
    );
    kubectl("-n hang delete pod fake --grace-period=0 --force");
    shop.wait_for("p", "Ready", "True Ready").await;
}

#[tokio::test]
async fn e2e_the_api_server_rejects_an_invalid_policy_with_the_path_of_the_field() {
    install();
    let shop = Shop::open("nonsense");
    let policy = |limits: &str| {
        try_apply(&format!(
            "{{apiVersion: sluice.dev/v1alpha1, kind: RateLimitPolicy, metadata: {{name: p, namespace: {}}}, spec: {{limits: {limits}}}}}",
            shop.namespace
        ))
    };
    for (limits, expected) in [
        (
            "[{name: a, rates: [{requests: 1, per: 9000h}]}]",
            "spec.limits[0].rates[0].per: 9000h is out of range",
        ),
        (
            "[{name: a, rates: [{requests: 1, per: 1m}, {requests: 2, per: 60s}]}]",
            "spec.limits[0].rates[1].per: is the same period as that of rates[0]",
        ),
        ("[{name: a, rates: [{requests: -5, per: 1m}]}]", "spec.limits[0].rates[0].requests"),
        (
            "[{name: a, rates: [{requests: 1, per: 1m}], matches: [{path: {regex: '('}}]}]",
            "spec.limits[0].matches[0].path.regex",
        ),
        (
            "[{name: a, rates: [{requests: 1, per: 1m}], colour: red}]",
            "unknown field \"spec.limits[0].colour\"",
        ),
    ] {
        let (ok, text) = policy(limits);
        assert!(!ok && text.contains(expected), "{limits}: {text}");
    }
    let (ok, text) = policy("[{name: a, rates: [{requests: 9, per: 1m}, {requests: 9, per: 1h}]}]");
    assert!(ok && text.contains("Warning: spec.limits[0].rates[0]: has no effect"), "{text}");
}

/// The namespace lets the operator read what its policy refers to, with the command of the status.
#[tokio::test]
async fn e2e_a_namespace_grants_the_operator_the_objects_of_its_policy() {
    install();
    let shop = Shop::open("overrides");
    shop.deploy("web", 2);
    apply(
        "
apiVersion: v1
kind: ConfigMap
metadata: {name: quotas, namespace: overrides}
data: {clients: 'acme: large'}
---
apiVersion: v1
kind: Secret
metadata: {name: banned, namespace: overrides}
stringData: {clients: 'mallory: deny'}
---
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: p, namespace: overrides}
spec:
  targetRefs: [{kind: Deployment, name: web}]
  limits:
  - name: per-client
    key: {parts: [{header: {name: x-client}}]}
    overridesFrom:
    - {configMapRef: {name: quotas, key: clients}}
    - {secretRef: {name: banned, key: clients}}
    plans: [{name: large, rates: [{requests: 20, per: 24h}]}]
    rates: [{requests: 5, per: 24h}]
",
    );
    let message = shop.wait_for("p", "Ready", "False RefNotPermitted").await;
    // The message's own commands, as a user types them.
    for command in message.split('`').skip(1).step_by(2) {
        let (ok, text) = run("sh", &["-c", command], "");
        assert!(ok, "{command}: {text}");
    }
    shop.wait_for("p", "Ready", "True Ready").await;
    let address = shop.address("web");
    for (client, expected) in [("acme", 20), ("mallory", 0), ("anyone", 5)] {
        let tally = get_many(&address, 30, 1, &[("x-client", client)]).await;
        assert_eq!(tally.count(200), expected, "{client}: {tally:?}");
    }
    kubectl("-n overrides patch configmap quotas --type=merge -p {\"data\":{\"clients\":\"acme:large\"}}");
    let message = shop.wait_for("p", "Ready", "False InvalidContent").await;
    assert!(message.contains("line 1 in `clients` of the ConfigMap quotas has no plan"), "{message}");
    shop.wait_for("p", "Programmed", "True Programmed").await;
    assert_eq!(get(&address, "/", &[("x-client", "mallory")]).await.status, 429);
    println!("{}", kubectl("-n overrides describe ratelimitpolicies.sluice.dev p"));
    let account = format!("--as=system:serviceaccount:{SYSTEM}:sluice-operator");
    for other in ["secret/other", "configmap/other"] {
        let (ok, _) = run("kubectl", &["-n", "overrides", "auth", "can-i", "get", other, &account], "");
        assert!(!ok, "the operator may read {other}");
    }
}
