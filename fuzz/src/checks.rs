//! Checks of applications in JSON: any bytes have an answer or a problem, and what has a problem charges nothing.

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, to_bytes};
use http::{Request, StatusCode};
use serde_json::Value;
use sluice_config::PreparedPolicy;
use sluice_config::prepared::Blobs;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_crds::Installation;
use sluice_crds::manifest::load;
use sluice_service::{Options, Service};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

use crate::target::Target;

const POLICY: &str = "
apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: p, namespace: n}
spec:
  enforcedBy: [Service]
  limits:
  - name: a
    rates: [{requests: 1000000, per: 1h}]
    key: {parts: [{header: {name: x}}]}
  - name: all
    rates: [{requests: 1000000, per: 1h}]
  concurrency: [{name: c, max: 3}]
";

/// The check.
pub const TARGET: Target = Target {
    name: "checks",
    check,
    seeds: &[
        r#"{"policy": "n/p", "limit": "a", "key": ["k"], "cost": 3}"#,
        r#"{"policy": "n/p", "limits": [{"limit": "a", "key": ["k"]}, {"limit": "all", "cost": 2}], "reserve": {"expiresAfterSeconds": 9}}"#,
        r#"{"request": {"method": "PUT", "url": "http://a/b?c=d", "headers": {"x": ["1", "2"]}, "clientAddress": "::1"}, "namespace": "n"}"#,
        r#"{"checks": [{"policy": "n/p", "limit": "c", "reserve": {}}, {"policy": "n/p", "limit": "a", "key": ["\u0000"], "peek": true}]}"#,
        r#"{"id": "ARC1eTYiSU__MfS2A_a7GRr2wvdQ6mkBqDBAK7hHYgD0TqoB9EurqQ", "cost": 5}"#,
    ],
    words: &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "null",
        "true",
        "-1",
        "1e9",
        "1099511627777",
        "\"policy\"",
        "\"limit\"",
        "\"limits\"",
        "\"key\"",
        "\"cost\"",
        "\"checks\"",
        "\"request\"",
        "\"url\"",
        "\"reserve\"",
        "\"peek\"",
        "\"n/p\"",
        "\\ud800",
        "\u{0}",
    ],
};

/// A service that is never asked over the network.
fn door() -> &'static (Runtime, Router, Service) {
    static SERVICE: OnceLock<(Runtime, Router, Service)> = OnceLock::new();
    SERVICE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let service = runtime.block_on(async {
            let mut options = Options::new(([127, 0, 0, 1], 0).into());
            options.is_of_one_user = true;
            let service = Service::start(options).await.expect("a service");
            let loaded = load(POLICY, &Installation::default()).expect("a policy");
            let compiled = loaded.policies[0].compiled.to_json();
            let prepared = PreparedPolicy::with_blobs(&compiled, &Blobs::default()).expect("a policy");
            let publication = service.publication(StoreChoices::only(StoreChoice::Memory));
            assert!(publication.publish_policies(&[("n/p".to_owned(), Arc::new(prepared))]).is_empty());
            service
        });
        (runtime, service.check_door(), service)
    })
}

fn send(path: &str, body: &[u8]) -> (StatusCode, Value) {
    let (runtime, door, _) = door();
    let request =
        Request::post(path).header("content-type", "application/json").body(Body::from(body.to_vec()));
    runtime.block_on(async {
        let response = match door.clone().oneshot(request.expect("a request")).await {
            Ok(response) => response,
            Err(never) => match never {},
        };
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.expect("a body");
        (status, serde_json::from_slice(&body).expect("an answer is JSON"))
    })
}

/// Returns what is left of the limit that all clients share.
fn left() -> u64 {
    let (status, answer) = send("/v1/check", br#"{"policy": "n/p", "limit": "all", "peek": true}"#);
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer["limits"][0]["remaining"].as_u64().expect("a number")
}

fn check(bytes: &[u8]) {
    for path in ["/v1/check", "/v1/settle"] {
        let before = left();
        let (status, answer) = send(path, bytes);
        match status.as_u16() {
            200 => {
                let all = answer["results"].as_array().map_or(std::slice::from_ref(&answer), Vec::as_slice);
                for one in all {
                    let limits = one["limits"].as_array().expect("limits");
                    let denies = limits.iter().any(|limit| limit["allowed"] == false);
                    assert!(path == "/v1/settle" || one["allowed"] == !denies, "{answer}");
                }
            }
            400 | 404 | 413 | 422 => {
                assert!(answer["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{answer}");
                assert!(
                    answer
                        .get("field")
                        .is_none_or(|field| field.as_str().is_some_and(|field| field.starts_with('/'))),
                    "{answer}"
                );
                assert_eq!(left(), before, "{answer}");
            }
            _ => panic!("{status}: {answer}"),
        }
    }
}
