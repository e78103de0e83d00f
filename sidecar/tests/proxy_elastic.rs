//! Elastic limits: the boosted rates apply while the application has spare capacity, to the same counters.

use std::time::Duration;

use sluice_sidecar::Sidecar;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::*;

/// A limit of 3 per hour, boosted to 5 while less than half of a capacity of 2 is used.
const ELASTIC: &str = r#"{"name":"l","mode":"Enforce","onMissing":"Shared","key":[{"header":{"name":"x-api-key"}}],
    "kind":{"rates":{"base":[{"requests":3,"periodMillis":3600000,"algorithm":{"fixedWindow":"Clock"}}],
    "boosted":{"requests":5,"belowPercent":50,"capacity":{"inFlight":2}}}}}"#;

/// An application that responds while the sender holds `true`.
async fn application() -> (std::net::SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (respond, may) = watch::channel(true);
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let mut may = may.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while tcp.read(&mut buffer).await.is_ok_and(|n| n > 0) {
                    let _ = may.wait_for(|may| *may).await;
                    let _ = tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
                }
            });
        }
    });
    (address, respond)
}

/// Waits until a metric has this value.
async fn until(sidecar: &Sidecar, name: &str, expected: u64) {
    let look = async {
        while metric(&sidecar.metrics(), name) != expected {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), look)
        .await
        .unwrap_or_else(|_| panic!("{}", sidecar.metrics()));
}

const BOOSTED: &str = "sluice_limit_raised{policy_namespace=\"shop\",policy=\"checkout\",limit=\"l\"}";
const IN_FLIGHT: &str = "sluice_requests_in_flight";

#[tokio::test]
async fn the_boosted_rate_applies_while_the_application_has_spare_capacity() {
    let (address, respond) = application().await;
    let sidecar = sidecar_with(address, &[policy(&[ELASTIC.into(), limit("free", 100, "")])]);
    let request = async |key| get(sidecar.addresses()[0], &format!("x-api-key: {key}\r\n")).await;
    let policy =
        |response: &HttpResponse| response.header("ratelimit-policy").split(',').next().unwrap().to_owned();
    let base = request("first").await;
    assert_eq!(policy(&base), "\"l\";q=3;w=3600", "no capacity is spare before it was measured");
    until(&sidecar, BOOSTED, 1).await;
    let boosted = request("first").await;
    assert_eq!((policy(&boosted).as_str(), boosted.header("x-ratelimit-limit")), ("\"l\";q=5;w=3600", "5"));
    assert_eq!(boosted.header("x-ratelimit-remaining"), "3", "two of 5 are used: the counter is the same");
    for _ in 0..2 {
        assert_eq!(request("first").await.status, 200);
    }

    // Two requests stay at the application.
    respond.send(false).unwrap();
    let mut clients = Vec::new();
    for key in ["busy", "busier"] {
        let mut client = Client::connect(sidecar.addresses()[0]).await;
        client.send(format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\n\r\n")).await;
        clients.push(client);
    }
    until(&sidecar, IN_FLIGHT, 2).await;
    until(&sidecar, BOOSTED, 0).await;
    let denied = request("first").await;
    assert_eq!((denied.status, policy(&denied).as_str()), (429, "\"l\";q=3;w=3600"), "{}", denied.body);
    assert!(denied.body.contains("Limit l admits 3 requests per hour"), "{}", denied.body);

    respond.send(true).unwrap();
    for client in &mut clients {
        assert_eq!(client.response().await.status, 200);
    }
    until(&sidecar, IN_FLIGHT, 0).await;
    until(&sidecar, BOOSTED, 1).await;
    assert_eq!(request("first").await.status, 200, "the fifth");
    let denied = request("first").await;
    assert!(denied.status == 429 && denied.body.contains("admits 5 requests per hour"), "{}", denied.body);
}

#[tokio::test]
async fn a_request_is_in_flight_until_its_response_ends() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sidecar = sidecar_with(listener.local_addr().unwrap(), &[]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    let (mut tcp, _) = listener.accept().await.unwrap();
    let mut buffer = [0; 4096];
    assert!(tcp.read(&mut buffer).await.unwrap() > 0);
    until(&sidecar, IN_FLIGHT, 1).await;
    tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nha").await.unwrap();
    assert!(client.line().await.contains("200"));
    assert_eq!(metric(&sidecar.metrics(), IN_FLIGHT), 1, "half of the body is missing");
    tcp.write_all(b"lf").await.unwrap();
    until(&sidecar, IN_FLIGHT, 0).await;

    // It ends with its client too.
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(&sidecar, IN_FLIGHT, 1).await;
    drop(client);
    until(&sidecar, IN_FLIGHT, 0).await;
}
