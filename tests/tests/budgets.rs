//! Budgets of tokens that concurrent requests cannot overspend, and slots of users: real Envoys with the configuration of `examples/`,
//! an API of language models that streams, `sluice serve` and a real Redis. `SLUICE_ENVOY` is the path of Envoy, as
//! bench/tools/install.sh prints it.

mod link;
mod models;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use link::Link;
use models::Models;
use serde_json::{Value, json};
use sluice_tests::client::send;
use sluice_tests::components::Redis;
use sluice_tests::process::{Process, binary, free_port, repository_root};
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const BUDGET: u64 = 10_000;
const RESERVE: u64 = 1_000;

/// An example, and the limit in it that the test looks at.
struct Example {
    policy: &'static str,
    envoy: &'static str,
    name: &'static str,
    limit: &'static str,
    quota: u64,
}

const TOKENS: Example = Example {
    policy: "llm-budgets.yaml",
    envoy: "envoy/llm-budgets.yaml",
    name: "shop/tokens",
    limit: "tokens-per-user",
    quota: BUDGET,
};

const STREAMS: Example = Example {
    policy: "concurrency-service.yaml",
    envoy: "envoy/concurrency.yaml",
    name: "shop/streams",
    limit: "per-user",
    quota: 2,
};

/// `sluice serve` with the policy of the example, whose windows are days so that none ends during a test.
struct Service {
    http: String,
    grpc: u16,
    example: &'static Example,
    admin: String,
    _process: Process,
    _folder: TempDir,
}

fn example(name: &str) -> String {
    let file = repository_root().join("examples").join(name);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

impl Service {
    async fn start(redis: &Redis, of: &'static Example) -> Self {
        // On a busy machine Redis may take longer than users wait. What passes in its place has no reservation.
        Self::with_store(&redis.url, "10s", of).await
    }

    async fn with_store(store: &str, latency_budget: &str, of: &'static Example) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let policy = example(of.policy).replace("per: 1m}]", "per: 24h}]\n    algorithm: {fixedWindow: {}}");
        let file = folder.path().join("policy.yaml");
        std::fs::write(&file, policy).unwrap();
        let [grpc, http, admin] = [(); 3].map(|()| free_port());
        let arguments = [
            "serve".to_owned(),
            format!("--policy={}", file.display()),
            format!("--store={store}"),
            format!("--latency-budget={latency_budget}"),
            format!("--grpc=127.0.0.1:{grpc}"),
            format!("--http=127.0.0.1:{http}"),
            format!("--admin=127.0.0.1:{admin}"),
        ];
        let log = folder.path().join("log");
        let process = Process::start(&binary("sluice"), &arguments, &[], &log, "TERM");
        let address = |port| format!("127.0.0.1:{port}");
        let service = Self {
            http: address(http),
            grpc,
            example: of,
            admin: address(admin),
            _process: process,
            _folder: folder,
        };
        until("the service answers", async || {
            TcpStream::connect(&service.http).await.ok()?;
            let answer = service.try_used("nobody").await?;
            (answer == 0).then_some(())
        })
        .await;
        service
    }

    async fn post(&self, path: &str, body: &Value) -> Option<Value> {
        let response = send(&self.http, post(path, body).as_bytes()).await;
        serde_json::from_str(&response.body).ok()
    }

    /// Returns what is charged to a user; `None` while the store does not answer.
    async fn try_used(&self, user: &str) -> Option<u64> {
        let Example { name, limit, quota, .. } = self.example;
        let peek = json!({"policy": name, "limit": limit, "key": [user], "peek": true});
        let answer = self.post("/v1/check", &peek).await?;
        if answer.get("storeFailure").is_some() {
            return None;
        }
        let left = answer["limits"][0]["remaining"].as_u64()?;
        Some(quota.saturating_sub(left))
    }

    /// Waits until this number of tokens is charged to a user. Reports arrive after the responses.
    async fn until_used(&self, user: &str, tokens: u64) {
        let what = format!("{tokens} tokens are charged to {user}");
        until(&what, async || (self.try_used(user).await? == tokens).then_some(())).await;
    }

    async fn metrics(&self) -> String {
        sluice_tests::client::get(&self.admin, "/metrics", &[]).await.body
    }
}

/// Envoy with the configuration of the example.
struct Envoy {
    process: Process,
    address: String,
    _folder: TempDir,
}

impl Envoy {
    async fn start(models: &Models, service: &Service) -> Self {
        let envoy =
            std::env::var("SLUICE_ENVOY").expect("SLUICE_ENVOY is the path of Envoy: run `make test`");
        let folder = tempfile::tempdir().unwrap();
        let [listen, admin] = [(); 2].map(|()| free_port());
        let mut yaml = example(service.example.envoy);
        // On a busy machine, an answer of Redis may take longer than users wait.
        assert_eq!(yaml.matches("timeout: 0.5s").count(), 1);
        yaml = yaml.replace("timeout: 0.5s", "timeout: 30s");
        for (port, own) in [(9901, admin), (10_000, listen), (8000, models.port), (8081, service.grpc)] {
            let (before, after) = (format!("port_value: {port}}}"), format!("port_value: {own}}}"));
            assert_eq!(yaml.matches(&before).count(), 1, "{before}");
            yaml = yaml.replace(&before, &after);
        }
        let file = folder.path().join("envoy.yaml");
        std::fs::write(&file, yaml).unwrap();
        let file = file.display().to_string();
        let arguments = ["-c", &file, "--use-dynamic-base-id", "--concurrency", "1"].map(str::to_owned);
        let process = Process::start(Path::new(&envoy), &arguments, &[], &folder.path().join("log"), "KILL");
        let address = format!("127.0.0.1:{listen}");
        until("Envoy serves", async || TcpStream::connect(&address).await.ok()).await;
        Self { process, address, _folder: folder }
    }

    /// Sends a request of a user, and reads the head of the response.
    async fn ask(&self, user: &str, body: Value) -> Exchange {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: models\r\nx-user: {user}\r\nx-tenant: acme\r\ncontent-type: application/json\r\n\
             connection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => head.push(byte),
                Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&head)),
            }
        }
        let status = String::from_utf8_lossy(&head)[9..12].parse().unwrap();
        Exchange { status, stream }
    }

    /// Sends a request, and waits for the end of the response.
    async fn complete(&self, user: &str, body: Value) -> u16 {
        self.ask(user, body).await.end().await
    }
}

/// A response whose head has come.
struct Exchange {
    status: u16,
    stream: TcpStream,
}

impl Exchange {
    async fn end(mut self) -> u16 {
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest).await;
        self.status
    }
}

fn post(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn stream(tokens: u64) -> Value {
    json!({"stream": true, "tokens": tokens, "held": true})
}

#[tokio::test(flavor = "multi_thread")]
async fn of_fifty_concurrent_requests_ten_pass_through_two_envoys() {
    let (redis, models) = (Redis::start().await, Models::start().await);
    let service = Service::start(&redis, &TOKENS).await;
    let envoys = [Envoy::start(&models, &service).await, Envoy::start(&models, &service).await];
    let asked = join_all((0..50).map(|n| envoys[n % 2].ask("alice", stream(400)))).await;
    let (passed, denied): (Vec<_>, Vec<_>) = asked.into_iter().partition(|one| one.status == 200);
    assert_eq!((passed.len(), denied.len()), (10, 40));
    assert!(denied.iter().all(|one| one.status == 429));
    assert_eq!(service.try_used("alice").await, Some(BUDGET), "all streams are open");
    models.release();
    for one in passed {
        one.end().await;
    }
    service.until_used("alice", 10 * 400).await;
    // Each of a user and of a tenant.
    for event in ["made", "settled"] {
        let line = format!("sluice_reservations_total{{event=\"{event}\"}} 20");
        until(&line, async || service.metrics().await.contains(&line).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_response_has_used_is_charged_and_what_nobody_reports_costs_the_reserve() {
    let (redis, models) = (Redis::start().await, Models::start().await);
    let service = Service::start(&redis, &TOKENS).await;
    let envoy = Envoy::start(&models, &service).await;
    for (user, body, status, used) in [
        ("json", json!({"tokens": 250}), 200, 250),
        ("none", json!({"tokens": 0}), 200, 0),
        ("stream", json!({"stream": true, "tokens": 321}), 200, 321),
        // A client that asks for no usage is asked for it by Envoy.
        ("asked", json!({"stream": true, "tokens": 17, "stream_options": {"include_usage": false}}), 200, 17),
        ("tools", json!({"stream": true, "tokens": 90, "tools": true}), 200, 90),
        ("silent", json!({"tokens": 5, "end": "nothing"}), 200, RESERVE),
        ("cut", json!({"stream": true, "tokens": 5, "end": "cut"}), 200, RESERVE),
        ("error", json!({"status": 500}), 500, 0),
        ("broken", json!("no object"), 200, 400),
        ("much", json!({"tokens": 50_000}), 200, BUDGET),
        ("absurd", json!({"tokens": 4_000_000_000u64}), 200, RESERVE),
    ] {
        assert_eq!(envoy.complete(user, body).await, status, "{user}");
        service.until_used(user, used).await;
    }
    assert_eq!(envoy.complete("much", json!({"tokens": 1})).await, 429, "its budget is used up");
    // The client leaves in mid-stream.
    let left = envoy.ask("left", stream(5)).await;
    assert_eq!(left.status, 200);
    drop(left);
    // It has gone when the application sees the end of its connection.
    models.until_abandoned(1).await;
    assert_eq!(service.try_used("left").await, Some(RESERVE));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_envoys_and_servers_never_make_more_room() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let models = Models::start().await;
    let service = Service::start(&redis, &TOKENS).await;
    let [mut killed, envoy] = [Envoy::start(&models, &service).await, Envoy::start(&models, &service).await];
    let open = join_all((0..3).map(|_| killed.ask("alice", stream(400)))).await;
    assert!(open.iter().all(|one| one.status == 200));
    killed.process.stop();
    assert_eq!(service.try_used("alice").await, Some(3 * RESERVE));
    // What nobody settles stays charged: seven others fit beside it.
    let asked = join_all((0..20).map(|_| envoy.ask("alice", stream(100)))).await;
    let passed: Vec<_> = asked.into_iter().filter(|one| one.status == 200).collect();
    assert_eq!(passed.len(), 7);
    redis.restart().await;
    until("the service reads the counters again", async || {
        service.try_used("alice").await.filter(|used| *used == BUDGET)
    })
    .await;
    models.release();
    for one in passed {
        one.end().await;
    }
    service.until_used("alice", 3 * RESERVE + 7 * 100).await;
}

/// Asks for a reservation of a user, and settles it. From some answer of the store on they are late: that to the check, or one of those
/// to the settlement. `used` is what it has cost in the end, and `shared` what the share of the process charges without an answer.
async fn answers_of_the_store_are_late(of: &'static Example, used: u64, shared: u64) {
    let redis = Redis::start().await;
    let address = redis.url.trim_start_matches("redis://").trim_end_matches('/').to_owned();
    let link = Link::to(address).await;
    let service = Service::with_store(&format!("redis://127.0.0.1:{}", link.port), "50ms", of).await;
    let check = |user: &str| {
        let Example { name, limit, .. } = of;
        json!({"policy": name, "limit": limit, "key": [user], "reserve": {}})
    };
    let is_heard = async || service.try_used("nobody").await;
    for answers in 0..4 {
        let user = format!("settles-{answers}");
        let reserved = until("a reservation is made", async || {
            let answer = service.post("/v1/check", &check(&user)).await?;
            answer["reservation"]["id"].as_str().map(str::to_owned)
        })
        .await;
        link.hold_after(answers);
        let settlement = json!({"id": reserved, "cost": used});
        let answer = service.post("/v1/settle", &settlement).await.unwrap();
        assert!(answer["settled"] == true || answer["status"] == 503, "{answer}");
        link.release();
        until("the store answers again", is_heard).await;
        service.until_used(&user, used).await;
        // Again nothing happens, whoever was told of the first time.
        until("the settlement is repeated", async || {
            let again = service.post("/v1/settle", &settlement).await?;
            (again["settled"] == false).then_some(())
        })
        .await;
        assert_eq!(service.try_used(&user).await, Some(used));
    }
    for answers in 0..2 {
        let user = format!("asks-{answers}");
        link.hold_after(answers);
        let answer = service.post("/v1/check", &check(&user)).await.unwrap();
        link.release();
        until("the store answers again", is_heard).await;
        // Without an id nobody could settle what was reserved.
        if answer.get("reservation").is_none() {
            assert!(answer.get("storeFailure").is_some(), "{answer}");
            service.until_used(&user, shared).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answers_of_the_store_keep_no_tokens() {
    answers_of_the_store_are_late(&TOKENS, 300, RESERVE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_answers_of_the_store_keep_no_slots() {
    answers_of_the_store_are_late(&STREAMS, 0, 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_has_two_streams_at_a_time_through_two_envoys() {
    let (redis, models) = (Redis::start().await, Models::start().await);
    let service = Service::start(&redis, &STREAMS).await;
    let envoys = [Envoy::start(&models, &service).await, Envoy::start(&models, &service).await];
    // Clients that leave in mid-stream, and come again.
    let open = AtomicUsize::new(0);
    let admitted = AtomicUsize::new(0);
    let client = async |n: usize| {
        for turn in 0..20 {
            let one = envoys[(n + turn) % 2].ask("alice", stream(1)).await;
            if one.status == 200 {
                let others = open.fetch_add(1, Ordering::SeqCst);
                assert!(others < 2, "{} streams are open", others + 1);
                admitted.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                open.fetch_sub(1, Ordering::SeqCst);
            } else {
                assert_eq!(one.status, 429);
            }
        }
    };
    join_all((0..8).map(client)).await;
    service.until_used("alice", 0).await;
    // A slot comes back at the end of a stream too.
    let asked = join_all((0..6).map(|n| envoys[n % 2].ask("alice", stream(1)))).await;
    let (passed, denied): (Vec<_>, Vec<_>) = asked.into_iter().partition(|one| one.status == 200);
    assert_eq!((passed.len(), denied.len()), (2, 4));
    models.release();
    for one in passed {
        one.end().await;
    }
    service.until_used("alice", 0).await;
    let all = admitted.load(Ordering::SeqCst) + 2;
    assert!(all > 2, "each slot was used once only");
    for event in ["made", "settled"] {
        let line = format!("sluice_reservations_total{{event=\"{event}\"}} {all}\n");
        until(&line, async || service.metrics().await.contains(&line).then_some(())).await;
    }
}
