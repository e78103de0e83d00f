//! Counting in a real Redis: quota leases, remembered denials, and local quota while Redis is down.

mod metrics;
mod on_limit;
mod settle;
mod several;
mod slots;
mod tiers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use sluice_config::PreparedPolicy;
use sluice_config::message::Replica;
use sluice_config::store_access::StoreChoice;
use sluice_sidecar::Sidecar;

use crate::server::{Redis, eventually};
use crate::support::*;

/// The longest period: no test ends in a later window than it began in.
const YEAR: u64 = 366 * 24 * 3_600_000;

/// Returns a policy of one limit, with the header `x-api-key` as key.
fn policy(name: &str, consistency: &str, on_failure: &str, requests: u64) -> Arc<PreparedPolicy> {
    let rate =
        format!(r#"{{"requests":{requests},"periodMillis":{YEAR},"algorithm":{{"fixedWindow":"Clock"}}}}"#);
    policy_with_rate(name, consistency, on_failure, &rate, "Enforce")
}

/// Returns a policy of one limit with this rate and mode.
fn policy_with_rate(
    name: &str,
    consistency: &str,
    on_failure: &str,
    rate: &str,
    mode: &str,
) -> Arc<PreparedPolicy> {
    prepare(&format!(
        r#"{{"namespace":"shop","name":"{name}","mode":"Enforce","onStoreFailure":"{on_failure}","consistency":"{consistency}","ambiguousPaths":"Match",
        "limits":[{{"name":"{name}","mode":"{mode}","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],"kind":{{"rates":{{"base":[{rate}]}}}}}}]}}"#
    ))
}

/// Starts a sidecar that is replica `index` of `count`. Waits until its store is healthy.
async fn pod(
    application: &Application,
    store: &StoreChoice,
    policies: &[Arc<PreparedPolicy>],
    (index, count): (u32, u32),
) -> Sidecar {
    let (sidecar, _) = sidecar(application.address);
    let replica = |p: &Arc<PreparedPolicy>| (format!("uid-{}", p.name), Replica { index, count });
    sidecar.publisher().set_replicas(&policies.iter().map(replica).collect::<BTreeMap<_, _>>());
    publish(&sidecar, store, policies);
    if *store != StoreChoice::Unconfigured {
        until_healthy(&sidecar, true).await;
    }
    sidecar
}

/// Waits until the store is healthy, or is not.
async fn until_healthy(sidecar: &Sidecar, healthy: bool) {
    eventually(&format!("healthy: {healthy}"), || async {
        metric(&sidecar.metrics(), "sluice_store_healthy") == u64::from(healthy)
    })
    .await;
}

/// Waits until a check has failed because the store was killed.
async fn until_unreachable(sidecar: &Sidecar) {
    // Each check has a key of its own, so that it uses up no quota of a test.
    let checks = AtomicU64::new(0);
    eventually("a check fails", || async {
        let client = format!("x-api-key: unused-{}\r\n", checks.fetch_add(1, Relaxed));
        get(sidecar.addresses()[0], &client).await.header("x-sluice-store-failure") == "unreachable"
    })
    .await;
}

/// Sends this number of requests in turn. Returns how many are admitted.
async fn admitted(sidecar: &Sidecar, headers: &str, times: usize) -> u64 {
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let mut admitted = 0;
    for _ in 0..times {
        match client.get(headers).await.status {
            200 => admitted += 1,
            429 => {}
            other => panic!("{other}"),
        }
    }
    admitted
}

/// Returns how often the script was called.
fn calls(redis: &Redis) -> u64 {
    let text: String = redis::cmd("INFO").arg("commandstats").query(&mut redis.connection()).unwrap();
    let stat = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    };
    stat("cmdstat_evalsha:calls=") + stat("cmdstat_eval:calls=")
}

/// Reports whether this limit alone denied the request.
fn denied_by(response: &HttpResponse, limit: &str) -> bool {
    response.status == 429 && response.json()["violated-policies"] == serde_json::json!([limit])
}

/// Returns the value of a counter of the policy and the limit with this name.
fn counted(sidecar: &Sidecar, family: &str, name: &str, outcome: &str) -> u64 {
    let name = format!(
        r#"sluice_{family}_total{{policy_namespace="shop",policy="{name}",limit="{name}",outcome="{outcome}"}}"#
    );
    metric(&sidecar.metrics(), &name)
}

#[tokio::test]
async fn quota_leases_admit_exactly_the_limit_with_few_calls_and_return_at_the_end() {
    const N: u64 = 2_000;
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let leased = policy("p", "Leased", "Share", N);
    let one = pod(&application, &redis_at(&redis.url()), std::slice::from_ref(&leased), (0, 2)).await;
    let begin = calls(&redis);
    assert_eq!(admitted(&one, "x-api-key: a\r\n", 1_200).await, 1_200);
    let calls_below = calls(&redis) - begin;
    println!("1200 requests below the limit: {calls_below} calls");
    assert!(calls_below < 300, "{calls_below} calls for 1200 requests");
    assert!(metric(&one.metrics(), "sluice_lease_quota_taken_total") >= 1_200);
    one.shutdown(Duration::ZERO, Duration::from_secs(60)).await;
    // The quota that it had leased and not used is available to the other pod.
    let two = pod(&application, &redis_at(&redis.url()), &[leased], (1, 2)).await;
    let begin = calls(&redis);
    assert_eq!(admitted(&two, "x-api-key: a\r\n", 1_500).await, N - 1_200);
    let calls_above = calls(&redis) - begin;
    println!("1500 requests for {} that are left: {calls_above} calls", N - 1_200);
    assert!(calls_above < 500, "{calls_above} calls for 1500 requests");
    assert_eq!(counted(&two, "decisions", "p", "admitted"), N - 1_200);
}

#[tokio::test]
async fn quota_leases_return_when_another_store_takes_over() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let one =
        pod(&application, &redis_at(&redis.url()), &[policy("p", "Leased", "Share", 10_000)], (0, 1)).await;
    assert_eq!(admitted(&one, "x-api-key: a\r\n", 300).await, 300);
    publish(&one, &StoreChoice::Memory, &[policy("p", "Leased", "Share", 10_000)]);
    let two =
        pod(&application, &redis_at(&redis.url()), &[policy("p", "Strict", "Share", 10_000)], (0, 1)).await;
    eventually("the unused quota has returned", || async {
        // This check is charged too.
        let response = get(two.addresses()[0], "x-api-key: a\r\n").await;
        let checks = counted(&two, "decisions", "p", "admitted");
        response.header("x-ratelimit-remaining") == (10_000 - 300 - checks).to_string()
    })
    .await;
}

#[tokio::test]
async fn a_denied_client_is_denied_again_without_a_call() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let policies = [policy("p", "Strict", "Allow", 3)];
    let sidecar = pod(&application, &redis_at(&redis.url()), &policies, (0, 1)).await;
    assert_eq!(admitted(&sidecar, "x-api-key: a\r\n", 4).await, 3);
    let (begun, before) = (Instant::now(), calls(&redis));
    assert_eq!(admitted(&sidecar, "x-api-key: a\r\n", 500).await, 0);
    let calls = calls(&redis) - before;
    // A denial is remembered for a second at most.
    assert!(calls <= 2 + begun.elapsed().as_secs(), "{calls} calls for 500 denials");
    assert!(metric(&sidecar.metrics(), "sluice_denials_remembered_total") >= 500 - calls);
    let response = get(sidecar.addresses()[0], "x-api-key: a\r\n").await;
    assert_eq!((response.status, response.header("x-ratelimit-remaining")), (429, "0"));
    assert!(!response.header("retry-after").is_empty());
    assert_eq!(admitted(&sidecar, "x-api-key: b\r\n", 4).await, 3, "another client is checked in the store");
}

#[tokio::test]
async fn local_quotas_sum_up_to_the_limit_while_the_store_is_down_and_no_burst_follows() {
    const N: u64 = 11;
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let policies = [policy("p", "Strict", "Share", N)];
    let one = pod(&application, &redis_at(&redis.url()), &policies, (0, 2)).await;
    let two = pod(&application, &redis_at(&redis.url()), &policies, (1, 2)).await;
    redis.kill();
    let mut total = 0;
    for pod in [&one, &two] {
        until_unreachable(pod).await;
        let quota = admitted(pod, "x-api-key: a\r\n", 20).await;
        assert!((N / 2..=N.div_ceil(2)).contains(&quota), "{quota} of {N}");
        total += quota;
        assert_eq!(counted(pod, "fallback", "p", "share_denied"), 20 - quota);
        let denied = get(pod.addresses()[0], "x-api-key: a\r\n").await;
        assert_eq!((denied.status, denied.header("x-sluice-store-failure")), (429, "unreachable"));
        assert_eq!((denied.header("x-ratelimit-limit"), denied.header("x-ratelimit-remaining")), ("11", "0"));
        assert!(!denied.header("retry-after").is_empty() && denied.body.contains("quota-exceeded"));
        assert!(metric(&pod.metrics(), "sluice_share_pending") > 0);
    }
    assert_eq!(total, N);
    // The store returns, without its data.
    redis.restart();
    for pod in [&one, &two] {
        until_healthy(pod, true).await;
        eventually("local usage is flushed to the store", || async {
            metric(&pod.metrics(), "sluice_share_pending") == 0
        })
        .await;
    }
    for pod in [&one, &two] {
        assert_eq!(admitted(pod, "x-api-key: a\r\n", 20).await, 0, "a burst");
        assert_eq!(get(pod.addresses()[0], "x-api-key: a\r\n").await.header("x-sluice-store-failure"), "");
    }
}

#[tokio::test]
async fn local_consistency_sends_no_checks_to_the_store() {
    const N: u64 = 21;
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let policies = [policy("p", "Local", "Deny", N)];
    let one = pod(&application, &redis_at(&redis.url()), &policies, (0, 2)).await;
    let two = pod(&application, &redis_at(&redis.url()), &policies, (1, 2)).await;
    let before = calls(&redis);
    let (a, b) = (admitted(&one, "x-api-key: a\r\n", 30).await, admitted(&two, "x-api-key: a\r\n", 30).await);
    assert_eq!((a + b, a.abs_diff(b)), (N, 1));
    assert_eq!(calls(&redis), before);
    redis.kill();
    let response = get(one.addresses()[0], "x-api-key: b\r\n").await;
    assert_eq!((response.status, response.header("x-sluice-store-failure")), (200, ""));
    assert_eq!(counted(&one, "fallback", "p", "share_admitted"), 0);
    // With more pods each gets less.
    let replicas = |count| BTreeMap::from([("uid-p".to_owned(), Replica { index: 0, count })]);
    one.publisher().set_replicas(&replicas(7));
    assert_eq!(admitted(&one, "x-api-key: c\r\n", 30).await, 3);
    // With fewer pods, the quota of those that are gone counts as used until the window ends.
    one.publisher().set_replicas(&replicas(1));
    assert_eq!(admitted(&one, "x-api-key: d\r\n", 30).await, 3);
}

#[tokio::test]
async fn each_policy_decides_about_store_failures_and_a_policy_that_denies_wins() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let (allow, deny) = (policy("allow", "Strict", "Allow", 100), policy("deny", "Strict", "Deny", 100));
    let (share, local) = (policy("share", "Strict", "Share", 4), policy("local", "Local", "Deny", 100));
    let leased = policy("leased", "Leased", "Deny", 100);
    let sidecar = pod(&application, &redis_at(&redis.url()), std::slice::from_ref(&allow), (0, 2)).await;
    let store = redis_at(&redis.url());
    redis.kill();
    until_unreachable(&sidecar).await;
    let address = sidecar.addresses()[0];
    let set = |policies: &[Arc<PreparedPolicy>]| {
        let replica = |p: &Arc<PreparedPolicy>| (format!("uid-{}", p.name), Replica { index: 0, count: 2 });
        sidecar.publisher().set_replicas(&policies.iter().map(replica).collect::<BTreeMap<_, _>>());
        publish(&sidecar, &store, policies);
    };
    let fallback = |name, outcome| counted(&sidecar, "fallback", name, outcome);

    let before = fallback("allow", "admitted");
    let response = get(address, "x-api-key: a\r\n").await;
    assert_eq!((response.status, response.header("x-sluice-store-failure")), (200, "unreachable"));
    assert_eq!((response.header("ratelimit"), fallback("allow", "admitted")), ("", before + 1));

    for with in [&[deny.clone()][..], &[allow.clone(), deny.clone()], &[share.clone(), deny.clone()]] {
        set(with);
        let before = fallback("deny", "denied");
        let response = get(address, "x-api-key: b\r\n").await;
        assert_eq!((response.status, response.header("x-sluice-store-failure")), (429, "unreachable"));
        assert!(response.body.contains("temporary-reduced-capacity"), "{}", response.body);
        assert_eq!(fallback("deny", "denied"), before + 1);
    }
    set(&[leased]);
    assert_eq!(
        get(address, "x-api-key: b\r\n").await.status,
        429,
        "without a quota lease no request is admitted"
    );

    // The headers describe only limits that count, and denied requests have not used up the local quota.
    set(&[allow.clone(), local, share]);
    for n in (0..2).rev() {
        let response = get(address, "x-api-key: b\r\n").await;
        assert_eq!((response.status, response.header("x-sluice-store-failure")), (200, "unreachable"));
        assert_eq!(
            response.header("ratelimit-policy"),
            r#""local";q=100;w=31622400, "share";q=4;w=31622400"#
        );
        assert_eq!(response.header("x-ratelimit-remaining"), n.to_string());
    }
    let admitted_before = fallback("allow", "admitted");
    let response = get(address, "x-api-key: b\r\n").await;
    assert_eq!(response.status, 429);
    assert_eq!(response.json()["violated-policies"], serde_json::json!(["share"]));
    assert_eq!((fallback("share", "share_admitted"), fallback("share", "share_denied")), (2, 1));
    assert_eq!(fallback("allow", "admitted"), admitted_before, "the request was not admitted");
    assert_eq!(counted(&sidecar, "decisions", "share", "denied"), 1);
}

#[tokio::test]
async fn a_shadow_limit_uses_local_quota_too() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let rate = format!(r#"{{"requests":4,"periodMillis":{YEAR},"algorithm":{{"fixedWindow":"Clock"}}}}"#);
    let policies = [policy_with_rate("p", "Strict", "Share", &rate, "Shadow")];
    let sidecar = pod(&application, &redis_at(&redis.url()), &policies, (0, 2)).await;
    redis.kill();
    until_healthy(&sidecar, true).await;
    eventually("it uses local quota", || async {
        assert_eq!(get(sidecar.addresses()[0], "x-api-key: x\r\n").await.status, 200);
        counted(&sidecar, "fallback", "p", "share_admitted") > 0
    })
    .await;
    let before = counted(&sidecar, "fallback", "p", "share_denied");
    assert_eq!(admitted(&sidecar, "x-api-key: a\r\n", 5).await, 5);
    assert_eq!(counted(&sidecar, "fallback", "p", "share_denied"), before + 3);
}

#[tokio::test]
async fn without_a_store_the_local_quota_applies() {
    let application = Application::start().await;
    let policies = [policy("p", "Strict", "Share", 10)];
    let sidecar = pod(&application, &StoreChoice::Unconfigured, &policies, (0, 2)).await;
    assert_eq!(admitted(&sidecar, "x-api-key: a\r\n", 20).await, 5);
    let response = get(sidecar.addresses()[0], "x-api-key: a\r\n").await;
    assert_eq!((response.status, response.header("x-sluice-store-failure")), (429, "unconfigured"));
}

#[tokio::test]
async fn a_delayed_request_whose_client_disconnects_is_refunded_where_it_was_charged() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let hour = 3_600_000;
    let rate = format!(
        r#"{{"requests":1,"periodMillis":{hour},"algorithm":{{"leakyBucket":{{"maxWaitMillis":{hour}}}}}}}"#
    );
    let policies = |consistency| [policy_with_rate("p", consistency, "Share", &rate, "Enforce")];
    let sidecar = pod(&application, &redis_at(&redis.url()), &policies("Strict"), (0, 1)).await;
    let address = sidecar.addresses()[0];
    let waiting = || {
        metric(&sidecar.metrics(), r#"sluice_waiting_requests{policy_namespace="shop",policy="p",limit="p"}"#)
    };
    for (charged, key) in [("in Redis", "a"), ("locally", "b"), ("to the local quota", "c")] {
        match key {
            "b" => publish(&sidecar, &redis_at(&redis.url()), &policies("Local")),
            "c" => {
                publish(&sidecar, &redis_at(&redis.url()), &policies("Strict"));
                redis.kill();
                until_unreachable(&sidecar).await;
            }
            _ => {}
        }
        let key = format!("x-api-key: {key}\r\n");
        assert_eq!(get(address, &key).await.status, 200);
        for _ in 0..2 {
            let mut leaving = Client::connect(address).await;
            leaving.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{key}\r\n")).await;
            eventually("it is delayed", || async { waiting() == 1 }).await;
            assert_eq!(get(address, &key).await.status, 429, "the queue has room for one, charged {charged}");
            drop(leaving);
            eventually("it has returned its slot", || async { waiting() == 0 }).await;
        }
    }
}
