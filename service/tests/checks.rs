//! Checks of applications, reservations and their settlement, over HTTP and over the protocol of gateways.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by a panic")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use sluice_config::PreparedPolicy;
use sluice_config::prepared::Blobs;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_service::messages::{Entry, RateLimitDescriptor, RateLimitResponse};
use sluice_service::{Options, Service};
use sluice_store::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{Caller, NOON, of, question};

const POLICIES: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: checkout, namespace: shop}
spec:
  enforcedBy: [Service]
  limits:
  - name: per-customer
    matches: [{path: {prefix: /orders}}]
    rates: [{requests: 5, per: 1h}]
    algorithm: {fixedWindow: {}}
    key: {parts: [{header: {name: x-customer}}]}
  - name: everyone
    matches: [{path: {prefix: /orders}}]
    rates: [{requests: 7, per: 1h}]
    algorithm: {fixedWindow: {}}
  - name: watched
    mode: Shadow
    matches: [{path: {exact: /watched}}]
    rates: [{requests: 1, per: 1h}]
    algorithm: {fixedWindow: {}}
  - name: spiky
    rates: [{requests: 10, per: 1m}]
    algorithm: {tokenBucket: {burst: 3}}
    key: {parts: [{clientIP: {}}, {host: {}}]}
    matches: [{path: {exact: /spiky}}]
---
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: llm, namespace: shop}
spec:
  enforcedBy: [Service]
  limits:
  - name: per-user
    matches: [{rls: {domain: shop, entries: [{key: user}]}}]
    rates: [{requests: 10000, per: 1h}]
    algorithm: {fixedWindow: {}}
    cost: {response: {reserve: 1000, reported: {}}}
    key: {parts: [{descriptor: {key: user}}]}
  - name: tenant
    matches: [{rls: {domain: shop, entries: [{key: tenant}]}}]
    rates: [{requests: 12000, per: 1h}]
    algorithm: {fixedWindow: {}}
    cost: {response: {reserve: 1000, reported: {}}}
    key: {parts: [{descriptor: {key: tenant}}]}
  concurrency:
  - name: streams
    max: 2
    abandonedFor: 1m
    matches: [{rls: {domain: shop, entries: [{key: stream}]}}]
    key: {parts: [{descriptor: {key: stream}}]}
---
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: single, namespace: other}
spec:
  enforcedBy: [Service]
  limits:
  - name: all
    rates: [{requests: 2, per: 1h}]
    algorithm: {fixedWindow: {}}
";

/// A service with these policies.
struct Running {
    service: Service,
    clock: Clock,
}

fn prepared() -> Vec<(String, Arc<PreparedPolicy>)> {
    let loaded = sluice_crds::manifest::load(POLICIES, &sluice_crds::Installation::default()).unwrap();
    let prepare = |policy: sluice_crds::manifest::LoadedPolicy| {
        let prepared = PreparedPolicy::with_blobs(&policy.compiled.to_json(), &Blobs::default()).unwrap();
        (format!("{}/{}", policy.namespace, policy.name), Arc::new(prepared))
    };
    loaded.policies.into_iter().map(prepare).collect()
}

impl Running {
    async fn start(change: impl FnOnce(&mut Options)) -> Self {
        let clock = Clock::manual(0);
        clock.advance_micros(NOON);
        let mut options = Options::new("127.0.0.1:0".parse().unwrap());
        options.checks = Some("127.0.0.1:0".parse().unwrap());
        options.is_of_one_user = true;
        options.clock = clock.clone();
        change(&mut options);
        let service = Service::start(options).await.unwrap();
        let nacked =
            service.publication(StoreChoices::only(StoreChoice::Memory)).publish_policies(&prepared());
        assert!(nacked.is_empty(), "{nacked:?}");
        Self { service, clock }
    }

    fn address(&self) -> SocketAddr {
        self.service.checks().unwrap()
    }

    /// Sends a body, and returns the status and the body of the answer.
    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, body) = send(self.address(), path, &body.to_string(), "application/json").await;
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{body}: {error}")))
    }

    async fn check(&self, body: Value) -> Value {
        let (status, answer) = self.post("/v1/check", &body).await;
        assert_eq!(status, 200, "{body}: {answer}");
        answer
    }

    /// Returns status and field of the problem with a body.
    async fn problem(&self, path: &str, body: Value) -> (u16, String) {
        let (status, answer) = self.post(path, &body).await;
        assert!(answer["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{answer}");
        assert_eq!(
            (answer["status"].as_u64(), answer["type"].as_str()),
            (Some(status.into()), Some("about:blank"))
        );
        (status, answer["field"].as_str().unwrap_or("-").to_owned())
    }

    async fn settle(&self, id: &str, cost: Option<u64>) -> bool {
        let mut body = json!({"id": id});
        cost.into_iter().for_each(|cost| body["cost"] = cost.into());
        let (status, answer) = self.post("/v1/settle", &body).await;
        assert_eq!(status, 200, "{answer}");
        answer["settled"].as_bool().unwrap()
    }

    /// Returns what is left of a limit.
    async fn left(&self, policy: &str, limit: &str, key: &[&str]) -> u64 {
        let peek = json!({"policy": policy, "limit": limit, "key": key, "peek": true});
        self.check(peek).await["limits"][0]["remaining"].as_u64().unwrap()
    }
}

/// Sends a request, and returns status, head and body of the answer.
async fn send(address: SocketAddr, target: &str, body: &str, content_type: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head[9..12].parse().unwrap(), head.to_owned(), body.to_owned())
}

fn customer(key: &str, cost: u64) -> Value {
    json!({"policy": "shop/checkout", "limit": "per-customer", "key": [key], "cost": cost})
}

fn id(answer: &Value) -> String {
    answer["reservation"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn n_is_n_and_a_denial_is_an_answer() {
    let running = Running::start(|_| {}).await;
    for left in [4, 3, 2] {
        let answer = running.check(customer("alice", 1)).await;
        assert_eq!((&answer["allowed"], &answer["limits"][0]["remaining"]), (&json!(true), &json!(left)));
    }
    // What does not fit charges nothing, and what does fit is charged.
    let denied = running.check(customer("alice", 3)).await;
    let limit = json!({
        "policy": "shop/checkout", "limit": "per-customer", "allowed": false, "quota": 5, "periodSeconds": 3600.0,
        "remaining": 2, "resetSeconds": 1770, "retryAfterSeconds": 1770
    });
    assert_eq!(denied, json!({"allowed": false, "limits": [limit]}));
    assert_eq!(running.check(customer("alice", 2)).await["allowed"], true);
    assert_eq!(running.check(customer("alice", 0)).await["allowed"], false, "a cost of 0 needs 1");
    assert_eq!(running.check(customer("bob", 0)).await["limits"][0]["remaining"], 5);
    let never = running.check(customer("bob", 6)).await;
    let limit = &never["limits"][0];
    assert_eq!((limit.get("retryAfterSeconds"), &limit["neverFits"]), (None, &json!(true)), "{never}");
    let (status, head, _) = send(
        running.address(),
        "/v1/check?status=429",
        &customer("alice", 1).to_string(),
        "application/json",
    )
    .await;
    assert!(status == 429 && head.to_ascii_lowercase().contains("retry-after: 1770"), "{head}");
    running.clock.advance_micros(1_770_000_000);
    assert_eq!(running.check(customer("alice", 5)).await["allowed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_limits_of_a_check_are_charged_together_and_many_checks_are_answered_each_for_itself() {
    let running = Running::start(|_| {}).await;
    let both = |key: &str, cost: u64| {
        json!({
            "policy": "shop/checkout", "cost": cost,
            "limits": [{"limit": "per-customer", "key": [key]}, {"limit": "everyone"}]
        })
    };
    assert_eq!(running.check(both("alice", 5)).await["allowed"], true);
    let denied = running.check(both("bob", 3)).await;
    assert_eq!(
        (&denied["limits"][0]["allowed"], &denied["limits"][1]["allowed"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(running.left("shop/checkout", "per-customer", &["bob"]).await, 5, "nothing was charged");
    let many = running
        .check(json!({"checks": [both("bob", 1), both("alice", 1), both("carol", 1), both("dan", 1)]}))
        .await;
    let allowed: Vec<_> =
        many["results"].as_array().unwrap().iter().map(|one| one["allowed"].clone()).collect();
    assert_eq!(allowed, [true, false, true, false].map(Value::from));
    // One that is wrong is told, and none is charged.
    let wrong =
        json!({"checks": [customer("erin", 1), {"policy": "shop/checkout", "limit": "per-customer"}]});
    assert_eq!(running.problem("/v1/check", wrong).await, (422, "/checks/1/key".to_owned()));
    assert_eq!(running.left("shop/checkout", "per-customer", &["erin"]).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_checked_as_a_proxy_would_see_it_and_shares_the_counters_of_names() {
    let running = Running::start(|_| {}).await;
    let request = |url: &str, headers: Value| json!({"request": {"url": url, "headers": headers, "clientAddress": "192.0.2.7"}});
    let answer =
        running.check(request("https://shop.example/orders/7", json!({"X-Customer": "alice"}))).await;
    let names: Vec<_> = answer["limits"].as_array().unwrap().iter().map(|one| one["limit"].clone()).collect();
    assert_eq!(names, ["per-customer", "everyone", "all"]);
    assert_eq!(running.left("shop/checkout", "per-customer", &["alice"]).await, 4);
    let of_policy = |url: &str, policy: &str| json!({"request": {"url": url}, "policy": policy});
    assert_eq!(
        running.check(of_policy("/nothing", "shop/checkout")).await,
        json!({"allowed": true, "limits": []})
    );
    for (shadow, left) in [(None, 0), (Some(true), 0)] {
        let answer = running.check(of_policy("/watched", "shop/checkout")).await;
        let limit = &answer["limits"][0];
        assert_eq!(
            (&answer["allowed"], limit.get("shadowDenied").and_then(Value::as_bool)),
            (&json!(true), shadow)
        );
        assert_eq!(limit["remaining"], left, "{answer}");
    }
    let spiky = |port: &str| json!({"request": {"method": "POST", "url": format!("http://Shop.example{port}/spiky"), "clientAddress": "192.0.2.7"}, "namespace": "shop"});
    for port in ["", ":80", ":8443"] {
        assert_eq!(running.check(spiky(port)).await["allowed"], true);
    }
    assert_eq!(running.check(spiky("")).await["allowed"], false);
    let named = json!({"policy": "shop/checkout", "limit": "spiky", "key": ["192.0.2.7", "SHOP.example:9"]});
    assert_eq!(running.check(named).await["allowed"], false, "the same client under names");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reservation_is_settled_once_and_what_nobody_settles_stays_charged() {
    let running = Running::start(|_| {}).await;
    let reserve = |user: &str, cost: u64| json!({"policy": "shop/llm", "limit": "per-user", "key": [user], "cost": cost, "reserve": {"expiresAfterSeconds": 600}});
    let first = running.check(reserve("alice", 4000)).await;
    assert_eq!(first["reservation"]["expiresInSeconds"], 600);
    let second = running.check(reserve("alice", 6000)).await;
    assert_eq!(running.check(reserve("alice", 1)).await["allowed"], false);
    assert!(running.settle(&id(&first), Some(400)).await);
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 3600);
    assert!(!running.settle(&id(&first), Some(0)).await, "it was settled before");
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 3600);
    // More than was reserved is charged, even if there is no room.
    assert!(running.settle(&id(&second), Some(20_000)).await);
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 0);
    let third = running.check(reserve("bob", 10_000)).await;
    running.clock.advance_micros(600_000_000);
    assert!(!running.settle(&id(&third), Some(0)).await, "it has expired");
    assert_eq!(running.left("shop/llm", "per-user", &["bob"]).await, 0, "its charge stays");
    let both = json!({
        "policy": "shop/llm", "cost": 2000, "reserve": {},
        "limits": [{"limit": "per-user", "key": ["carol"]}, {"limit": "tenant", "key": ["acme"]}]
    });
    let fourth = running.check(both).await;
    assert!(running.settle(&id(&fourth), Some(500)).await);
    assert_eq!(running.left("shop/llm", "per-user", &["carol"]).await, 9500);
    assert_eq!(running.left("shop/llm", "tenant", &["acme"]).await, 11_500);
    // Without a cost, what the policy says is reserved; and what was reserved stays.
    let by_policy = running
        .check(json!({"policy": "shop/llm", "limit": "per-user", "key": ["eve"], "reserve": {}}))
        .await;
    assert_eq!(by_policy["limits"][0]["remaining"], 9000);
    let fifth = running.check(reserve("dan", 300)).await;
    assert!(running.settle(&id(&fifth), None).await);
    assert_eq!(running.left("shop/llm", "per-user", &["dan"]).await, 9700);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_check_reserves_nothing() {
    let running = Running::start(|_| {}).await;
    let both = json!({
        "policy": "shop/llm", "reserve": {},
        "limits": [{"limit": "per-user", "key": ["alice"], "cost": 9000}, {"limit": "tenant", "key": ["acme"], "cost": 13_000}]
    });
    let denied = running.check(both).await;
    assert_eq!((&denied["allowed"], denied.get("reservation")), (&json!(false), None));
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 10_000);
    assert_eq!(running.left("shop/llm", "tenant", &["acme"]).await, 12_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_is_held_by_its_id_until_it_is_given_back_or_abandoned() {
    let running = Running::start(|_| {}).await;
    let slot = json!({"policy": "shop/llm", "limit": "streams", "key": ["alice"], "reserve": {}});
    let [first, second] = [running.check(slot.clone()).await, running.check(slot.clone()).await];
    assert_eq!(
        (&second["limits"][0]["remaining"], &first["reservation"]["expiresInSeconds"]),
        (&json!(0), &json!(60))
    );
    assert_eq!(running.check(slot.clone()).await["allowed"], false);
    assert!(running.settle(&id(&first), None).await);
    let third = running.check(slot.clone()).await;
    assert_eq!(third["allowed"], true);
    // A slot that was given back is not given back again.
    assert!(!running.settle(&id(&first), None).await);
    assert_eq!(running.check(slot.clone()).await["allowed"], false);
    running.clock.advance_micros(60_000_000);
    assert_eq!(running.left("shop/llm", "streams", &["alice"]).await, 2, "both are abandoned");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_checks_never_reserve_more_than_there_is() {
    let running = Arc::new(Running::start(|options| options.workers = 2).await);
    let reserve =
        json!({"policy": "shop/llm", "limit": "per-user", "key": ["all"], "cost": 1000, "reserve": {}});
    let all = (0..50).map(|_| {
        let (running, reserve) = (running.clone(), reserve.clone());
        tokio::spawn(async move { running.check(reserve).await })
    });
    let answers = futures::future::join_all(all).await;
    let ids: Vec<_> =
        answers.iter().filter_map(|one| one.as_ref().unwrap()["reservation"]["id"].as_str()).collect();
    assert_eq!(ids.len(), 10);
    // Each is settled several times at once, and counts once.
    let settled = ids.iter().flat_map(|id| [id, id, id]).map(|id| running.settle(id, Some(100)));
    let settled = futures::future::join_all(settled).await;
    assert_eq!(settled.iter().filter(|settled| **settled).count(), 10);
    assert_eq!(running.left("shop/llm", "per-user", &["all"]).await, 9000);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_logins_are_counted_by_check_and_settle() {
    let running = Arc::new(Running::start(|options| options.workers = 2).await);
    let attempt = |_: usize| {
        let running = running.clone();
        async move {
            let reserve = json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["mallory"], "reserve": {}});
            let answer = running.check(reserve).await;
            if answer["allowed"] == false {
                return false;
            }
            // The password is wrong: it counts.
            running.settle(&id(&answer), Some(1)).await
        }
    };
    let tried = futures::future::join_all((0..16).map(attempt)).await;
    assert_eq!(tried.iter().filter(|tried| **tried).count(), 5);
    assert_eq!(running.left("shop/checkout", "per-customer", &["mallory"]).await, 0);
    // One that is right gives its place back.
    let reserve =
        json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["alice"], "reserve": {}});
    let right = running.check(reserve).await;
    assert!(running.settle(&id(&right), Some(0)).await);
    assert_eq!(running.left("shop/checkout", "per-customer", &["alice"]).await, 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_told_with_its_field_and_charges_nothing() {
    let running = Running::start(|_| {}).await;
    let long = "x".repeat(65_536);
    for (body, status, field) in [
        (json!({}), 400, "/policy"),
        (json!({"policy": "shop/nothing", "limit": "a"}), 404, "/policy"),
        (json!({"policy": "checkout", "limit": "a"}), 404, "/policy"),
        (json!({"policy": "shop/checkout"}), 404, "/limit"),
        (json!({"policy": "shop/checkout", "limit": "nothing"}), 404, "/limit"),
        (json!({"policy": "shop/checkout", "limit": "per-customer"}), 422, "/key"),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["a", "b"]}), 422, "/key"),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": [""]}), 422, "/key"),
        (json!({"policy": "shop/checkout", "limit": "spiky", "key": ["no address", "a"]}), 422, "/key"),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": [long]}), 400, "/key/0"),
        (customer("a", (1 << 40) + 1), 400, "/cost"),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["a"], "cost": -1}), 400, "/cost"),
        (
            json!({"policy": "shop/checkout", "limit": "per-customer", "key": ["a"], "cost": 1.5}),
            400,
            "/cost",
        ),
        (json!({"policy": "shop/checkout", "limit": "per-customer", "key": "a"}), 400, "/key"),
        (json!({"policy": "shop/checkout", "limt": "per-customer"}), 400, "/limt"),
        (json!({"policy": "shop/checkout", "limits": []}), 400, "/limits"),
        (
            json!({"policy": "shop/checkout", "limits": [{"limit": "everyone"}], "limit": "everyone"}),
            400,
            "/limits",
        ),
        (
            json!({"policy": "shop/checkout", "limits": [{"limit": "everyone"}], "key": ["a"]}),
            422,
            "/limits/0/key",
        ),
        (
            json!({"policy": "shop/llm", "limit": "streams", "key": ["a"], "cost": 0, "reserve": {}}),
            422,
            "/cost",
        ),
        (json!({"limits": [{"limit": "everyone"}]}), 400, "/limits/0/policy"),
        (
            json!({"policy": "shop/checkout", "limits": [{"limit": "everyone"}, {"limit": "everyone"}]}),
            422,
            "/limits/1",
        ),
        (
            json!({"policy": "shop/checkout", "limits": vec![json!({"limit": "everyone"}); 17]}),
            422,
            "/limits",
        ),
        (json!({"policy": "shop/llm", "limit": "streams", "key": ["a"]}), 422, "/limit"),
        (json!({"policy": "other/single", "peek": true, "reserve": {}}), 400, "/peek"),
        (
            json!({"policy": "other/single", "reserve": {"expiresAfterSeconds": 0}}),
            400,
            "/reserve/expiresAfterSeconds",
        ),
        (
            json!({"policy": "other/single", "reserve": {"expiresAfterSeconds": 86_401}}),
            400,
            "/reserve/expiresAfterSeconds",
        ),
        (json!({"policy": "other/single", "namespace": "other"}), 400, "/namespace"),
        (json!({"policy": "other/single", "request": {"url": "/"}, "namespace": "other"}), 400, "/namespace"),
        (json!({"request": {"url": "/"}, "key": ["a"]}), 400, "/request"),
        (json!({"request": {"url": "no url"}}), 400, "/request/url"),
        (json!({"request": {"url": "/", "method": "G T"}}), 400, "/request/method"),
        (json!({"request": {"url": "/", "headers": {"a b": "c"}}}), 400, "/request/headers/a b"),
        (json!({"request": {"url": "/", "headers": {"a/b": "c"}}}), 400, "/request/headers/a~1b"),
        (json!({"request": {"url": "/", "headers": {"a": ["b", "c\nd"]}}}), 400, "/request/headers/a"),
        (json!({"request": {"url": "/", "clientAddress": "here"}}), 400, "/request/clientAddress"),
        (json!({"request": {}}), 400, "/request"),
        (json!({"checks": []}), 400, "/checks"),
        (json!({"checks": vec![json!({"policy": "other/single"}); 101]}), 400, "/checks"),
        (json!({"checks": [{"checks": []}]}), 400, "/checks/0/checks"),
        (json!({"checks": [{"policy": "other/single"}], "peek": true}), 400, "/checks"),
        (
            json!({"checks": [{"policy": "other/single"}, {"limits": [{"policy": "shop/x"}]}]}),
            404,
            "/checks/1/limits/0/policy",
        ),
        (json!([]), 400, "-"),
        (json!("check"), 400, "-"),
    ] {
        assert_eq!(running.problem("/v1/check", body.clone()).await, (status, field.to_owned()), "{body}");
    }
    for (body, status, field) in [
        (json!({}), 400, "-"),
        (json!({"id": 7}), 400, "/id"),
        (json!({"id": ""}), 404, "/id"),
        (json!({"id": "AAAA"}), 404, "/id"),
        (json!({"id": "x".repeat(1 << 16)}), 404, "/id"),
        (json!({"id": "AAAA", "cost": 1u64 << 41}), 400, "/cost"),
    ] {
        assert_eq!(running.problem("/v1/settle", body.clone()).await, (status, field.to_owned()), "{body}");
    }
    for (body, content_type, status) in [
        ("{\"policy\": \"other/single\"} {}", "application/json", 400),
        ("{\"policy\": \"other/single", "application/json", 400),
        ("{\"policy\": \"other/single\"}", "text/plain", 415),
        ("policy=other/single", "application/x-www-form-urlencoded", 415),
        ("\u{feff}{}", "application/json", 400),
        (&format!("{{\"policy\": \"{}\"}}", "x".repeat(1 << 20)), "application/json", 413),
        (&"[".repeat(100_000), "application/json", 400),
        (&"{\"checks\":[".repeat(1000), "application/json", 400),
    ] {
        let (got, _, answer) = send(running.address(), "/v1/check", body, content_type).await;
        assert_eq!(got, status, "{content_type} {:.80}: {answer}", body);
    }
    let (status, _, _) = send(running.address(), "/v1/check?status=200", "{}", "application/json").await;
    assert_eq!(status, 400);
    assert_eq!(running.left("other/single", "all", &[]).await, 2);
    assert_eq!(running.left("shop/checkout", "everyone", &[]).await, 7);
}

/// Adds the id of a reservation to a descriptor.
fn with_id(mut descriptor: RateLimitDescriptor, id: &str, hits: u64) -> RateLimitDescriptor {
    descriptor.entries.push(Entry { key: "sluice_reservation".into(), value: id.to_owned().into() });
    descriptor.hits_addend = Some(hits);
    descriptor
}

fn reserved(response: &RateLimitResponse) -> Option<String> {
    let metadata = response.dynamic_metadata.as_ref()?;
    match &metadata.fields.get("sluice_reservation")?.kind {
        Some(prost_types::value::Kind::StringValue(id)) => Some(id.clone()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gateways_reserve_by_a_question_and_settle_by_the_report() {
    let running = Running::start(|_| {}).await;
    let mut caller = Caller::to(running.service.grpc()).await;
    let alice = || of(&[("user", "alice")]);
    let first = caller.ask(question("shop", &[alice()])).await.unwrap();
    let first = reserved(&first).unwrap();
    // An explicit look reserves too: it is how some gateways ask.
    let look = RateLimitDescriptor { hits_addend: Some(0), ..alice() };
    let second = reserved(&caller.ask(question("shop", &[look])).await.unwrap()).unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8000);
    let report = |id: &str, hits| question("shop", &[with_id(alice(), id, hits)]);
    let answer = caller.ask(report(&first, 250)).await.unwrap();
    assert_eq!((answer.overall_code, reserved(&answer)), (1, None));
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8750);
    caller.ask(report(&first, 9000)).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8750, "it was settled before");
    // Ids of others, and what is none, change nothing.
    for (pairs, id) in [
        (&[("user", "bob")], second.as_str()),
        (&[("user", "alice")], "nonsense"),
        (&[("user", "alice")], ""),
    ] {
        caller.ask(question("shop", &[with_id(of(pairs), id, 5000)])).await.unwrap();
    }
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8750);
    assert_eq!(running.left("shop/llm", "per-user", &["bob"]).await, 10_000);
    caller.ask(report(&second, 0)).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 9750);
    // A report that does not say what was used leaves the reservation as it is.
    let third = reserved(&caller.ask(question("shop", &[alice()])).await.unwrap()).unwrap();
    let mut silent = with_id(alice(), &third, 0);
    silent.hits_addend = None;
    caller.ask(question("shop", &[silent])).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8750);
    caller.ask(report(&third, 0)).await.unwrap();
    // A report without an id settles the oldest; without any, it is charged.
    caller.ask(question("shop", &[alice()])).await.unwrap();
    let used = |hits| RateLimitDescriptor { hits_addend: Some(hits), ..alice() };
    caller.ask(question("shop", &[used(2000)])).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 7750);
    caller.ask(question("shop", &[used(700)])).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 7050);
    let over = caller.ask(question("shop", &[used(90_000)])).await.unwrap();
    assert_eq!((over.overall_code, running.left("shop/llm", "per-user", &["alice"]).await), (2, 0));
    let denied = caller.ask(question("shop", &[alice()])).await.unwrap();
    assert_eq!((denied.overall_code, reserved(&denied)), (2, None), "a denied request has no id");
    let metrics = running.service.metrics();
    for line in ["made\"} 4", "settled\"} 4", "not_found\"} 3", "without_hits\"} 1"] {
        assert!(metrics.contains(&format!("sluice_reservations_total{{event=\"{line}")), "{line}: {metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_id_settles_all_budgets_of_a_question_and_slots() {
    let running = Running::start(|_| {}).await;
    let mut caller = Caller::to(running.service.grpc()).await;
    let all = [of(&[("user", "alice")]), of(&[("tenant", "acme")]), of(&[("stream", "alice")])];
    let first = reserved(&caller.ask(question("shop", &all)).await.unwrap()).unwrap();
    let second = reserved(&caller.ask(question("shop", &all)).await.unwrap()).unwrap();
    let third = caller.ask(question("shop", &all)).await.unwrap();
    assert_eq!((third.overall_code, reserved(&third)), (2, None), "two streams at most");
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8000);
    let reports = all.clone().map(|one| with_id(one, &first, 50));
    caller.ask(question("shop", &reports)).await.unwrap();
    assert_eq!(running.left("shop/llm", "per-user", &["alice"]).await, 8950);
    assert_eq!(running.left("shop/llm", "tenant", &["acme"]).await, 10_950);
    assert_eq!(running.left("shop/llm", "streams", &["alice"]).await, 1);
    // An application may settle what a gateway has reserved.
    assert!(running.settle(&second, Some(0)).await);
    assert_eq!(running.left("shop/llm", "tenant", &["acme"]).await, 11_950);
    assert_eq!(running.left("shop/llm", "streams", &["alice"]).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_is_of_the_handlers() {
    let running = Running::start(|_| {}).await;
    let mut stream = TcpStream::connect(running.address()).await.unwrap();
    stream.write_all(b"GET /v1/openapi.json HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let document: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(document, sluice_service::checks::openapi::document());
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(paths.keys().collect::<Vec<_>>(), ["/v1/check", "/v1/openapi.json", "/v1/settle"]);
    // Each field of an answer is described, and each that the document demands is there.
    let describes = |schema: &str, answer: &Value| {
        let schema = &document["components"]["schemas"][schema];
        let (fields, known) = (answer.as_object().unwrap(), schema["properties"].as_object().unwrap());
        for field in fields.keys() {
            assert!(known.contains_key(field), "{field} of {answer} is not in {schema}");
        }
        for field in schema["required"].as_array().unwrap() {
            assert!(fields.contains_key(field.as_str().unwrap()), "{answer} lacks {field}");
        }
    };
    let reserved = running.check(json!({"policy": "other/single", "reserve": {}})).await;
    describes("CheckResult", &reserved);
    describes("LimitResult", &reserved["limits"][0]);
    describes("Reservation", &reserved["reservation"]);
    let (_, settled) = running.post("/v1/settle", &json!({"id": id(&reserved), "cost": 1})).await;
    describes("SettlementResult", &settled);
    describes("SettledLimit", &settled["limits"][0]);
    describes(
        "CheckResults",
        &running.check(json!({"checks": [{"policy": "other/single", "peek": true}]})).await,
    );
    describes("Problem", &running.post("/v1/check", &json!({"policy": 7})).await.1);
    let check = &document["components"]["schemas"]["Check"]["properties"];
    for field in
        ["policy", "limit", "key", "cost", "limits", "request", "namespace", "peek", "reserve", "checks"]
    {
        assert!(check[field]["description"].is_string(), "{field}");
    }
}
