//! Waits and blocks of several pods that share a real Redis.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_config::PreparedPolicy;
use sluice_limiter::Millis;
use sluice_sidecar::Sidecar;

use super::{YEAR, until_healthy};
use crate::server::{Redis, eventually};
use crate::support::*;

/// Returns a policy of one limit of `requests` per `period`, with further members of its rates and of itself.
fn policy(requests: u64, period: u64, kind: &str, extra: &str) -> Arc<PreparedPolicy> {
    prepare(&format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Deny","consistency":"Strict","ambiguousPaths":"Match",
        "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],"kind":{{"rates":{{
            "base":[{{"requests":{requests},"periodMillis":{period},"algorithm":{{"fixedWindow":"Clock"}}}}]{kind}}}}}{extra}}}]}}"#
    ))
}

/// A queue that is longer than any wait in these tests.
const QUEUE: &str = r#","onLimit":{"queue":{"maxWait":"16666h40m","maxLength":1000,"order":"Fifo"}}"#;

async fn pod(application: &Application, redis: &Redis, policy: &Arc<PreparedPolicy>) -> Sidecar {
    let (pod, _) = sidecar(application.address);
    publish(&pod, &redis_at(&redis.url()), std::slice::from_ref(policy));
    until_healthy(&pod, true).await;
    pod
}

fn waiting(pod: &Sidecar) -> u64 {
    metric(&pod.metrics(), "sluice_waiting_requests{policy_namespace=\"shop\",policy=\"p\",limit=\"l\"}")
}

fn checks(pod: &Sidecar) -> u64 {
    metric(&pod.metrics(), "sluice_store_checks_total")
}

/// Returns the number of decisions of all pods with an outcome.
fn decisions(pods: &[Sidecar], outcome: &str) -> u64 {
    let name = format!(
        "sluice_decisions_total{{policy_namespace=\"shop\",policy=\"p\",limit=\"l\",outcome=\"{outcome}\"}}"
    );
    pods.iter().map(|pod| metric(&pod.metrics(), &name)).sum()
}

/// Lets so many requests of one key wait.
async fn wait_in_line(pod: &Sidecar, number: u64) -> Vec<Client> {
    let mut clients = Vec::new();
    for n in waiting(pod) + 1..=number {
        let mut client = Client::connect(pod.addresses()[0]).await;
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        eventually("the request waits", || async { waiting(pod) == n }).await;
        clients.push(client);
    }
    clients
}

#[tokio::test]
async fn each_window_admits_as_many_as_it_says_although_requests_wait_in_two_pods() {
    const REQUESTS: u64 = 4;
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let policy = policy(REQUESTS, 500, "", QUEUE);
    let pods = [pod(&application, &redis, &policy).await, pod(&application, &redis, &policy).await];
    let requests: Vec<_> = (0..24)
        .map(|n| {
            let address = pods[n % 2].addresses()[0];
            tokio::spawn(async move { get(address, "").await })
        })
        .collect();
    // How many requests were admitted with so many left in their window.
    let mut left = BTreeMap::<u64, u64>::new();
    for request in requests {
        let answer = request.await.unwrap();
        assert_eq!(answer.status, 200, "{answer:?}");
        *left.entry(answer.header("x-ratelimit-remaining").parse().unwrap()).or_default() += 1;
    }
    // Each window begins with 3 left, and no number occurs twice in it.
    let windows = left[&(REQUESTS - 1)];
    let full = left.get(&0).copied().unwrap_or_default();
    println!("24 requests in two pods, {REQUESTS} in 500 ms: {left:?}");
    assert!(left.values().rev().is_sorted_by(|a, b| a >= b), "{left:?}");
    assert!(windows * REQUESTS >= 24, "more than {REQUESTS} in a window: {left:?}");
    // The first and the last have fewer if they were cut, and others on a machine that stands still for half a second.
    assert!(2 * full >= windows, "windows admitted too few: {left:?}");
    assert_eq!((decisions(&pods, "admitted"), decisions(&pods, "denied")), (24, 0));
}

#[tokio::test]
async fn one_waiter_of_a_key_asks_the_store_and_after_an_admission_as_many_as_have_room() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let pod = pod(&application, &redis, &policy(1, YEAR, "", QUEUE)).await;
    let before = checks(&pod);
    assert_eq!(get(pod.addresses()[0], "").await.status, 200);
    let _clients = wait_in_line(&pod, 50).await;
    assert_eq!(checks(&pod) - before, 2, "the one that was admitted, and the first that waits");
    // An edit has the first one ask, and those behind it while there is room: 10 are admitted, and one is denied.
    let mut asked = checks(&pod);
    let mut edit = async |requests: u64, admitted: usize, most: u64| {
        publish(&pod, &redis_at(&redis.url()), &[policy(requests, YEAR, "", QUEUE)]);
        eventually("they are admitted", || async { application.count() == admitted }).await;
        let now = checks(&pod);
        assert!(now - asked <= most, "{} checks", now - asked);
        asked = now;
    };
    edit(11, 11, 11).await;
    edit(51, 51, 41).await;
    assert_eq!((waiting(&pod), decisions(&[pod], "denied")), (0, 0));
}

/// Forty guesses through each of twenty pods, all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_pods_block_a_client_after_exactly_so_many_denials() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let block = format!(r#","onLimit":{{"block":{{"after":10,"within":"{0}","for":"{0}"}}}}"#, Millis(YEAR));
    let policy = policy(5, YEAR, "", &block);
    let mut pods = Vec::new();
    for _ in 0..20 {
        pods.push(pod(&application, &redis, &policy).await);
    }
    let guesses: Vec<_> = (0..800)
        .map(|n: usize| {
            let address = pods[n % 20].addresses()[0];
            tokio::spawn(async move { get(address, "").await.status })
        })
        .collect();
    for guess in guesses {
        assert!([200, 429].contains(&guess.await.unwrap()));
    }
    let counted = ["admitted", "denied", "blocked"].map(|outcome| decisions(&pods, outcome));
    println!("20 pods, 800 guesses: {counted:?} admitted, denied and blocked");
    assert_eq!(counted, [5, 10, 785]);
    assert_eq!(application.count(), 5);
    let other = get(pods[7].addresses()[0], "x-api-key: other\r\n").await;
    assert_eq!(other.status, 200, "others are not blocked");
}
