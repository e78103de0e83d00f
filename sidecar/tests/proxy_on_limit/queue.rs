use std::time::Duration;

use sluice_config::store_access::StoreChoice;
use sluice_limiter::Millis;
use sluice_sidecar::Sidecar;
use sluice_store::Clock;

use super::support::*;
use super::{decisions, limited};

/// One request in 100 ms; the others wait for up to a minute.
const PERIOD: u64 = 100;

fn queue(max_wait: u64, max_length: u64, order: &str) -> String {
    let max_wait = Millis(max_wait);
    format!(r#","onLimit":{{"queue":{{"maxWait":"{max_wait}","maxLength":{max_length},"order":"{order}"}}}}"#)
}

fn waiting(sidecar: &Sidecar) -> u64 {
    metric(
        &sidecar.metrics(),
        "sluice_waiting_requests{policy_namespace=\"shop\",policy=\"checkout\",limit=\"l\"}",
    )
}

/// Waits until this holds. Nothing is measured against the bound.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let look = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), look).await.unwrap_or_else(|_| panic!("{what}"));
}

/// Sends a request for a path without reading its response.
async fn send(sidecar: &Sidecar, path: &str, headers: &str) -> Client {
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send(format!("GET /{path} HTTP/1.1\r\nhost: a\r\n{headers}\r\n")).await;
    client
}

async fn start(limits: &[String]) -> (Application, Sidecar, Clock) {
    let application = Application::start().await;
    let (sidecar, clock) = sidecar(application.address);
    publish(&sidecar, &StoreChoice::Memory, &[policy(limits)]);
    (application, sidecar, clock)
}

/// Uses up the limit, and lets this number of requests wait, for the paths 1, 2, 3, ...
async fn wait_in_line(sidecar: &Sidecar, number: u64) -> Vec<Client> {
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    let before = waiting(sidecar);
    let mut clients = Vec::new();
    for n in 1..=number {
        clients.push(send(sidecar, &n.to_string(), "").await);
        until("the request waits", || waiting(sidecar) == before + n).await;
    }
    clients
}

fn paths(application: &Application) -> Vec<String> {
    application.seen.lock().unwrap().iter().skip(1).map(|parts| parts.uri.path()[1..].to_owned()).collect()
}

#[tokio::test]
async fn requests_wait_until_the_limit_admits_them_in_the_order_of_the_queue() {
    for (order, expected) in [("Fifo", ["1", "2", "3"]), ("Lifo", ["3", "2", "1"])] {
        let limit = limited("l", 1, PERIOD, "", &queue(60_000, 100, order));
        let (application, sidecar, clock) = start(&[limit]).await;
        let mut clients = wait_in_line(&sidecar, 3).await;
        for n in 1..=3 {
            clock.advance(PERIOD);
            until("the next one is forwarded", || application.count() == 1 + n).await;
            assert_eq!(waiting(&sidecar), 3 - n as u64);
        }
        assert_eq!(paths(&application), expected, "{order}");
        for client in &mut clients {
            assert_eq!(client.response().await.status, 200);
        }
        let counted = ["admitted", "denied"].map(|outcome| decisions(&sidecar, "l", outcome));
        assert_eq!(counted, [4, 0], "a wait is no denial");
    }
}

#[tokio::test]
async fn each_key_has_a_line_of_its_own() {
    let (application, sidecar, _clock) =
        start(&[limited("l", 1, PERIOD, "", &queue(60_000, 100, "Fifo"))]).await;
    let _waiting = wait_in_line(&sidecar, 2).await;
    assert_eq!(get(sidecar.addresses()[0], "x-api-key: other\r\n").await.status, 200);
    assert_eq!((application.count(), waiting(&sidecar)), (2, 2));
}

#[tokio::test]
async fn a_full_queue_rejects_the_newest_or_the_oldest() {
    let limit = |order| limited("l", 1, PERIOD, "", &queue(60_000, 2, order));
    let (_application, sidecar, _clock) = start(&[limit("Fifo")]).await;
    let mut clients = wait_in_line(&sidecar, 2).await;
    let full = get(sidecar.addresses()[0], "").await;
    assert_eq!((full.status, full.header("retry-after")), (429, "1"));
    assert_eq!(
        full.json()["detail"],
        "Limit l: 2 requests are already waiting in its queue. Try again in 1 second."
    );
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limit("Lifo")])]);
    let _newest = send(&sidecar, "newest", "").await;
    let evicted = clients[0].response().await;
    assert_eq!(evicted.status, 429);
    assert_eq!(
        evicted.json()["detail"],
        "Limit l: a newer request has taken its place in the queue, which is full. Try again in 1 second."
    );
    assert_eq!((waiting(&sidecar), decisions(&sidecar, "l", "denied")), (2, 2));
}

#[tokio::test]
async fn who_would_have_to_wait_too_long_is_rejected_immediately() {
    let limit = limited("l", 1, 3_600_000, "", &queue(1_000, 100, "Fifo"));
    let (application, sidecar, _clock) = start(&[limit]).await;
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    let denied = get(sidecar.addresses()[0], "").await;
    assert_eq!((denied.status, application.count(), waiting(&sidecar)), (429, 1, 0));
    assert!(denied.header("ratelimit").starts_with("\"l\";r=0;t="), "{denied:?}");
    assert_eq!(decisions(&sidecar, "l", "denied"), 1);
}

/// The store's clock does not move, so the limit never has room.
#[tokio::test]
async fn nobody_waits_longer_than_the_maximum() {
    let limit = limited("l", 1, PERIOD, "", &queue(300, 100, "Fifo"));
    let (application, sidecar, _clock) = start(&[limit]).await;
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    let mut clients = [send(&sidecar, "1", "").await, send(&sidecar, "2", "").await];
    for client in &mut clients {
        let denied = client.response().await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, "1"));
    }
    assert_eq!((application.count(), waiting(&sidecar), decisions(&sidecar, "l", "denied")), (1, 0, 2));
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_place() {
    let (application, sidecar, clock) =
        start(&[limited("l", 1, PERIOD, "", &queue(60_000, 100, "Fifo"))]).await;
    let mut clients = wait_in_line(&sidecar, 3).await;
    clients.remove(0);
    until("the first one leaves", || waiting(&sidecar) == 2).await;
    clock.advance(PERIOD);
    assert_eq!(clients[0].response().await.status, 200);
    assert_eq!(paths(&application), ["2"]);
    clients.clear();
    until("all leave", || waiting(&sidecar) == 0).await;
}

#[tokio::test]
async fn a_new_policy_decides_waiting_requests_anew() {
    let limit = |requests, extra: &str| limited("l", requests, 3_600_000, "", extra);
    let patient = queue(300_000, 100, "Fifo");
    // Windows of an hour: without the change nobody would be admitted in time.
    let (application, sidecar, clock) = start(&[limited("l", 1, PERIOD, "", &patient)]).await;
    let mut clients = wait_in_line(&sidecar, 3).await;
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limited("l", 3, PERIOD, "", &patient)])]);
    until("two more are admitted", || application.count() == 3).await;
    assert_eq!((paths(&application), waiting(&sidecar)), (vec!["1".into(), "2".into()], 1));
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limit(0, "")])]);
    assert_eq!(clients[2].response().await.status, 429, "the new limit has no queue");
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limited("l", 1, PERIOD, "", &patient)])]);
    clock.advance(PERIOD);
    let mut clients = wait_in_line(&sidecar, 2).await;
    publish(&sidecar, &StoreChoice::Memory, &[]);
    for client in &mut clients {
        assert_eq!(client.response().await.status, 200, "there is no limit any more");
    }
}

#[tokio::test]
async fn shutdown_answers_waiting_requests() {
    let (application, sidecar, _clock) =
        start(&[limited("l", 1, PERIOD, "", &queue(300_000, 100, "Fifo"))]).await;
    let mut clients = wait_in_line(&sidecar, 2).await;
    let stopping = tokio::spawn(sidecar.shutdown(Duration::ZERO, Duration::from_secs(60)));
    for client in &mut clients {
        let answer = client.response().await;
        assert_eq!((answer.status, answer.header("connection")), (503, "close"));
        assert!(
            answer.body.contains("the server is stopping") && answer.header("retry-after") == "1",
            "{answer:?}"
        );
    }
    stopping.await.unwrap();
    assert_eq!(application.count(), 1);
}

#[tokio::test]
async fn a_limit_that_rejects_decides_before_anything_waits() {
    let tenants =
        limited("t", 1, 3_600_000, "", "").replace("x-api-key", "x-tenant").replace("Shared", "Skip");
    let limits = [limited("l", 1, PERIOD, "", &queue(60_000, 100, "Fifo")), tenants];
    let (application, sidecar, clock) = start(&limits).await;
    let mut clients = wait_in_line(&sidecar, 1).await;
    clients.push(send(&sidecar, "tenant", "x-tenant: a\r\n").await);
    until("the tenant waits", || waiting(&sidecar) == 2).await;
    let address = sidecar.addresses()[0];
    assert_eq!(get(address, "x-api-key: other\r\nx-tenant: a\r\n").await.status, 200);
    let rejected = get(address, "x-tenant: a\r\n").await;
    assert_eq!((rejected.status, waiting(&sidecar)), (429, 2));
    assert_eq!(rejected.json()["violated-policies"], serde_json::json!(["t"]));
    clock.advance(PERIOD);
    assert_eq!(clients[0].response().await.status, 200);
    clock.advance(PERIOD);
    assert_eq!(clients[1].response().await.status, 429, "at its turn, the other limit has no room");
    assert_eq!(application.count(), 3);
}

/// A line passes more and more requests at a time when the limit has room, or a burst would never end.
#[tokio::test]
async fn a_line_empties_when_the_limit_has_room() {
    let (application, sidecar, clock) =
        start(&[limited("l", 100, PERIOD, "", &queue(60_000, 1000, "Fifo"))]).await;
    let mut clients = Vec::new();
    for n in 0..250u64 {
        clients.push(send(&sidecar, &n.to_string(), "").await);
        until("it is forwarded or waits", || application.count() as u64 + waiting(&sidecar) == n + 1).await;
    }
    assert_eq!((application.count(), waiting(&sidecar)), (100, 150));
    clock.advance(PERIOD);
    until("a hundred more pass", || application.count() == 200).await;
    clock.advance(PERIOD);
    until("all have passed", || application.count() == 250).await;
    assert_eq!((waiting(&sidecar), decisions(&sidecar, "l", "denied")), (0, 0));
}

#[tokio::test]
async fn a_request_that_meets_a_limit_with_denials_that_count_does_not_wait() {
    let strict = limited("strict", 50, 3_600_000, "", "")
        .replace(r#"{"fixedWindow":"Clock"}"#, r#"{"fixedWindow":"Clock"},"countDenied":true"#);
    let (_application, sidecar, _clock) =
        start(&[limited("l", 1, PERIOD, "", &queue(60_000, 100, "Fifo")), strict]).await;
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 429);
    assert_eq!(waiting(&sidecar), 0);
}

#[tokio::test]
async fn a_request_that_waits_counts_once_in_shadow_mode_too() {
    let shadow = limited("s", 9, 3_600_000, "", r#","mode":"Shadow""#);
    let (_application, sidecar, clock) =
        start(&[limited("l", 1, PERIOD, "", &queue(60_000, 100, "Fifo")), shadow]).await;
    let mut clients = wait_in_line(&sidecar, 1).await;
    clock.advance(PERIOD);
    assert_eq!(clients[0].response().await.status, 200);
    assert_eq!(decisions(&sidecar, "s", "admitted"), 2);
}

#[tokio::test]
async fn requests_wait_for_every_algorithm() {
    for algorithm in [
        r#"{"slidingWindowCounter":{"subWindows":1,"bound":"Estimate"}}"#,
        r#"{"slidingWindowCounter":{"subWindows":4,"bound":"Guaranteed"}}"#,
        r#"{"fixedWindow":"FirstRequest"}"#,
        r#"{"slidingWindowLog":{"minIntervalMillis":0}}"#,
        r#"{"tokenBucket":{"burst":1}}"#,
        r#"{"gcra":{"burst":1}}"#,
        r#"{"leakyBucket":{"maxWaitMillis":0}}"#,
        r#"{"warmUp":{"periodMillis":1000,"coldFactor":3}}"#,
    ] {
        let limit = limited("l", 1, PERIOD, "", &queue(60_000, 100, "Fifo"));
        let limit = limit.replace(r#"{"fixedWindow":"Clock"}"#, algorithm);
        let (application, sidecar, clock) = start(&[limit]).await;
        let mut clients = wait_in_line(&sidecar, 1).await;
        assert_eq!(application.count(), 1, "{algorithm}");
        clock.advance(10 * PERIOD);
        assert_eq!(clients[0].response().await.status, 200, "{algorithm}");
    }
}

#[tokio::test]
async fn requests_wait_for_a_slot() {
    let limit = format!(
        r#"{{"name":"l","mode":"Enforce","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],
        "kind":{{"slots":{{"max":1,"leaseMillis":30000,"abandonedForMillis":30000}}}}{}}}"#,
        queue(60_000, 100, "Fifo")
    );
    let (application, sidecar, _clock) = start(&[limit]).await;
    let mut first = Client::connect(sidecar.addresses()[0]).await;
    first.send("POST /first HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n").await;
    until("the first one is forwarded", || application.count() == 1).await;
    let mut second = send(&sidecar, "second", "").await;
    until("the second one waits", || waiting(&sidecar) == 1).await;
    assert_eq!(application.count(), 1);
    first.send("x").await;
    assert_eq!((first.response().await.status, second.response().await.status), (200, 200));
    assert_eq!(paths(&application), ["second"]);
}

/// A request that waits for its rate takes nothing of the other limit, and at its turn both have room or neither counts it.
#[tokio::test]
async fn who_waits_for_a_rate_holds_no_slot_and_both_decide_together_at_its_turn() {
    // One slot for all clients together.
    let slots = r#"{"name":"s","mode":"Enforce","onMissing":"Shared","kind":{"slots":{"max":1,"leaseMillis":30000,"abandonedForMillis":30000}}}"#;
    let limits = [limited("l", 1, PERIOD, "", &queue(60_000, 100, "Fifo")), slots.to_owned()];
    let (application, sidecar, clock) = start(&limits).await;
    let address = sidecar.addresses()[0];
    let mut clients = wait_in_line(&sidecar, 2).await;
    assert_eq!(get(address, "x-api-key: other\r\n").await.status, 200, "the slot is free");
    let mut holder = Client::connect(address).await;
    holder.send("POST / HTTP/1.1\r\nhost: a\r\nx-api-key: holder\r\ncontent-length: 1\r\n\r\n").await;
    until("the slot is held", || application.count() == 3).await;
    clock.advance(PERIOD);
    for client in &mut clients {
        let denied = client.response().await;
        assert_eq!((denied.status, &denied.json()["violated-policies"]), (429, &serde_json::json!(["s"])));
    }
    holder.send("x").await;
    assert_eq!(holder.response().await.status, 200);
    // The rate has counted nobody in this period, so who comes now does not wait, as soon as the slot is free.
    let mut answer = get(address, "").await;
    while answer.status != 200 {
        assert_eq!(answer.json()["violated-policies"], serde_json::json!(["s"]));
        answer = get(address, "").await;
    }
    assert_eq!((waiting(&sidecar), application.count()), (0, 4));
}
