//! Real Envoys ask the service, in place of envoyproxy/ratelimit: by its environment variables and its files, with counters in a real
//! Redis. `SLUICE_ENVOY` is the path of Envoy, as bench/tools/install.sh prints it.

use std::path::Path;

use futures::future::join_all;
use serde_json::{Value, json};
use sluice_tests::application::immediate;
use sluice_tests::client::{KeepAlive, Response, get, send};
use sluice_tests::collector::{Collector, Span};
use sluice_tests::components::{Redis, Service};
use sluice_tests::process::{Process, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;

const RULES: &str = "
domain: shop
descriptors:
- key: user
  rate_limit: {unit: day, requests_per_unit: 3}
- key: tenant
  rate_limit: {unit: day, requests_per_unit: 2}
- key: cost
  rate_limit: {unit: day, requests_per_unit: 10}
- key: dropped
  rate_limit: {unit: day, requests_per_unit: 20}
- key: bulk
  rate_limit: {unit: day, requests_per_unit: 4}
- key: path
  rate_limit: {unit: day, requests_per_unit: 20}
- key: all
  value: aligned
  rate_limit: {unit: day, requests_per_unit: 1000}
- key: all
  value: outage
  rate_limit: {unit: day, requests_per_unit: 100}
";

/// The tracing of Envoy, for the listener with routes.
const TRACING: &str = "{provider: {name: envoy.tracers.opentelemetry, typed_config: {\
    \"@type\": type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig, service_name: envoy, \
    http_service: {http_uri: {uri: \"http://127.0.0.1:@COLLECTOR@/v1/traces\", cluster: collector, timeout: 5s}}}}}";

/// Envoy as a process.
struct Envoy {
    _process: Process,
    _folder: TempDir,
    /// Address of the listener with limits in its routes.
    routes: String,
    /// Address of the listener with limits in the filter.
    filter: String,
    admin: String,
}

impl Envoy {
    async fn start(application: &str, service: u16) -> Self {
        Self::start_traced(application, service, None).await
    }

    /// Starts an Envoy that sends its own spans to a collector at this port.
    async fn start_traced(application: &str, service: u16, collector: Option<u16>) -> Self {
        let tracing = collector.map_or("{}", |_| TRACING);
        let envoy =
            std::env::var("SLUICE_ENVOY").expect("SLUICE_ENVOY is the path of Envoy: run `make test`");
        let folder = tempfile::tempdir().unwrap();
        let [routes, filter, admin] = [(); 3].map(|()| free_port());
        let (_, application) = application.rsplit_once(':').unwrap();
        let yaml = include_str!("service/envoy.yaml")
            .replace("@TRACING@", tracing)
            .replace("@COLLECTOR@", &collector.unwrap_or(1).to_string())
            .replace("@LISTEN@", &routes.to_string())
            .replace("@FILTER@", &filter.to_string())
            .replace("@ADMIN@", &admin.to_string())
            .replace("@APPLICATION@", application)
            .replace("@SERVICE@", &service.to_string());
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, yaml).unwrap();
        let config = file.display().to_string();
        let arguments = ["-c", &config, "--use-dynamic-base-id", "--concurrency", "1"].map(str::to_owned);
        let process = Process::start(Path::new(&envoy), &arguments, &[], &folder.path().join("log"), "KILL");
        let address = |port| format!("127.0.0.1:{port}");
        let envoy = Self {
            _process: process,
            _folder: folder,
            routes: address(routes),
            filter: address(filter),
            admin: address(admin),
        };
        until("Envoy is ready", async || {
            tokio::net::TcpStream::connect(&envoy.routes).await.ok()?;
            tokio::net::TcpStream::connect(&envoy.admin).await.ok()?;
            (get(&envoy.admin, "/ready", &[]).await.status == 200).then_some(())
        })
        .await;
        envoy
    }

    /// Returns a statistic of the limits of the application's routes.
    async fn statistic(&self, name: &str) -> u64 {
        let name = format!("cluster.application.ratelimit.{name}: ");
        let text = get(&self.admin, "/stats?filter=ratelimit", &[]).await.body;
        text.lines().find_map(|line| line.strip_prefix(&*name)?.parse().ok()).unwrap_or(0)
    }
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.header(name).unwrap_or("")
}

#[tokio::test(flavor = "multi_thread")]
async fn each_way_of_envoy_to_ask_is_answered() {
    let (redis, application) = (Redis::start().await, immediate().await);
    let service = Service::start(RULES, &redis).await;
    let envoy = Envoy::start(&application, service.grpc).await;
    let alice = [("x-user", "alice")];
    for left in ["2", "1", "0"] {
        let response = get(&envoy.routes, "/user", &alice).await;
        assert_eq!((response.status, header(&response, "x-ratelimit-remaining")), (200, left));
        assert_eq!(header(&response, "x-ratelimit-limit"), "3, 3;w=86400");
    }
    let denied = get(&envoy.routes, "/user", &alice).await;
    assert_eq!((denied.status, header(&denied, "x-ratelimit-remaining")), (429, "0"));
    let reset: u64 = header(&denied, "x-ratelimit-reset").parse().unwrap();
    assert!((1..=86_400).contains(&reset), "{reset}");
    assert_eq!(get(&envoy.routes, "/user", &[("x-user", "bob")]).await.status, 200);

    // Limits of the filter itself.
    let acme = [("x-tenant", "acme")];
    let mut filtered = Vec::new();
    for _ in 0..3 {
        filtered.push(get(&envoy.filter, "/", &acme).await.status);
    }
    assert_eq!(filtered, [200, 200, 429]);

    // Bytes that are no UTF-8 reach the service as they are.
    let request = b"GET /user HTTP/1.1\r\nhost: a\r\nx-user: caf\xe9\xff\r\nconnection: close\r\n\r\n";
    let mut broken = Vec::new();
    for _ in 0..4 {
        // The application of this test does not understand them.
        broken.push(send(&envoy.routes, request).await.status == 429);
    }
    assert_eq!(broken, [false, false, false, true]);

    // A look when the request begins, and four hits when its stream is done: 4, 8, 12 of 10.
    let carol = [("x-user", "carol")];
    for admitted in 1..=3_u64 {
        assert_eq!(get(&envoy.routes, "/cost", &carol).await.status, 200);
        until("the hits are reported", async || {
            let metrics = get(&format!("127.0.0.1:{}", service.admin), "/metrics", &[]).await.body;
            let admitted_line =
                "sluice_decisions_total{policy_namespace=\"@rls\",policy=\"shop\",limit=\"cost\",outcome=\"admitted\"} ";
            let counted: Option<u64> =
                metrics.lines().find_map(|line| line.strip_prefix(admitted_line)?.parse().ok());
            // The look and the report of each request, of which the last report is over the limit.
            let expected = if admitted == 3 { 5 } else { 2 * admitted };
            (counted == Some(expected)).then_some(())
        })
        .await;
    }
    until("the budget is used up", async || {
        (get(&envoy.routes, "/cost", &carol).await.status == 429).then_some(())
    })
    .await;
    assert_eq!(envoy.statistic("error").await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_has_a_span_below_that_of_envoys_call() {
    let port = free_port();
    let collector = Collector::start(port).await;
    let (redis, application) = (Redis::start().await, immediate().await);
    let endpoint = format!("http://127.0.0.1:{port}");
    let variables = [
        ("TRACING_ENABLED", "true".to_owned()),
        ("TRACING_SAMPLING_RATE", "0".to_owned()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
    ];
    let service = Service::start_with(RULES, &redis, &variables).await;
    let envoy = Envoy::start_traced(&application, service.grpc, Some(port)).await;
    for (number, (status, decision)) in
        [(200, "admitted"), (200, "admitted"), (200, "admitted"), (429, "denied")].into_iter().enumerate()
    {
        let trace = format!("4bf92f3577b34da6a3ce929d{number:08x}");
        let parent = format!("00-{trace}-00f067aa0ba902b7-01");
        let headers = [("x-user", "alice"), ("traceparent", &parent)];
        assert_eq!(get(&envoy.routes, "/user", &headers).await.status, status);
        let spans = until("the spans of both", async || {
            let spans = collector.spans_of(&trace);
            let of = |program: &str| {
                let is_of =
                    |span: &&Span| span.resource.get("service.name").is_some_and(|name| name == program);
                spans.iter().filter(is_of).cloned().collect::<Vec<_>>()
            };
            let (envoys, own) = (of("Str(envoy)"), of("Str(RateLimit)"));
            (!envoys.is_empty() && !own.is_empty()).then_some((envoys, own))
        })
        .await;
        let (envoys, own) = spans;
        let [check] = &own[..] else { panic!("{own:?}") };
        assert_eq!(check.field("Kind"), "Server");
        assert_eq!(check.field("Name"), "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
        let parent = envoys.iter().find(|span| span.field("ID") == check.field("Parent ID"));
        assert!(parent.is_some(), "{check:?} {envoys:?}");
        for (name, value) in [
            ("rpc.system", "Str(grpc)".to_owned()),
            ("rpc.method", "Str(ShouldRateLimit)".to_owned()),
            ("rpc.grpc.status_code", "Int(0)".to_owned()),
            ("sluice.domain", "Str(shop)".to_owned()),
            ("sluice.decision", format!("Str({decision})")),
        ] {
            assert_eq!(check.attribute(name), Some(&*value), "{name}");
        }
    }
    // Envoy copies this header into its call, whose head the service must accept: the request would pass otherwise.
    let state = format!("a={}", "x".repeat(40_000));
    let parent = "00-4bf92f3577b34da6a3ce929d000000ff-00f067aa0ba902b7-01";
    let headers = [("x-user", "alice"), ("traceparent", parent), ("tracestate", &state)];
    assert_eq!(get(&envoy.routes, "/user", &headers).await.status, 429);
    assert_eq!(envoy.statistic("error").await, 0);
    assert!(!collector.spans().iter().any(|span| format!("{:?}", span.attributes).contains("alice")));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_envoy_makes_of_hits() {
    let (redis, application) = (Redis::start().await, immediate().await);
    let service = Service::start(RULES, &redis).await;
    let envoy = Envoy::start(&application, service.grpc).await;
    let left = async |key: &str, value: &str| {
        ask(&service, vec![descriptor(key, value, &json!({"hitsAddend": 0}))]).await[0]
    };
    // In the limits of a route they mean nothing, in those of the filter they are charged.
    assert_eq!(get(&envoy.routes, "/dropped", &[("x-user", "alice")]).await.status, 200);
    assert_eq!(left("dropped", "alice").await, 19);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(get(&envoy.filter, "/", &[("x-bulk", "acme")]).await.status);
    }
    assert_eq!(statuses, [200, 200, 429]);

    // A report at the stream's end has the path that was forwarded, and not the one that was asked about.
    assert_eq!(get(&envoy.routes, "/rewritten", &[]).await.status, 200);
    until("the report has come", async || (left("path", "/other").await == 17).then_some(())).await;
    assert_eq!(left("path", "/rewritten").await, 19);

    // A report is sent after a denial, too: it is charged above the limit.
    for _ in 0..3 {
        get(&envoy.routes, "/cost", &[("x-user", "erin")]).await;
    }
    until("the budget is used up", async || (left("cost", "erin").await == -1).then_some(())).await;
    let denied = async || {
        let metrics = get(&service.at(service.admin), "/metrics", &[]).await.body;
        let line = "sluice_decisions_total{policy_namespace=\"@rls\",policy=\"shop\",limit=\"cost\",outcome=\"denied\"} ";
        metrics.lines().find_map(|text| text.strip_prefix(line)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = denied().await;
    assert_eq!(get(&envoy.routes, "/cost", &[("x-user", "erin")]).await.status, 429);
    until("look and report were denied", async || (denied().await == before + 2).then_some(())).await;
}

/// Asks a question in JSON. Returns what remains of the limit of each descriptor; -1 for one that is over it.
async fn ask(service: &Service, descriptors: Vec<Value>) -> Vec<i64> {
    let question = json!({"domain": "shop", "descriptors": descriptors}).to_string();
    // Without a deadline, 15 ms are left for Redis, which is not enough on a busy machine.
    let head = "POST /json HTTP/1.1\r\nhost: a\r\nconnection: close\r\ngrpc-timeout: 10S\r\ncontent-length:";
    let request = format!("{head} {}\r\n\r\n{question}", question.len());
    let answer = send(&service.at(service.http), request.as_bytes()).await.body;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let statuses = answer["statuses"].as_array().unwrap().iter();
    let remaining = statuses.map(|status| match status["code"].as_str() {
        Some("OK") => status["limitRemaining"].as_i64().unwrap_or(0),
        _ => -1,
    });
    remaining.collect()
}

fn descriptor(key: &str, value: &str, more: &Value) -> Value {
    let mut descriptor = json!({"entries": [{"key": key, "value": value}]});
    descriptor.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    descriptor
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_are_given_back_in_redis_and_what_was_not_charged_is_not() {
    let redis = Redis::start().await;
    let service = Service::start(RULES, &redis).await;
    let cost = |hits: i64, gives_back: bool| {
        vec![descriptor("cost", "c", &json!({"hitsAddend": hits, "isNegativeHits": gives_back}))]
    };
    for (hits, gives_back, left) in
        [(4, false, 6), (8, false, -1), (3, true, 1), (0, false, 1), (100, true, 10), (1, false, 9)]
    {
        assert_eq!(ask(&service, cost(hits, gives_back)).await, [left], "{hits} {gives_back}");
    }

    // More counters than a check has. The first one denies, so none is charged, and none is given back.
    let none = json!({});
    let tenant = || descriptor("tenant", "t", &none);
    assert_eq!(ask(&service, vec![tenant()]).await, [1]);
    for _ in 0..3 {
        ask(&service, vec![descriptor("user", "u0", &none)]).await;
    }
    let mut many: Vec<_> = (0..70).map(|n| descriptor("user", &format!("u{n}"), &none)).collect();
    many.push(tenant());
    for _ in 0..3 {
        let left = ask(&service, many.clone()).await;
        assert_eq!((left[0], left[1], left[70]), (-1, 3, 1));
    }
    assert_eq!(ask(&service, vec![tenant()]).await, [0]);

    // The last one denies: those before it are given back.
    assert_eq!(ask(&service, many.split_off(1)).await.last(), Some(&-1));
    until("all are given back", async || {
        let look = descriptor("user", "u1", &json!({"hitsAddend": 0}));
        (ask(&service, vec![look]).await == [3]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_envoys_with_many_connections_admit_the_limit_exactly() {
    let (redis, application) = (Redis::start().await, immediate().await);
    let (one, two) = (Service::start(RULES, &redis).await, Service::start(RULES, &redis).await);
    let envoys = [Envoy::start(&application, one.grpc).await, Envoy::start(&application, two.grpc).await];
    let connections = (0..64).map(|n| {
        let mut connection = KeepAlive::at(&envoys[n % 2].routes, "/aligned");
        async move {
            let mut admitted = 0;
            for _ in 0..40 {
                admitted += u32::from(connection.get().await == 200);
            }
            admitted
        }
    });
    assert_eq!(join_all(connections).await.into_iter().sum::<u32>(), 1000);
    for envoy in &envoys {
        assert_eq!(envoy.statistic("error").await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_envoy_has_answers_and_an_edit_is_taken_over() {
    let application = immediate().await;
    let mut redis = Some(Redis::start().await);
    let service = Service::start(RULES, redis.as_ref().unwrap()).await;
    let envoy = Envoy::start(&application, service.grpc).await;
    assert_eq!(get(&envoy.routes, "/user", &[("x-user", "dave")]).await.status, 200);
    drop(redis.take());
    // The local quota knows what was used: two of three are left.
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(get(&envoy.routes, "/user", &[("x-user", "dave")]).await.status);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(envoy.statistic("error").await, 0);

    // An edit, in the way in which Kubernetes replaces the files of a ConfigMap.
    let config = service.folder.path().join("config");
    let new = config.join("..2026");
    std::fs::create_dir(&new).unwrap();
    std::fs::write(new.join("shop.yaml"), RULES.replace("requests_per_unit: 3", "requests_per_unit: 5"))
        .unwrap();
    std::os::unix::fs::symlink("..2026/shop.yaml", config.join("link")).unwrap();
    std::fs::rename(config.join("link"), config.join("shop.yaml")).unwrap();
    until("the edit is in force", async || {
        (get(&envoy.routes, "/user", &[("x-user", "dave")]).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(get(&format!("127.0.0.1:{}", service.http), "/healthcheck", &[]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_ends_answers_what_it_was_asked() {
    let (redis, application) = (Redis::start().await, immediate().await);
    let mut service = Service::start(RULES, &redis).await;
    let envoy = Envoy::start(&application, service.grpc).await;
    let mut connection = KeepAlive::at(&envoy.routes, "/aligned");
    let grpc = service.grpc;
    let ending = tokio::task::spawn_blocking(move || {
        let code = service.process.stop();
        (code, service.process.output())
    });
    // While it drains, all requests are answered and counted.
    let mut asked = 0;
    while !ending.is_finished() && envoy.statistic("error").await == 0 {
        assert!(matches!(connection.get().await, 200 | 429));
        asked += 1;
    }
    let port = ("127.0.0.1", grpc);
    assert!(tokio::net::TcpStream::connect(port).await.is_err(), "an error while connections were accepted");
    let (code, log) = ending.await.unwrap();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("drained") && asked > 10, "{asked} {log}");
}
