//! A service in this process that applications ask, with policies.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use sluice_config::PreparedPolicy;
use sluice_config::prepared::Blobs;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_service::{Options, Service};
use sluice_store::Clock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::NOON;

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
metadata: {name: three, namespace: ordered}
spec:
  enforcedBy: [Service]
  limits:
  - {name: watched, mode: Shadow, matches: [{path: {exact: /}}], rates: [{requests: 3, per: 1h}]}
  - {name: enforced, matches: [{path: {exact: /}}], rates: [{requests: 2, per: 1h}]}
  - {name: never, mode: Shadow, matches: [{path: {exact: /}}], rates: [{requests: 0, per: 1h}]}
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
metadata: {name: plans, namespace: shop}
spec:
  enforcedBy: [Service]
  limits:
  - name: per-plan
    matches: [{path: {exact: /plans}}]
    rates: [{requests: 100, per: 1h}]
    tiers:
    - {name: gold, matches: [{headers: [{name: x-plan, exact: gold}]}], rates: [{requests: 5000, per: 1h}]}
    algorithm: {tokenBucket: {}}
    cost: {response: {reserve: 50, reported: {}}}
    key: {parts: [{header: {name: x-customer}}]}
---
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: uploads, namespace: shop}
spec:
  enforcedBy: [Service]
  limits:
  - name: bytes
    matches: [{path: {exact: /upload}}]
    rates: [{requests: 1000, per: 1h}]
    algorithm: {fixedWindow: {}}
    cost: {request: {bodyBytes: {}}}
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
pub(crate) struct Checked {
    pub(crate) service: Service,
    pub(crate) clock: Clock,
}

fn prepared(policies: &str) -> Vec<(String, Arc<PreparedPolicy>)> {
    let loaded = sluice_crds::manifest::load(policies, &sluice_crds::Installation::default()).unwrap();
    let prepare = |policy: sluice_crds::manifest::LoadedPolicy| {
        let prepared = PreparedPolicy::with_blobs(&policy.compiled.to_json(), &Blobs::default()).unwrap();
        (format!("{}/{}", policy.namespace, policy.name), Arc::new(prepared))
    };
    loaded.policies.into_iter().map(prepare).collect()
}

/// Starts a service with policies.
pub(crate) async fn start_with(policies: &str, change: impl FnOnce(&mut Options)) -> Checked {
    let clock = Clock::manual(0);
    clock.advance_micros(NOON);
    let mut options = Options::new("127.0.0.1:0".parse().unwrap());
    options.checks = Some("127.0.0.1:0".parse().unwrap());
    options.is_of_one_user = true;
    options.clock = clock.clone();
    change(&mut options);
    let checked = Checked { service: Service::start(options).await.unwrap(), clock };
    checked.publish(policies);
    checked
}

impl Checked {
    pub(crate) async fn start(change: impl FnOnce(&mut Options)) -> Self {
        start_with(POLICIES, change).await
    }

    fn publish(&self, policies: &str) {
        let publication = self.service.publication(StoreChoices::only(StoreChoice::Memory));
        let nacked = publication.publish_policies(&prepared(policies));
        assert!(nacked.is_empty(), "{nacked:?}");
    }

    /// Publishes the policies with another text in place of the first such one.
    pub(crate) fn edit(&self, text: &str, other: &str) {
        assert!(POLICIES.contains(text));
        self.publish(&POLICIES.replacen(text, other, 1));
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.service.checks().unwrap()
    }

    /// Sends a body, and returns the status and the body of the answer.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, _, body) = send(self.address(), path, &body.to_string(), "application/json").await;
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{body}: {error}")))
    }

    pub(crate) async fn check(&self, body: Value) -> Value {
        let (status, answer) = self.post("/v1/check", &body).await;
        assert_eq!(status, 200, "{body}: {answer}");
        answer
    }

    /// Returns status and field of the problem with a body.
    pub(crate) async fn problem(&self, path: &str, body: Value) -> (u16, String) {
        let (status, answer) = self.post(path, &body).await;
        assert!(answer["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{answer}");
        assert_eq!(
            (answer["status"].as_u64(), answer["type"].as_str()),
            (Some(status.into()), Some("about:blank"))
        );
        (status, answer["field"].as_str().unwrap_or("-").to_owned())
    }

    pub(crate) async fn settle(&self, id: &str, cost: Option<u64>) -> bool {
        let mut body = json!({"id": id});
        cost.into_iter().for_each(|cost| body["cost"] = cost.into());
        let (status, answer) = self.post("/v1/settle", &body).await;
        assert_eq!(status, 200, "{answer}");
        answer["settled"].as_bool().unwrap()
    }

    /// Returns what is left of a limit.
    pub(crate) async fn left(&self, policy: &str, limit: &str, key: &[&str]) -> u64 {
        let peek = json!({"policy": policy, "limit": limit, "key": key, "peek": true});
        self.check(peek).await["limits"][0]["remaining"].as_u64().unwrap()
    }
}

/// Sends a request, and returns status, head and body of the answer.
pub(crate) async fn send(
    address: SocketAddr,
    target: &str,
    body: &str,
    content_type: &str,
) -> (u16, String, String) {
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

/// Returns the id of what a check has reserved.
pub(crate) fn id(answer: &Value) -> String {
    answer["reservation"]["id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}
