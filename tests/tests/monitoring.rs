//! The dashboards and the alerts of the chart, with a real Prometheus that scrapes a real operator and real sidecars.

use std::collections::BTreeSet;
use std::io::{Seek as _, Write as _};
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use sluice_tests::application;
use sluice_tests::client::{get, send};
use sluice_tests::components::{ControlClient, Operator, Prometheus, Redis, Service, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::metrics_table::rows;
use sluice_tests::process::{Process, binary, free_port, repository_root};
use sluice_tests::wait::until;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const RULES: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: {unit: day, requests_per_unit: 1}
- key: observed
  rate_limit: {unit: day, requests_per_unit: 1}
  shadow_mode: true
";

/// Every kind of limit, so that every metric has a value.
fn policies() -> [(&'static str, Value); 3] {
    let rates = |requests: u32, per: &str| json!([{"requests": requests, "per": per}]);
    let key = json!({"parts": [{"header": {"name": "x-client"}}]});
    let selector = json!({"matchLabels": {"app": "a"}});
    let elastic = json!({"requests": 2_000, "utilizationBelowPercent": 70, "capacity": {"inFlight": 20}});
    let limits = json!([
        {"name": "denies", "key": key, "rates": rates(1, "1h")},
        {"name": "shadow", "rates": rates(1, "1h"), "mode": "Shadow"},
        {"name": "elastic", "key": key, "rates": rates(300, "1m"), "enforcement": {"elastic": elastic}},
        {
            "name": "queues", "matches": [{"headers": [{"name": "x-client", "exact": "queue"}]}],
            "rates": rates(1_000, "1s"), "onLimit": {"queue": {"maxWait": "1s", "maxLength": 10}},
        },
        {"name": "delays", "rates": rates(1_000, "1s"), "algorithm": {"leakyBucket": {"maxWait": "1s"}}},
        {"name": "errors", "rates": rates(1_000, "1s"), "countWhen": {"statusCodes": ["5xx"]}},
        {"name": "users", "key": {"parts": [{"jwtClaim": {"jwt": "main", "claim": "sub"}}]}, "rates": rates(1_000, "1s")},
        {"name": "gold", "when": "request.headers['x-tier'] == 'gold'", "rates": rates(1_000, "1s")},
    ]);
    let concurrency = json!([
        {"name": "slots", "key": key, "max": 100},
        {"name": "adaptive", "adaptive": {"gradient2": {"minimum": 4, "maximum": 400}}},
    ]);
    let of_alice = json!([{"headers": [{"name": "x-client", "exact": "alice"}]}]);
    let priorities = json!([{"name": "alice", "matches": of_alice, "reservePercent": 20}]);
    [
        (
            "kinds",
            json!({
                "selector": selector, "limits": limits, "concurrency": concurrency, "priorities": priorities,
                "jwt": [{"name": "main", "trusted": true}], "clientAddress": {"trustedProxies": ["192.0.2.0/28"]},
            }),
        ),
        (
            "leased",
            json!({"selector": selector, "consistency": "Leased", "limits": [{"name": "all", "rates": rates(60_000, "1m")}]}),
        ),
        (
            "local",
            json!({"selector": selector, "consistency": "Local", "limits": [{"name": "all", "rates": rates(60_000, "1m")}]}),
        ),
    ]
}

/// Returns `scrape_configs` with the labels that the chart's PodMonitors give to targets. (Debian's Prometheus cannot find
/// pods itself.)
fn scrape_configs(
    namespace: &TestNamespace,
    operator: &Operator,
    sidecars: &[(&str, &Sidecar)],
    service: &Service,
    checks: &str,
) -> Value {
    let operator = operator.admin_url.trim_start_matches("http://");
    let sidecars = sidecars.iter().map(|(pod, sidecar)| {
        json!({"targets": [sidecar.admin], "labels": {"namespace": namespace.name, "pod": pod}})
    });
    json!([
        {"job_name": "operator", "static_configs": [{"targets": [operator], "labels": {"namespace": "sluice-system"}}]},
        {"job_name": "sidecars", "static_configs": sidecars.collect::<Vec<_>>()},
        {"job_name": "service", "static_configs": [{
            "targets": [service.at(service.admin), checks], "labels": {"namespace": namespace.name, "pod": "limits-0"},
        }]},
    ])
}

/// Causes the rare events: what is counted appears in the metrics only then.
async fn cause_rare_events(operator: &Operator, sidecar: &Sidecar, without_application: &Sidecar) {
    let webhook = ControlClient::new(&operator.webhook_url, operator.ca_file());
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": []}});
    let review = json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "1", "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "operation": "CREATE", "userInfo": {}, "object": pod, "namespace": "n", "name": "p",
        },
    });
    let request = Request::post("/inject").header("host", "a").header("content-type", "application/json");
    let response = webhook.send(request.body(Full::new(Bytes::from(review.to_string()))).unwrap()).await;
    assert_eq!(response.status(), 200);
    let refused = send(&sidecar.address, b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n").await;
    assert_eq!(refused.status, 400);
    // A repeated header is an error of an expression.
    get(&sidecar.address, "/", &[("x-client", "eve"), ("x-tier", "gold"), ("x-tier", "basic")]).await;
    assert_eq!(get(&without_application.address, "/", &[("x-client", "nobody")]).await.status, 502);
    // A client that does not send its body.
    let mut stream = TcpStream::connect(&sidecar.address).await.unwrap();
    stream.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nab").await.unwrap();
    until("the connection is ended", async || {
        (sidecar.metric("sluice_ended_connections_total{reason=\"body_timeout\"}").await > 0).then_some(())
    })
    .await;
}

/// Returns the queries of all panels, with what Grafana puts in for its variables, and the queries of the variables.
fn dashboard_queries() -> (Vec<String>, Vec<String>) {
    let (mut panels, mut variables) = (Vec::new(), Vec::new());
    let directory = repository_root().join("charts/sluice/dashboards");
    for file in std::fs::read_dir(directory).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "30s");
                let variables = ["$policy", "$namespace", "$domain"];
                panels.push(variables.iter().fold(expression, |text, name| text.replace(name, ".*")));
            }
        }
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            variables.extend(variable["definition"].as_str().map(str::to_owned));
        }
    }
    (panels, variables)
}

/// Returns the names of the metrics in a text.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("sluice_")).map(str::to_owned).collect()
}

/// Lets promtool read metrics, and judge their names and texts.
fn check_with_promtool(metrics: &str) {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(metrics.as_bytes()).unwrap();
    file.rewind().unwrap();
    let check = Command::new("/usr/bin/promtool").args(["check", "metrics"]).stdin(file).output().unwrap();
    let found = [check.stdout, check.stderr].concat();
    assert!(check.status.success() && found.is_empty(), "{}", String::from_utf8_lossy(&found));
}

/// Returns the name of the metric in a row.
fn name(row: &str) -> &str {
    row.split_inclusive('`').nth(1).unwrap_or(row)
}

/// Compares the tables of `docs/metrics.md` with the metrics that exist. `SLUICE_WRITE_DOCS=1` writes them.
async fn compare_with_the_docs(operator: &Operator, sidecars: &[&Sidecar], service: &Service) {
    let read = async |address: &str| get(address.trim_start_matches("http://"), "/metrics", &[]).await.body;
    let of_operator = [read(&operator.admin_url).await];
    let mut of_sidecars = Vec::new();
    for sidecar in sidecars {
        of_sidecars.push(read(&sidecar.admin).await);
    }
    let of_service = read(&service.at(service.admin)).await;
    check_with_promtool(&of_service);
    // Those of decisions and stores are the sidecars', which are described there.
    let of_sidecar = rows(&of_sidecars);
    let of_service = rows(&[of_service]);
    let of_service: String =
        of_service.split_inclusive('\n').filter(|row| !of_sidecar.contains(name(row))).collect();
    for text in of_operator.iter().chain(&of_sidecars) {
        check_with_promtool(text);
    }
    let file = repository_root().join("docs/metrics.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let head = "| metric | type | labels | meaning |\n|---|---|---|---|\n";
    let mut parts = text.split(head);
    let mut expected = parts.next().unwrap().to_owned();
    for rows in [of_sidecar, of_service, rows(&of_operator)] {
        let rest = parts.next().expect("docs/metrics.md has three tables");
        let after = rest.find("\n\n").map_or("", |end| &rest[end + 1..]);
        expected += &[head, &rows, after].concat();
    }
    if std::env::var_os("SLUICE_WRITE_DOCS").is_some() {
        std::fs::write(&file, &expected).unwrap();
    } else if text != expected {
        let wrong: Vec<_> = expected.lines().filter(|line| !text.contains(line)).collect();
        panic!(
            "docs/metrics.md is out of date: run SLUICE_WRITE_DOCS=1 cargo test -p sluice-tests --test integration monitoring::\n{wrong:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_panel_of_the_dashboards_has_data_and_every_alert_uses_metrics_that_exist() {
    let plane = ControlPlane::shared().await;
    let redis = Redis::start().await;
    let operator = Operator::start(plane, "monitoring-system", &redis.url).await;
    let namespace = TestNamespace::create(plane.client().await, "monitoring").await;
    for (name, spec) in policies() {
        namespace.apply(name, spec).await.unwrap();
    }
    let start = async |name: &str, upstream: &str| {
        let pod = namespace.pod(name, true, json!({"app": "a"})).await;
        Sidecar::start_with(&namespace, &pod, &operator, upstream, "KILL", &["--body-timeout=1s"]).await
    };
    let sidecar = start("one", &application::immediate().await).await;
    let without_application = start("two", "127.0.0.1:1").await;
    namespace.wait_for("kinds", "Programmed", "True Programmed").await;
    cause_rare_events(&operator, &sidecar, &without_application).await;
    let service = Service::start(RULES, &redis).await;
    let [grpc, checks, admin_of_checks] = [(); 3].map(|()| format!("127.0.0.1:{}", free_port()));
    let policy = repository_root().join("examples/checks.yaml");
    let arguments = [
        "serve".to_owned(),
        format!("--policy={}", policy.display()),
        format!("--store={}", redis.url),
        format!("--grpc={grpc}"),
        format!("--http={checks}"),
        format!("--admin={admin_of_checks}"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let _of_checks = Process::start(&binary("sluice"), &arguments, &[], &folder.path().join("log"), "TERM");
    let sidecar = Arc::new(sidecar);
    let targets = [("one", &*sidecar), ("two", &without_application)];
    let traffic = tokio::spawn({
        let (sidecar, service) = (sidecar.clone(), service.at(service.http));
        async move {
            loop {
                for domain in ["shop", "unknown", ""] {
                    let keys = ["user", "observed"];
                    let entry = |key| json!({"entries": [{"key": key, "value": "alice"}]});
                    let question = json!({"domain": domain, "descriptors": keys.map(entry)}).to_string();
                    let length = question.len();
                    let head = format!(
                        "POST /json HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
                    );
                    send(&service, (head + &question).as_bytes()).await;
                }
                // A check of a policy that there is not takes time too.
                let check = json!({"policy": "shop/nothing"}).to_string();
                let length = check.len();
                let head = format!(
                    "POST /v1/check HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n\
                     content-length: {length}\r\n\r\n"
                );
                send(&checks, (head + &check).as_bytes()).await;
                let shown =
                    [("x-sluice-method", "GET"), ("x-sluice-target", "/"), ("x-sluice-address", "192.0.2.7")];
                get(&checks, "/v1/auth/nginx/-/-", &shown).await;
                for client in ["alice", "bob", "carol", "queue"] {
                    get(&sidecar.address, "/", &[("x-client", client)]).await;
                }
            }
        }
    });

    let prometheus =
        Prometheus::start(scrape_configs(&namespace, &operator, &targets, &service, &admin_of_checks)).await;
    let (panels, variables) = dashboard_queries();
    assert!(panels.len() > 50 && variables.len() == 5, "{} panels, {variables:?}", panels.len());
    let mut missing = panels;
    until("every panel has data", async || {
        let mut still = Vec::new();
        for query in &missing {
            if prometheus.query(query).await.is_empty() {
                still.push(query.clone());
            }
        }
        if still != missing {
            eprintln!("without data: {still:#?}");
            missing = still;
        }
        missing.is_empty().then_some(())
    })
    .await;
    for variable in variables {
        let variable = variable.replace("$namespace", ".*");
        let (metric, label) = variable.strip_prefix("label_values(").unwrap().split_once(", ").unwrap();
        let grouped = format!("count by ({}) ({metric})", label.trim_end_matches(')'));
        let samples = prometheus.query(&grouped).await;
        assert!(samples.iter().all(|(labels, _)| *labels != json!({})) && !samples.is_empty(), "{samples:?}");
    }
    traffic.abort();

    let known: BTreeSet<String> = prometheus.label_values("__name__").await.into_iter().collect();
    let alerts = std::fs::read_to_string(repository_root().join("charts/sluice/files/alerts.yaml")).unwrap();
    let used = metrics_in(&alerts);
    assert!(used.len() > 10, "{used:?}");
    assert_eq!(
        used.difference(&known).collect::<Vec<_>>(),
        Vec::<&String>::new(),
        "metrics that do not exist"
    );
    compare_with_the_docs(&operator, &[&sidecar, &without_application], &service).await;
    // Every metric that exists has a panel, or a reason to have none.
    let directory = repository_root().join("charts/sluice/dashboards");
    let shown = ["policies.json", "fleet.json", "service.json"]
        .map(|name| std::fs::read_to_string(directory.join(name)).unwrap());
    let shown = metrics_in(&shown.concat());
    let is_part = |name: &str| {
        let whole = name.strip_suffix("_count").or_else(|| name.strip_suffix("_sum"));
        whole.is_some_and(|whole| shown.contains(&format!("{whole}_bucket")))
    };
    let is_shown = |name: &String| shown.contains(name) || is_part(name);
    let not_shown: Vec<_> =
        known.iter().filter(|name| name.starts_with("sluice_") && !is_shown(name)).collect();
    assert_eq!(not_shown, Vec::<&String>::new(), "metrics without a panel");
}
