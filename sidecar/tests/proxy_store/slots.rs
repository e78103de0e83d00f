//! Slots in Redis, beside rates that something else counts.

use super::{YEAR, counted, denied_by, pod, until_unreachable};
use crate::server::{Redis, eventually};
use crate::support::*;

#[tokio::test]
async fn slots_are_counted_in_the_store_whatever_counts_the_rates_beside_them() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let policies = [prepare(&format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Share","consistency":"Local","ambiguousPaths":"Match","limits":[
        {{"name":"p","mode":"Enforce","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],
          "kind":{{"rates":{{"base":[{{"requests":6,"periodMillis":{YEAR},"algorithm":{{"fixedWindow":"Clock"}}}}]}}}}}},
        {{"name":"slots","mode":"Enforce","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],
          "kind":{{"slots":{{"max":1,"leaseMillis":30000,"abandonedForMillis":30000}}}}}}]}}"#
    ))];
    let sidecar = pod(&application, &redis_at(&redis.url()), &policies, (0, 2)).await;
    let address = sidecar.addresses()[0];
    let held = || {
        metric(
            &sidecar.metrics(),
            r#"sluice_concurrency_held{policy_namespace="shop",policy="p",limit="slots"}"#,
        )
    };
    let key = "x-api-key: a\r\n";
    // This request holds its slot until its body ends.
    let mut long = Client::connect(address).await;
    long.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{key}content-length: 1\r\n\r\n")).await;
    eventually("it has its slot", || async { held() == 1 }).await;
    assert!(denied_by(&get(address, key).await, "slots"));
    long.send("x").await;
    assert_eq!(long.response().await.status, 200);
    eventually("it has returned its slot", || async { get(address, key).await.status == 200 }).await;
    // Two of its local quota of three are used: requests without a slot were charged nothing.
    let response = get(address, key).await;
    assert!(response.status == 200 || denied_by(&response, "slots"));
    eventually("the local quota is used up", || async {
        let response = get(address, key).await;
        denied_by(&response, "p")
    })
    .await;
    assert_eq!(counted(&sidecar, "decisions", "p", "admitted"), 3);
    redis.kill();
    until_unreachable(&sidecar).await;
    // Slots have no local quota: that limit admits, and the rate still counts.
    for n in (0..3).rev() {
        let response = get(address, "x-api-key: b\r\n").await;
        assert_eq!((response.status, response.header("x-sluice-store-failure")), (200, "unreachable"));
        assert_eq!(response.header("ratelimit-policy"), r#""p";q=6;w=31622400"#);
        assert_eq!(response.header("x-ratelimit-remaining"), n.to_string());
    }
    assert_eq!(get(address, "x-api-key: b\r\n").await.status, 429);
    let name =
        r#"sluice_fallback_total{policy_namespace="shop",policy="p",limit="slots",outcome="admitted"}"#;
    assert!(metric(&sidecar.metrics(), name) >= 3);
}

#[tokio::test]
async fn a_limit_whose_slots_could_not_be_renewed_admits_no_request_beside_rates_with_local_quota() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let policies = [prepare(&format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Share","consistency":"Strict","ambiguousPaths":"Match","limits":[
        {{"name":"p","mode":"Enforce","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],
          "kind":{{"rates":{{"base":[{{"requests":1000000,"periodMillis":{YEAR},"algorithm":{{"fixedWindow":"Clock"}}}}]}}}}}},
        {{"name":"slots","mode":"Enforce","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],
          "kind":{{"slots":{{"max":9,"leaseMillis":2000,"abandonedForMillis":30000}}}}}}]}}"#
    ))];
    let sidecar = pod(&application, &redis_at(&redis.url()), &policies, (0, 1)).await;
    let (address, key) = (sidecar.addresses()[0], "x-api-key: a\r\n");
    let mut long = Client::connect(address).await;
    long.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{key}content-length: 1\r\n\r\n")).await;
    eventually("it has its slot", || async { sidecar.metrics().contains("limit=\"slots\"} 1\n") }).await;
    redis.kill();
    eventually("its slot may belong to another request", || async {
        let response = get(address, key).await;
        assert!(
            response.status == 200 || response.body.contains("so no new request is admitted"),
            "{}",
            response.body
        );
        response.status == 429
    })
    .await;
    let admitted = || counted(&sidecar, "decisions", "p", "admitted");
    let before = admitted();
    let response = get(address, key).await;
    assert_eq!((response.status, response.header("x-sluice-store-failure")), (429, "unreachable"));
    assert_eq!(admitted(), before, "a denied request is charged nothing");
    long.send("x").await;
    assert_eq!(long.response().await.status, 200);
    eventually("no slot is held", || async { get(address, key).await.status == 200 }).await;
}
