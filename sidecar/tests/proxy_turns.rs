//! Leaky buckets in the proxy: who waits, for how long, and what becomes of those who go away.

mod support;

use std::time::{Duration, Instant};

use sluice_sidecar::{Sidecar, StoreChoice};
use support::*;

/// A limit in JSON: one in so many milliseconds for each `x-api-key`, after a wait of at most so many.
fn leaky(name: &str, period: u64, max_wait: u64, mode: &str) -> String {
    format!(
        r#"{{"name":"{name}","mode":"{mode}","onMissing":"Shared","key":[{{"header":"x-api-key"}}],
        "rates":[{{"requests":1,"periodMillis":{period},"algorithm":{{"leakyBucket":{{"maxWaitMillis":{max_wait}}}}}}}]}}"#
    )
}

fn waiting(sidecar: &Sidecar) -> u64 {
    metric(&sidecar.metrics(), "sluice_waiting_requests{policy=\"shop/checkout\",limit=\"l\"}")
}

/// Until so many wait.
async fn wait_for(sidecar: &Sidecar, expected: u64) {
    let look = async {
        while waiting(sidecar) != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), look).await.expect("the gauge says so");
}

/// A request that waits: its head is sent, and nobody reads the answer yet.
async fn ask(sidecar: &Sidecar) -> Client {
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    client
}

const HOUR: u64 = 3_600_000;

/// The store's clock stands still: the turns are one after another, and the waits are real.
#[tokio::test]
async fn each_request_waits_for_its_turn_and_nobody_longer_than_allowed() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", 100, 300, "Enforce")])]);
    let begin = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(ask(&sidecar).await);
    }
    let answers = futures::future::join_all(clients.iter_mut().map(async |client| {
        let answer = client.answer().await;
        (answer, begin.elapsed())
    }))
    .await;
    let mut admitted: Vec<Duration> =
        answers.iter().filter(|(answer, _)| answer.status == 200).map(|(_, after)| *after).collect();
    admitted.sort_unstable();
    assert_eq!(admitted.len(), 4, "at once, after 100, 200 and 300 ms");
    for (n, after) in admitted.iter().enumerate() {
        assert!(*after >= Duration::from_millis(100 * n as u64), "{admitted:?}");
    }
    for (denied, _) in answers.iter().filter(|(answer, _)| answer.status != 200) {
        assert_eq!((denied.status, denied.header("retry-after")), (429, "1"));
        let detail = &denied.json()["detail"];
        assert_eq!(
            detail,
            "Limit l forwards 1 requests per 100ms, with a delay of at most 300ms. Try again in 1 s."
        );
    }
    assert_eq!((application.count(), waiting(&sidecar)), (4, 0));
    let other = get(sidecar.addresses()[0], "x-api-key: other\r\n").await;
    assert_eq!(other.status, 200, "another client has a queue of its own");
}

#[tokio::test]
async fn the_longest_wait_of_several_limits_counts() {
    let application = Application::start().await;
    let limits = [leaky("short", 20, HOUR, "Enforce"), leaky("long", 200, HOUR, "Enforce")];
    let sidecar = sidecar_with(application.address, &[policy(&limits)]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    assert_eq!(client.get("").await.status, 200);
    let begin = Instant::now();
    assert_eq!(client.get("").await.status, 200);
    assert!(begin.elapsed() >= Duration::from_millis(200), "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_shadow_limit_never_makes_anybody_wait() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", HOUR, HOUR, "Shadow")])]);
    for _ in 0..3 {
        assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    }
    let metrics = sidecar.metrics();
    let name = "sluice_decisions_total{policy=\"shop/checkout\",limit=\"l\",outcome=\"shadow_denied\"}";
    assert_eq!(metric(&metrics, name), 1, "{metrics}");
}

#[tokio::test]
async fn a_client_that_goes_away_gives_its_place_back() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", HOUR, HOUR, "Enforce")])]);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    for request in
        ["GET / HTTP/1.1\r\nhost: a\r\n\r\n", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"]
    {
        let mut gone = Client::connect(sidecar.addresses()[0]).await;
        gone.send(request).await;
        wait_for(&sidecar, 1).await;
        // Its place is the last one that may be waited for.
        assert_eq!(get(sidecar.addresses()[0], "").await.status, 429);
        drop(gone);
        wait_for(&sidecar, 0).await;
    }
    assert_eq!(application.count(), 1, "nobody whose client has gone");
}

#[tokio::test]
async fn an_http2_stream_that_is_reset_gives_its_place_back() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", HOUR, HOUR, "Enforce")])]);
    let (mut sender, _connection) = http2(sidecar.addresses()[0]).await;
    let request = || http::Request::get("http://a/").body(http_body_util::Full::default()).unwrap();
    assert_eq!(sender.send_request(request()).await.unwrap().status(), 200);
    for _ in 0..2 {
        let waits = tokio::spawn(sender.send_request(request()));
        wait_for(&sidecar, 1).await;
        waits.abort();
        wait_for(&sidecar, 0).await;
    }
    assert_eq!(application.count(), 1);
}

#[tokio::test]
async fn beyond_a_thousand_who_wait_others_are_rejected_and_charged_nothing() {
    const MOST: u64 = 1000;
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", 1000, HOUR, "Enforce")])]);
    let address = sidecar.addresses()[0];
    assert_eq!(get(address, "").await.status, 200);
    let request = || http::Request::get("http://a/").body(http_body_util::Full::default()).unwrap();
    let mut senders = Vec::new();
    for _ in 0..5 {
        senders.push(http2(address).await.0);
    }
    let asked: Vec<_> =
        (0..MOST as usize).map(|n| tokio::spawn(senders[n % 5].clone().send_request(request()))).collect();
    wait_for(&sidecar, MOST).await;
    for _ in 0..2 {
        let denied = get(address, "").await;
        assert_eq!((denied.status, denied.header("retry-after")), (429, "1001"), "{}", denied.body);
        assert!(
            denied.body.contains("1000 requests are already waiting in its delay queue"),
            "{}",
            denied.body
        );
        assert!(denied.body.contains("temporary-reduced-capacity"), "{}", denied.body);
    }
    asked.iter().for_each(tokio::task::JoinHandle::abort);
    wait_for(&sidecar, 0).await;
}

#[tokio::test]
async fn who_waits_is_served_while_a_sidecar_ends() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", 300, HOUR, "Enforce")])]);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    let mut waits = ask(&sidecar).await;
    wait_for(&sidecar, 1).await;
    let end = tokio::spawn(sidecar.shutdown(Duration::ZERO, Duration::from_secs(60)));
    assert_eq!(waits.answer().await.status, 200);
    end.await.unwrap();
}

#[tokio::test]
async fn a_new_policy_does_not_forget_who_waits() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", 500, HOUR, "Enforce")])]);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    let mut waits = ask(&sidecar).await;
    wait_for(&sidecar, 1).await;
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[leaky("l", 400, HOUR, "Enforce")])]);
    assert_eq!(waiting(&sidecar), 1);
    assert_eq!(waits.answer().await.status, 200);
    wait_for(&sidecar, 0).await;
}
