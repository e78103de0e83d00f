//! Delays of leaky buckets in the proxy: how long requests wait, and what happens when their clients
//! disconnect.

use std::time::{Duration, Instant};

use sluice_config::store_access::StoreChoice;
use sluice_sidecar::Sidecar;

use crate::support::*;

/// Returns a limit in JSON: one request per `period` for each `x-api-key`, after a delay of at most
/// `max_wait`, both in milliseconds.
fn leaky(name: &str, period: u64, max_wait: u64, mode: &str) -> String {
    format!(
        r#"{{"name":"{name}","mode":"{mode}","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],
        "kind":{{"rates":{{"base":[{{"requests":1,"periodMillis":{period},"algorithm":{{"leakyBucket":{{"maxWaitMillis":{max_wait}}}}}}}]}}}}}}"#
    )
}

fn waiting(sidecar: &Sidecar) -> u64 {
    metric(
        &sidecar.metrics(),
        "sluice_waiting_requests{policy_namespace=\"shop\",policy=\"checkout\",limit=\"l\"}",
    )
}

/// Waits until this number of requests is delayed.
async fn until_waiting(sidecar: &Sidecar, expected: u64) {
    let look = async {
        while waiting(sidecar) != expected {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), look).await.expect("the gauge never reached the value");
}

/// Sends a request without reading its response.
async fn send_request(sidecar: &Sidecar) -> Client {
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    client
}

const HOUR: u64 = 3_600_000;

/// The store's clock does not move, so the requests are 100 ms apart. The delays pass in real time.
#[tokio::test]
async fn requests_are_delayed_one_after_another_up_to_the_maximum_wait() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", 100, 300, "Enforce")])]);
    let begin = Instant::now();
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(send_request(&sidecar).await);
    }
    let responses = futures::future::join_all(clients.iter_mut().map(async |client| {
        let response = client.response().await;
        (response, begin.elapsed())
    }))
    .await;
    let mut admitted: Vec<Duration> =
        responses.iter().filter(|(response, _)| response.status == 200).map(|(_, after)| *after).collect();
    admitted.sort_unstable();
    assert_eq!(admitted.len(), 4, "immediately, and after 100, 200 and 300 ms");
    for (n, after) in admitted.iter().enumerate() {
        assert!(*after >= Duration::from_millis(100 * n as u64), "{admitted:?}");
    }
    for (denied, _) in responses.iter().filter(|(response, _)| response.status != 200) {
        assert_eq!((denied.status, denied.header("retry-after")), (429, "1"));
        let detail = &denied.json()["detail"];
        assert_eq!(
            detail,
            "Limit l forwards 1 request per 100 milliseconds, with a delay of at most 300 milliseconds. Try again in 1 second."
        );
    }
    assert_eq!((application.count(), waiting(&sidecar)), (4, 0));
    let other = get(sidecar.addresses()[0], "x-api-key: other\r\n").await;
    assert_eq!(other.status, 200, "another client has a queue of its own");
}

#[tokio::test]
async fn the_longest_delay_of_several_limits_applies() {
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
async fn a_shadow_limit_delays_no_request() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", HOUR, HOUR, "Shadow")])]);
    for _ in 0..3 {
        assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    }
    let metrics = sidecar.metrics();
    let name = "sluice_decisions_total{policy_namespace=\"shop\",policy=\"checkout\",limit=\"l\",outcome=\"shadow_denied\"}";
    assert_eq!(metric(&metrics, name), 1, "{metrics}");
}

#[tokio::test]
async fn a_client_that_disconnects_leaves_the_delay_queue() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", HOUR, HOUR, "Enforce")])]);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    for request in
        ["GET / HTTP/1.1\r\nhost: a\r\n\r\n", "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello"]
    {
        let mut leaving = Client::connect(sidecar.addresses()[0]).await;
        leaving.send(request).await;
        until_waiting(&sidecar, 1).await;
        // The delay after this one would exceed the maximum.
        assert_eq!(get(sidecar.addresses()[0], "").await.status, 429);
        drop(leaving);
        until_waiting(&sidecar, 0).await;
    }
    assert_eq!(application.count(), 1, "no request of a client that disconnected");
}

#[tokio::test]
async fn an_http2_stream_that_is_reset_leaves_the_delay_queue() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", HOUR, HOUR, "Enforce")])]);
    let (mut sender, _connection) = http2(sidecar.addresses()[0]).await;
    let request = || http::Request::get("http://a/").body(http_body_util::Full::default()).unwrap();
    assert_eq!(sender.send_request(request()).await.unwrap().status(), 200);
    for _ in 0..2 {
        let delayed = tokio::spawn(sender.send_request(request()));
        until_waiting(&sidecar, 1).await;
        delayed.abort();
        until_waiting(&sidecar, 0).await;
    }
    assert_eq!(application.count(), 1);
}

#[tokio::test]
async fn a_full_delay_queue_rejects_requests_and_charges_nothing() {
    const MAX_WAITING: u64 = 1000;
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", 1000, HOUR, "Enforce")])]);
    let address = sidecar.addresses()[0];
    assert_eq!(get(address, "").await.status, 200);
    let request = || http::Request::get("http://a/").body(http_body_util::Full::default()).unwrap();
    let mut senders = Vec::new();
    for _ in 0..5 {
        senders.push(http2(address).await.0);
    }
    let requests: Vec<_> = (0..MAX_WAITING as usize)
        .map(|n| tokio::spawn(senders[n % 5].clone().send_request(request())))
        .collect();
    until_waiting(&sidecar, MAX_WAITING).await;
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
    requests.iter().for_each(tokio::task::JoinHandle::abort);
    until_waiting(&sidecar, 0).await;
}

#[tokio::test]
async fn delayed_requests_are_served_while_the_sidecar_ends() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", 300, HOUR, "Enforce")])]);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    let mut delayed = send_request(&sidecar).await;
    until_waiting(&sidecar, 1).await;
    let end = tokio::spawn(sidecar.shutdown(Duration::ZERO, Duration::from_secs(60)));
    assert_eq!(delayed.response().await.status, 200);
    end.await.unwrap();
}

#[tokio::test]
async fn an_edit_keeps_delayed_requests() {
    let application = Application::start().await;
    let sidecar = sidecar_with(application.address, &[policy(&[leaky("l", 500, HOUR, "Enforce")])]);
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 200);
    let mut delayed = send_request(&sidecar).await;
    until_waiting(&sidecar, 1).await;
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[leaky("l", 400, HOUR, "Enforce")])]);
    assert_eq!(waiting(&sidecar), 1);
    assert_eq!(delayed.response().await.status, 200);
    until_waiting(&sidecar, 0).await;
}
