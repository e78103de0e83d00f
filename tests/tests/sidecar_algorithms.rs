//! Every algorithm and every enforcement from the API server to the response: policies are applied to a real
//! API server, compiled by the operator, and enforced by a sidecar that counts in memory. Exact behaviour is
//! tested elsewhere with a clock that stands still. These tests only tell the algorithms apart. Their periods
//! are so long that a slow machine does not change the responses.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sluice_tests::client::{Response, get};
use sluice_tests::components::{Operator, Sidecar};
use sluice_tests::kubernetes::{ControlPlane, TestNamespace};
use sluice_tests::wait::until;

/// Returns a limit for the path `/NAME`, with a counter for each value of `x-client`.
fn limit(name: &str, rate: Value, more: Value) -> Value {
    let mut limit = json!({
        "name": name,
        "matches": [{"path": {"exact": format!("/{name}")}}],
        "key": {"parts": [{"header": {"name": "x-client"}}]},
        "rates": [rate],
    });
    limit.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    limit
}

fn spec() -> Value {
    let algorithm = |algorithm: Value| json!({"algorithm": algorithm});
    json!({"selector": {"matchLabels": {"app": "a"}}, "limits": [
        limit("sliding", json!({"requests": 3, "per": "1h"}), json!({})),
        limit("slots", json!({"requests": 3, "per": "1h", "subWindows": 60}), json!({})),
        limit(
            "guaranteed",
            json!({"requests": 3, "per": "1h", "subWindows": 60}),
            algorithm(json!({"slidingWindowCounter": {"bound": "Guaranteed"}})),
        ),
        limit("fixed", json!({"requests": 3, "per": "1h"}), algorithm(json!({"fixedWindow": {}}))),
        limit("first", json!({"requests": 3, "per": "1h"}), algorithm(json!({"fixedWindow": {"alignment": "FirstRequest"}}))),
        limit("spread", json!({"requests": 3, "per": "1h"}), algorithm(json!({"fixedWindow": {"alignment": "Spread"}}))),
        limit("log", json!({"requests": 3, "per": "1h"}), algorithm(json!({"slidingWindowLog": {}}))),
        limit("apart", json!({"requests": 3, "per": "1h"}), algorithm(json!({"slidingWindowLog": {"minInterval": "30m"}}))),
        limit(
            "quiet",
            json!({"requests": 3, "per": "1h"}),
            algorithm(json!({"slidingWindowLog": {"minInterval": "30m", "countDenied": true}})),
        ),
        json!({"name": "busy", "matches": [{"path": {"prefix": "/busy"}}],
            "key": {"parts": [{"header": {"name": "x-client"}}]},
            "rates": [{"requests": 3, "per": "1h"}, {"requests": 20, "per": "8784h"}],
            "algorithm": {"slidingWindowCounter": {"countDenied": true}}}),
        limit("tokens", json!({"requests": 2, "per": "1h"}), algorithm(json!({"tokenBucket": {"burst": 5}}))),
        limit(
            "warm",
            json!({"requests": 2, "per": "1h"}),
            algorithm(json!({"tokenBucket": {"warmUp": {"period": "1h"}}})),
        ),
        limit("gcra", json!({"requests": 2, "per": "1h"}), algorithm(json!({"gcra": {}}))),
        limit("leaky", json!({"requests": 4, "per": "1s"}), algorithm(json!({"leakyBucket": {"maxWait": "1h"}}))),
        limit("queue", json!({"requests": 1, "per": "1h"}), algorithm(json!({"leakyBucket": {"maxWait": "1m"}}))),
        limit("soft", json!({"requests": 3, "per": "1h"}), json!({"enforcement": {"soft": {"overPercent": 100, "for": "1h"}}})),
        limit("elastic", json!({"requests": 3, "per": "1h"}), json!({"enforcement": {"elastic": {
            "requests": 5, "utilizationBelowPercent": 100, "capacity": {"inFlight": 1000}}}})),
    ]})
}

struct Stage {
    sidecar: Sidecar,
}

impl Stage {
    async fn get(&self, path: &str, client: &str) -> Response {
        get(&self.sidecar.address, &format!("/{path}"), &[("x-client", client)]).await
    }

    /// Sends requests until one is denied. Returns the number admitted, and the denial.
    async fn flood(&self, path: &str) -> (usize, Response) {
        for admitted in 0..20 {
            let response = self.get(path, "flood").await;
            match response.status {
                200 => {}
                429 => return (admitted, response),
                other => panic!("{path}: {other}\n{response:?}\n{}", self.sidecar.process.output()),
            }
        }
        panic!("{path}: no request is denied");
    }
}

fn number(response: &Response, header: &str) -> u64 {
    response.header(header).unwrap_or_else(|| panic!("no {header}: {response:?}")).parse().unwrap()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

async fn windows(stage: &Stage) {
    for path in ["sliding", "slots", "guaranteed", "fixed", "first", "spread", "log"] {
        let begin = Instant::now();
        let left_before = 3600 - now() % 3600;
        let (admitted, denied) = stage.flood(path).await;
        assert_eq!(admitted, 3, "{path}");
        assert!(denied.head.contains(&format!("ratelimit-policy: \"{path}\";q=3;w=3600")), "{}", denied.head);
        assert!(denied.body.contains(&format!("Limit {path} admits 3 requests per hour")), "{}", denied.body);
        let wait = number(&denied, "retry-after");
        let passed = begin.elapsed().as_secs() + 2;
        let (least, most) = match path {
            // Until the end of the hour, and then until the estimate of the previous hour has fallen by one.
            "sliding" => (left_before - passed, left_before + 3600),
            // Until the estimate of the current sub-window falls, in the minute that follows one hour later.
            "slots" => (3540 - passed, 3660),
            // Until the current sub-window is a whole period old.
            "guaranteed" => (3600 - passed, 3660),
            "fixed" => (left_before - passed, left_before),
            "first" | "log" => (3600 - passed, 3600),
            _ => (1, 3600),
        };
        assert!((least..=most).contains(&wait), "{path}: {wait} is not within {least} to {most}");
    }
    let mut resets = Vec::new();
    for client in ["a", "b", "c", "d", "e"] {
        resets.push(number(&stage.get("spread", client).await, "x-ratelimit-reset") / 60);
    }
    resets.dedup();
    assert!(resets.len() > 1, "each client has its own phase: {resets:?}");
}

async fn logs(stage: &Stage) {
    for path in ["apart", "quiet"] {
        let mut denied = Vec::new();
        assert_eq!(stage.get(path, "flood").await.status, 200);
        for _ in 0..3 {
            let response = stage.get(path, "flood").await;
            assert_eq!(response.status, 429, "{path}");
            // Nothing remains to a request that comes too early, although the rate has room.
            assert_eq!(number(&response, "x-ratelimit-remaining"), 0, "{path}");
            assert!(response.body.contains("at least 30 minutes apart"), "{}", response.body);
            denied.push(number(&response, "retry-after"));
        }
        // With `countDenied` the rate is full after two of them, until the first request leaves its window.
        let longest = if path == "quiet" { 3600 } else { 1800 };
        assert!((1700..=1800).contains(&denied[0]), "{path}: {denied:?}");
        assert!((longest - 100..=longest).contains(&denied[2]), "{path}: {denied:?}");
    }
    for sent in 1..=10 {
        let response = stage.get("busy", "flood").await;
        assert_eq!(response.status, if sent <= 3 { 200 } else { 429 });
        let expected = format!("\"busy/8784h\";r={};", 20 - sent);
        assert!(response.head.contains(&expected), "denied requests count in a window: {}", response.head);
    }
}

async fn buckets(stage: &Stage) {
    for (path, expected, least, most, detail) in [
        ("tokens", 5, 1700, 1800, "admits 2 requests per hour, in bursts of up to 5"),
        // A cold request costs up to three times as much as a warm one.
        ("warm", 1, 3600, 5400, "admits 2 requests per hour, and fewer after an idle time"),
        ("gcra", 1, 1700, 1800, "admits 2 requests per hour, in bursts of up to 1"),
        // The second request would have to wait for an hour, but may wait for a minute only.
        ("queue", 1, 3440, 3540, "forwards 1 request per hour, with a delay of at most 1 minute"),
    ] {
        let (admitted, denied) = stage.flood(path).await;
        assert_eq!(admitted, expected, "{path}");
        let wait = number(&denied, "retry-after");
        assert!((least..=most).contains(&wait), "{path}: {wait} is not within {least} to {most}");
        assert!(denied.body.contains(detail), "{}", denied.body);
    }
    let begin = Instant::now();
    let responses = futures::future::join_all((0..4).map(|_| stage.get("leaky", "a"))).await;
    assert!(responses.iter().all(|response| response.status == 200), "{responses:?}");
    assert!(
        begin.elapsed().as_millis() >= 750,
        "requests leave a quarter of a second apart: {:?}",
        begin.elapsed()
    );
}

async fn enforcement(stage: &Stage) {
    let (admitted, denied) = stage.flood("soft").await;
    assert_eq!(admitted, 6, "3, and 100 % more");
    assert!(denied.body.contains("admits 3 requests per hour, or 6 for 1 hour"), "{}", denied.body);
    let mut clients = 0..;
    until("the sidecar has measured that the pod is idle", async || {
        let client = clients.next()?.to_string();
        (number(&stage.get("elastic", &client).await, "x-ratelimit-limit") == 5).then_some(())
    })
    .await;
    let (admitted, denied) = stage.flood("elastic").await;
    assert_eq!((admitted, number(&denied, "x-ratelimit-limit")), (5, 5));
    let metrics = get(&stage.sidecar.admin, "/metrics", &[]).await.body;
    assert!(metrics.contains("limit=\"elastic\"} 1"), "{metrics}");
    assert!(metrics.contains("sluice_requests_in_flight 0"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_enforces_every_algorithm_and_every_enforcement() {
    let plane = ControlPlane::shared().await;
    let operator = Operator::start(plane, "algorithms-system", "memory:").await;
    let namespace = TestNamespace::create(plane.client().await, "algorithms").await;
    namespace.apply("p", spec()).await.unwrap();
    let pod = namespace.pod("one", true, json!({"app": "a"})).await;
    let stage = Stage { sidecar: Sidecar::start(&namespace, &pod, &operator).await };
    namespace.wait_for("p", "Ready", "True Ready").await;
    until("the next full hour is not near", async || (now() % 3600 < 3420).then_some(())).await;

    windows(&stage).await;
    logs(&stage).await;
    buckets(&stage).await;
    enforcement(&stage).await;

    let status = namespace.api::<sluice_crds::RateLimitPolicy>().get("p").await.unwrap().status.unwrap();
    let limits = status.limits.unwrap_or_default();
    let begin = "sliding 3/1h by header x-client on /sliding, slots 3/1h (60 sub-windows) by header x-client on /slots, guaranteed";
    assert!(limits.starts_with(begin), "{limits}");

    // The schema accepts this policy. The webhook would reject it, but there is none here.
    let bad = json!({"selector": {"matchLabels": {"app": "a"}}, "limits": [
        limit("bad", json!({"requests": 1, "per": "1s", "subWindows": 7}), json!({})),
    ]});
    namespace.apply("bad", bad).await.unwrap();
    let message = namespace.wait_for("bad", "Accepted", "False Invalid").await;
    assert!(
        message.contains("spec.limits[0].rates[0].subWindows: a period of 1000 ms cannot be cut"),
        "{message}"
    );
}
