//! Where requests are counted, before a real Redis: leases, remembered denials, shares when it is killed, and counting
//! without it.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../../store/tests/support/mod.rs"]
mod server;
mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use server::{Redis, eventually};
use sluice_config::PreparedPolicy;
use sluice_config::message::Replica;
use sluice_sidecar::{Sidecar, StoreChoice};
use support::*;

/// The longest period: no test ends in another window than it began.
const YEAR: u64 = 366 * 24 * 3_600_000;

/// A policy of one limit by the header `x-api-key`.
fn policy(name: &str, consistency: &str, on_failure: &str, requests: u64) -> Arc<PreparedPolicy> {
    let rate = format!(r#"{{"requests":{requests},"periodMillis":{YEAR},"algorithm":"fixedWindow"}}"#);
    policy_of(name, consistency, on_failure, &rate, "Enforce")
}

fn policy_of(name: &str, consistency: &str, on_failure: &str, rate: &str, mode: &str) -> Arc<PreparedPolicy> {
    prepare(&format!(
        r#"{{"namespace":"shop","name":"{name}","mode":"Enforce","onStoreFailure":"{on_failure}","consistency":"{consistency}",
        "limits":[{{"name":"{name}","mode":"{mode}","onMissing":"Shared","key":[{{"header":"x-api-key"}}],"rates":[{rate}]}}]}}"#
    ))
}

fn choice(redis: &Redis) -> StoreChoice {
    // So generous that a loaded machine does not fail a test about something else.
    let access = serde_json::json!({
        "url": redis.url(), "latencyBudgetMillis": 10_000, "keySecret": "AAAAAAAAAAAAAAAAAAAAAA==", "prefix": "sluice:",
    });
    StoreChoice::new(serde_json::from_value(access).unwrap())
}

/// A sidecar that is pod `index` of `count`.
async fn pod(
    application: &Application,
    store: &StoreChoice,
    policies: &[Arc<PreparedPolicy>],
    (index, count): (u32, u32),
) -> Sidecar {
    let (sidecar, _) = sidecar(application.address);
    let sharing = |p: &Arc<PreparedPolicy>| (format!("uid-{}", p.name), Replica { index, count });
    sidecar.publisher().set_replicas(&policies.iter().map(sharing).collect::<BTreeMap<_, _>>());
    publish(&sidecar, store, policies);
    if *store != StoreChoice::Unconfigured {
        is(&sidecar, true).await;
    }
    sidecar
}

async fn is(sidecar: &Sidecar, healthy: bool) {
    eventually(&format!("healthy: {healthy}"), || async {
        metric(&sidecar.metrics(), "sluice_store_healthy") == u64::from(healthy)
    })
    .await;
}

/// A store that was killed is known to be so by the first question.
async fn notices(sidecar: &Sidecar) {
    // Each by a client of its own: none uses up what a test asks about.
    let tries = AtomicU64::new(0);
    eventually("it notices", || async {
        let client = format!("x-api-key: nobody-{}\r\n", tries.fetch_add(1, Relaxed));
        get(sidecar.addresses()[0], &client).await.header("x-sluice-store-failure") == "unreachable"
    })
    .await;
}

/// How many of so many requests are admitted, one after another.
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

/// How often the script was called.
fn calls(redis: &Redis) -> u64 {
    let text: String = redis::cmd("INFO").arg("commandstats").query(&mut redis.connection()).unwrap();
    let stat = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    };
    stat("cmdstat_evalsha:calls=") + stat("cmdstat_eval:calls=")
}

/// Whether it was this limit alone that denied.
fn denied_by(answer: &CheckResponse, limit: &str) -> bool {
    answer.status == 429 && answer.json()["violated-policies"] == serde_json::json!([limit])
}

fn counted(sidecar: &Sidecar, family: &str, name: &str, outcome: &str) -> u64 {
    let name = format!(r#"sluice_{family}_total{{policy="shop/{name}",limit="{name}",outcome="{outcome}"}}"#);
    metric(&sidecar.metrics(), &name)
}

#[tokio::test]
async fn leases_admit_exactly_the_number_with_few_calls_and_go_back_at_the_end() {
    const N: u64 = 2_000;
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let leased = policy("p", "Leased", "Share", N);
    let one = pod(&application, &choice(&redis), std::slice::from_ref(&leased), (0, 2)).await;
    let begin = calls(&redis);
    assert_eq!(admitted(&one, "x-api-key: a\r\n", 1_200).await, 1_200);
    let calls_below = calls(&redis) - begin;
    println!("1200 requests below the number: {calls_below} calls");
    assert!(calls_below < 300, "{calls_below} calls for 1200 requests");
    assert!(metric(&one.metrics(), "sluice_lease_quota_taken_total") >= 1_200);
    one.shutdown(Duration::ZERO, Duration::from_secs(60)).await;
    // What it had taken and not used is there for the other.
    let two = pod(&application, &choice(&redis), &[leased], (1, 2)).await;
    let begin = calls(&redis);
    assert_eq!(admitted(&two, "x-api-key: a\r\n", 1_500).await, N - 1_200);
    let calls_above = calls(&redis) - begin;
    println!("1500 requests for {} that are left: {calls_above} calls", N - 1_200);
    assert!(calls_above < 500, "{calls_above} calls for 1500 requests");
    assert_eq!(counted(&two, "decisions", "p", "admitted"), N - 1_200);
}

#[tokio::test]
async fn leases_are_given_back_when_another_store_takes_over() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let one = pod(&application, &choice(&redis), &[policy("p", "Leased", "Share", 10_000)], (0, 1)).await;
    assert_eq!(admitted(&one, "x-api-key: a\r\n", 300).await, 300);
    publish(&one, &StoreChoice::Memory, &[policy("p", "Leased", "Share", 10_000)]);
    let two = pod(&application, &choice(&redis), &[policy("p", "Strict", "Share", 10_000)], (0, 1)).await;
    eventually("everything unused has come back", || async {
        // Whoever asks is charged.
        let answer = get(two.addresses()[0], "x-api-key: a\r\n").await;
        let asked = counted(&two, "decisions", "p", "admitted");
        answer.header("x-ratelimit-remaining") == (10_000 - 300 - asked).to_string()
    })
    .await;
}

#[tokio::test]
async fn whoever_was_denied_is_denied_again_without_a_call() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let policies = [policy("p", "Strict", "Allow", 3)];
    let sidecar = pod(&application, &choice(&redis), &policies, (0, 1)).await;
    assert_eq!(admitted(&sidecar, "x-api-key: a\r\n", 4).await, 3);
    let (begun, before) = (Instant::now(), calls(&redis));
    assert_eq!(admitted(&sidecar, "x-api-key: a\r\n", 500).await, 0);
    let asked = calls(&redis) - before;
    // A denial is remembered for a second at most.
    assert!(asked <= 2 + begun.elapsed().as_secs(), "{asked} calls for 500 denials");
    assert!(metric(&sidecar.metrics(), "sluice_denials_remembered_total") >= 500 - asked);
    let answer = get(sidecar.addresses()[0], "x-api-key: a\r\n").await;
    assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (429, "0"));
    assert!(!answer.header("retry-after").is_empty());
    assert_eq!(admitted(&sidecar, "x-api-key: b\r\n", 4).await, 3, "another client is asked about");
}

#[tokio::test]
async fn shares_are_the_whole_number_together_while_the_store_is_killed_and_no_burst_follows() {
    const N: u64 = 11;
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let policies = [policy("p", "Strict", "Share", N)];
    let one = pod(&application, &choice(&redis), &policies, (0, 2)).await;
    let two = pod(&application, &choice(&redis), &policies, (1, 2)).await;
    redis.kill();
    let mut total = 0;
    for pod in [&one, &two] {
        notices(pod).await;
        let share = admitted(pod, "x-api-key: a\r\n", 20).await;
        assert!((N / 2..=N.div_ceil(2)).contains(&share), "{share} of {N}");
        total += share;
        assert_eq!(counted(pod, "fallback", "p", "share_denied"), 20 - share);
        let denied = get(pod.addresses()[0], "x-api-key: a\r\n").await;
        assert_eq!((denied.status, denied.header("x-sluice-store-failure")), (429, "unreachable"));
        assert_eq!((denied.header("x-ratelimit-limit"), denied.header("x-ratelimit-remaining")), ("11", "0"));
        assert!(!denied.header("retry-after").is_empty() && denied.body.contains("quota-exceeded"));
        assert!(metric(&pod.metrics(), "sluice_share_pending") > 0);
    }
    assert_eq!(total, N);
    // It comes back and knows nothing.
    redis.restart();
    for pod in [&one, &two] {
        is(pod, true).await;
        eventually("it has told the store", || async { metric(&pod.metrics(), "sluice_share_pending") == 0 })
            .await;
    }
    for pod in [&one, &two] {
        assert_eq!(admitted(pod, "x-api-key: a\r\n", 20).await, 0, "a burst");
        assert_eq!(get(pod.addresses()[0], "x-api-key: a\r\n").await.header("x-sluice-store-failure"), "");
    }
}

#[tokio::test]
async fn what_is_counted_locally_never_asks_the_store() {
    const N: u64 = 21;
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let policies = [policy("p", "Local", "Deny", N)];
    let one = pod(&application, &choice(&redis), &policies, (0, 2)).await;
    let two = pod(&application, &choice(&redis), &policies, (1, 2)).await;
    let before = calls(&redis);
    let (a, b) = (admitted(&one, "x-api-key: a\r\n", 30).await, admitted(&two, "x-api-key: a\r\n", 30).await);
    assert_eq!((a + b, a.abs_diff(b)), (N, 1));
    assert_eq!(calls(&redis), before);
    redis.kill();
    let answer = get(one.addresses()[0], "x-api-key: b\r\n").await;
    assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (200, ""));
    assert_eq!(counted(&one, "fallback", "p", "share_admitted"), 0);
    // More pods: less for each.
    let sharing = |count| BTreeMap::from([("uid-p".to_owned(), Replica { index: 0, count })]);
    one.publisher().set_replicas(&sharing(7));
    assert_eq!(admitted(&one, "x-api-key: c\r\n", 30).await, 3);
    // Fewer: what those that have gone admitted in this window counts until it ends.
    one.publisher().set_replicas(&sharing(1));
    assert_eq!(admitted(&one, "x-api-key: d\r\n", 30).await, 3);
}

#[tokio::test]
async fn each_policy_says_what_holds_while_the_store_is_gone_and_who_denies_wins() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let (allow, deny) = (policy("allow", "Strict", "Allow", 100), policy("deny", "Strict", "Deny", 100));
    let (share, local) = (policy("share", "Strict", "Share", 4), policy("local", "Local", "Deny", 100));
    let leased = policy("leased", "Leased", "Deny", 100);
    let sidecar = pod(&application, &choice(&redis), std::slice::from_ref(&allow), (0, 2)).await;
    let store = choice(&redis);
    redis.kill();
    notices(&sidecar).await;
    let address = sidecar.addresses()[0];
    let set = |policies: &[Arc<PreparedPolicy>]| {
        let sharing = |p: &Arc<PreparedPolicy>| (format!("uid-{}", p.name), Replica { index: 0, count: 2 });
        sidecar.publisher().set_replicas(&policies.iter().map(sharing).collect::<BTreeMap<_, _>>());
        publish(&sidecar, &store, policies);
    };
    let fallback = |name, outcome| counted(&sidecar, "fallback", name, outcome);

    let before = fallback("allow", "admitted");
    let answer = get(address, "x-api-key: a\r\n").await;
    assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (200, "unreachable"));
    assert_eq!((answer.header("ratelimit"), fallback("allow", "admitted")), ("", before + 1));

    for with in [&[deny.clone()][..], &[allow.clone(), deny.clone()], &[share.clone(), deny.clone()]] {
        set(with);
        let before = fallback("deny", "denied");
        let answer = get(address, "x-api-key: b\r\n").await;
        assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (429, "unreachable"));
        assert!(answer.body.contains("temporary-reduced-capacity"), "{}", answer.body);
        assert_eq!(fallback("deny", "denied"), before + 1);
    }
    set(&[leased]);
    assert_eq!(get(address, "x-api-key: b\r\n").await.status, 429, "without a block nobody is admitted");

    // Only what is counted is described; and the share was not used up by those who were denied.
    set(&[allow.clone(), local, share]);
    for n in (0..2).rev() {
        let answer = get(address, "x-api-key: b\r\n").await;
        assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (200, "unreachable"));
        assert_eq!(answer.header("ratelimit-policy"), r#""local";q=100;w=31622400, "share";q=4;w=31622400"#);
        assert_eq!(answer.header("x-ratelimit-remaining"), n.to_string());
    }
    let admitted_before = fallback("allow", "admitted");
    let answer = get(address, "x-api-key: b\r\n").await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.json()["violated-policies"], serde_json::json!(["share"]));
    assert_eq!((fallback("share", "share_admitted"), fallback("share", "share_denied")), (2, 1));
    assert_eq!(fallback("allow", "admitted"), admitted_before, "it was not admitted");
    assert_eq!(counted(&sidecar, "decisions", "share", "denied"), 1);
}

#[tokio::test]
async fn a_limit_that_watches_counts_by_its_share_too() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let rate = format!(r#"{{"requests":4,"periodMillis":{YEAR},"algorithm":"fixedWindow"}}"#);
    let policies = [policy_of("p", "Strict", "Share", &rate, "Shadow")];
    let sidecar = pod(&application, &choice(&redis), &policies, (0, 2)).await;
    redis.kill();
    is(&sidecar, true).await;
    eventually("it counts by its share", || async {
        assert_eq!(get(sidecar.addresses()[0], "x-api-key: x\r\n").await.status, 200);
        counted(&sidecar, "fallback", "p", "share_admitted") > 0
    })
    .await;
    let before = counted(&sidecar, "fallback", "p", "share_denied");
    assert_eq!(admitted(&sidecar, "x-api-key: a\r\n", 5).await, 5);
    assert_eq!(counted(&sidecar, "fallback", "p", "share_denied"), before + 3);
}

#[tokio::test]
async fn without_any_store_shares_are_counted_for_good() {
    let application = Application::start().await;
    let policies = [policy("p", "Strict", "Share", 10)];
    let sidecar = pod(&application, &StoreChoice::Unconfigured, &policies, (0, 2)).await;
    assert_eq!(admitted(&sidecar, "x-api-key: a\r\n", 20).await, 5);
    let answer = get(sidecar.addresses()[0], "x-api-key: a\r\n").await;
    assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (429, "unconfigured"));
}

#[tokio::test]
async fn a_turn_that_nobody_waits_for_is_given_back_wherever_it_was_charged() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let hour = 3_600_000;
    let rate = format!(
        r#"{{"requests":1,"periodMillis":{hour},"algorithm":{{"leakyBucket":{{"maxWaitMillis":{hour}}}}}}}"#
    );
    let policies = |consistency| [policy_of("p", consistency, "Share", &rate, "Enforce")];
    let sidecar = pod(&application, &choice(&redis), &policies("Strict"), (0, 1)).await;
    let address = sidecar.addresses()[0];
    let waiting = || metric(&sidecar.metrics(), r#"sluice_waiting_requests{policy="shop/p",limit="p"}"#);
    for (what, key) in [("in Redis", "a"), ("by itself", "b"), ("by its share", "c")] {
        match key {
            "b" => publish(&sidecar, &choice(&redis), &policies("Local")),
            "c" => {
                publish(&sidecar, &choice(&redis), &policies("Strict"));
                redis.kill();
                notices(&sidecar).await;
            }
            _ => {}
        }
        let key = format!("x-api-key: {key}\r\n");
        assert_eq!(get(address, &key).await.status, 200);
        for _ in 0..2 {
            let mut gone = Client::connect(address).await;
            gone.send(format!("GET / HTTP/1.1\r\nhost: a\r\n{key}\r\n")).await;
            eventually("it waits", || async { waiting() == 1 }).await;
            assert_eq!(get(address, &key).await.status, 429, "its place is the last one, {what}");
            drop(gone);
            eventually("it has given its place back", || async { waiting() == 0 }).await;
        }
    }
}

#[tokio::test]
async fn places_are_asked_of_the_store_whatever_counts_the_rates_beside_them() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let policies = [prepare(&format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Share","consistency":"Local","limits":[
        {{"name":"p","mode":"Enforce","onMissing":"Shared","key":[{{"header":"x-api-key"}}],
          "rates":[{{"requests":6,"periodMillis":{YEAR},"algorithm":"fixedWindow"}}]}},
        {{"name":"places","mode":"Enforce","onMissing":"Shared","key":[{{"header":"x-api-key"}}],
          "rates":[{{"requests":1,"periodMillis":30000,"algorithm":"concurrency"}}]}}]}}"#
    ))];
    let sidecar = pod(&application, &choice(&redis), &policies, (0, 2)).await;
    let address = sidecar.addresses()[0];
    let held = || metric(&sidecar.metrics(), r#"sluice_concurrency_held{policy="shop/p",limit="places"}"#);
    let key = "x-api-key: a\r\n";
    // One that has its place until its body ends.
    let mut long = Client::connect(address).await;
    long.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{key}content-length: 1\r\n\r\n")).await;
    eventually("it has its place", || async { held() == 1 }).await;
    assert!(denied_by(&get(address, key).await, "places"));
    long.send("x").await;
    assert_eq!(long.answer().await.status, 200);
    eventually("it has given its place back", || async { get(address, key).await.status == 200 }).await;
    // Of three, its share, two are used; whoever had no place was charged nothing.
    let answer = get(address, key).await;
    assert!(answer.status == 200 || denied_by(&answer, "places"));
    eventually("the share is used up", || async {
        let answer = get(address, key).await;
        denied_by(&answer, "p")
    })
    .await;
    assert_eq!(counted(&sidecar, "decisions", "p", "admitted"), 3);
    redis.kill();
    notices(&sidecar).await;
    // Places cannot be shared out: that limit admits, and the rate counts on.
    for n in (0..3).rev() {
        let answer = get(address, "x-api-key: b\r\n").await;
        assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (200, "unreachable"));
        assert_eq!(answer.header("ratelimit-policy"), r#""p";q=6;w=31622400"#);
        assert_eq!(answer.header("x-ratelimit-remaining"), n.to_string());
    }
    assert_eq!(get(address, "x-api-key: b\r\n").await.status, 429);
    let name = r#"sluice_fallback_total{policy="shop/p",limit="places",outcome="admitted"}"#;
    assert!(metric(&sidecar.metrics(), name) >= 3);
}

#[tokio::test]
async fn places_that_could_not_be_renewed_admit_nobody_new_though_the_rates_are_shared() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let policies = [prepare(&format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Share","limits":[
        {{"name":"p","mode":"Enforce","onMissing":"Shared","key":[{{"header":"x-api-key"}}],
          "rates":[{{"requests":1000000,"periodMillis":{YEAR},"algorithm":"fixedWindow"}}]}},
        {{"name":"places","mode":"Enforce","onMissing":"Shared","key":[{{"header":"x-api-key"}}],
          "rates":[{{"requests":9,"periodMillis":2000,"algorithm":"concurrency"}}]}}]}}"#
    ))];
    let sidecar = pod(&application, &choice(&redis), &policies, (0, 1)).await;
    let (address, key) = (sidecar.addresses()[0], "x-api-key: a\r\n");
    let mut long = Client::connect(address).await;
    long.send(format!("POST / HTTP/1.1\r\nhost: a\r\n{key}content-length: 1\r\n\r\n")).await;
    eventually("it has its place", || async { sidecar.metrics().contains("limit=\"places\"} 1\n") }).await;
    redis.kill();
    eventually("others may have been given its place", || async {
        let answer = get(address, key).await;
        assert!(
            answer.status == 200 || answer.body.contains("so no new request is admitted"),
            "{}",
            answer.body
        );
        answer.status == 429
    })
    .await;
    let admitted = || counted(&sidecar, "decisions", "p", "admitted");
    let before = admitted();
    let answer = get(address, key).await;
    assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (429, "unreachable"));
    assert_eq!(admitted(), before, "whoever is turned away is charged nothing");
    long.send("x").await;
    assert_eq!(long.answer().await.status, 200);
    eventually("nobody holds any", || async { get(address, key).await.status == 200 }).await;
}

/// How many questions the store did not answer for the reason of this word.
fn faults(sidecar: &Sidecar, word: &str) -> u64 {
    let text = sidecar.metrics();
    let name = format!(r#"sluice_store_faults_total{{fault="{word}"}}"#);
    assert!(text.contains(&name), "no {name} in\n{text}");
    metric(&text, &name)
}

const FAULTS: [&str; 8] =
    ["timeout", "overloaded", "unreachable", "slow", "refused", "read-only", "nonsense", "wrong-type"];

#[tokio::test]
async fn faults_are_counted_by_the_words_of_responses_also_those_of_one_key() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let sidecar = pod(&application, &choice(&redis), &[policy("p", "Strict", "Allow", 100)], (0, 1)).await;
    let address = sidecar.addresses()[0];
    assert_eq!(get(address, "x-api-key: a\r\n").await.header("x-sluice-store-failure"), "");
    assert_eq!(FAULTS.map(|word| faults(&sidecar, word)), [0; 8]);

    // Somebody takes the counter's key for a list, and then for some text.
    let mut connection = redis.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("sluice:*").query(&mut connection).unwrap();
    let [key] = &keys[..] else { panic!("{keys:?}") };
    let (): () = redis::cmd("DEL").arg(key).query(&mut connection).unwrap();
    let (): () = redis::cmd("LPUSH").arg(key).arg("x").query(&mut connection).unwrap();
    for _ in 0..3 {
        let answer = get(address, "x-api-key: a\r\n").await;
        assert_eq!((answer.status, answer.header("x-sluice-store-failure")), (200, "wrong-type"));
    }
    let (): () = redis::cmd("SET").arg(key).arg("text").query(&mut connection).unwrap();
    assert_eq!(get(address, "x-api-key: a\r\n").await.header("x-sluice-store-failure"), "nonsense");
    assert_eq!(get(address, "x-api-key: b\r\n").await.header("x-sluice-store-failure"), "");
    assert_eq!(FAULTS.map(|word| faults(&sidecar, word)), [0, 0, 0, 0, 0, 0, 1, 3]);
    assert_eq!(metric(&sidecar.metrics(), "sluice_store_healthy"), 1, "as all other keys are answered");

    redis.kill();
    notices(&sidecar).await;
    let before = faults(&sidecar, "unreachable");
    assert!(before > 0);
    assert_eq!(get(address, "x-api-key: a\r\n").await.header("x-sluice-store-failure"), "unreachable");
    assert_eq!(faults(&sidecar, "unreachable"), before + 1);
}

#[tokio::test]
async fn each_help_text_of_the_store_stands_by_itself() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let sidecar = pod(&application, &choice(&redis), &[policy("p", "Leased", "Share", 100)], (0, 1)).await;
    let text = sidecar.metrics();
    let helps: BTreeMap<_, _> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP sluice_")?.split_once(' '))
        .filter(|(name, _)| ["store_", "lease_", "share_", "denials_"].iter().any(|of| name.starts_with(of)))
        .collect();
    assert!(helps.len() >= 24, "{helps:#?}");
    for (name, help) in &helps {
        let points = ["Of th", "those", "see ", "above", "below"].iter().any(|word| help.contains(word));
        assert!(!points, "{name} points elsewhere: {help}");
        assert!(!name.starts_with("lease_") || help.contains("leased limit"), "{name}: {help}");
        assert!(
            !name.starts_with("lease_quota") || help.contains("in requests"),
            "{name} has no unit: {help}"
        );
        assert!(!name.contains("seconds") || help.contains("in seconds"), "{name} has no unit: {help}");
    }
    let texts: std::collections::BTreeSet<_> = helps.values().collect();
    assert_eq!(texts.len(), helps.len(), "two say the same");
}

/// Two crates say it: what validates policies, and what takes the leases.
#[test]
fn what_can_be_leased_is_what_validation_says() {
    use sluice_limiter::{
        Algorithm, Alignment, Burst, MaxWait, Period, Rate, Requests, Soft, SubWindows, WarmUp,
    };
    use sluice_store::LimitSpec;
    use sluice_store::{Consistency, LimitPlan, OnStoreFailure, Replicas};
    let mut rates = Vec::new();
    for millis in [1, 40, 50, 60, 999, 1_000, 1_200, 3_000, 60_000, YEAR] {
        for requests in [0, 1, 7, 1_000] {
            let burst = |n| Burst::new(n).unwrap();
            let window = |slots| Algorithm::SlidingWindowCounter {
                sub_windows: SubWindows::new(slots).unwrap(),
                bound: sluice_limiter::Bound::Estimate,
            };
            for algorithm in [
                window(1),
                window(20),
                Algorithm::FixedWindow(Alignment::FirstRequest),
                Algorithm::FIXED_WINDOW,
                Algorithm::TokenBucket { burst: burst(1) },
                Algorithm::TokenBucket { burst: burst(1_000) },
                Algorithm::Gcra { burst: burst(20) },
                Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(1_000).unwrap() },
                Algorithm::SlidingWindowLog { min_interval: 0, count_denied: false },
                Algorithm::WarmUp(WarmUp::new(1_000, 3).unwrap()),
            ] {
                let (requests, period) =
                    (Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap());
                let rate = Rate::new(requests, period, algorithm);
                rates.extend(rate.ok());
                rates.extend(rate.ok().and_then(|rate| rate.with_soft(Soft::new(20, 1_000).unwrap()).ok()));
            }
        }
    }
    let (mut can, mut cannot) = (0, 0);
    for (n, rate) in rates.iter().enumerate() {
        for rates in [vec![*rate], vec![*rate, rates[(n * 7 + 3) % rates.len()]]] {
            let said = sluice_config::rate::can_be_leased(&rates);
            let spec = Arc::new(LimitSpec::new("n/p/l", rates.clone()));
            let plan =
                LimitPlan::new(spec, Consistency::Leased, OnStoreFailure::Share, false, Replicas::alone());
            assert_eq!(said, plan.is_leased(), "{rates:?}");
            *(if said { &mut can } else { &mut cannot }) += 1;
        }
    }
    assert!(can > 100 && cannot > 100, "{can} {cannot}");
}
