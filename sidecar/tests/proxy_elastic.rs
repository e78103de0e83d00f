//! Elastic limits: the higher number holds while the application has capacity to spare, and for the same counts.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use sluice_sidecar::Sidecar;
use support::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::watch;

/// 3 an hour, 5 while less than half of a capacity of 2 is used.
const ELASTIC: &str = r#"{"name":"l","mode":"Enforce","onMissing":"Shared","key":[{"header":"x-api-key"}],
    "rates":[{"requests":3,"periodMillis":3600000,"algorithm":{"elastic":{"algorithm":"fixedWindow","requests":5,
    "belowPercent":50,"capacity":{"inFlight":2}}}}]}"#;

/// An application that answers when it is told to.
async fn application() -> (std::net::SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (answers, may) = watch::channel(true);
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
    (address, answers)
}

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

const RAISED: &str = "sluice_limit_raised{policy=\"shop/checkout\",limit=\"l\"}";
const IN_FLIGHT: &str = "sluice_requests_in_flight";

#[tokio::test]
async fn the_higher_number_holds_while_the_application_is_not_busy() {
    let (address, answers) = application().await;
    let sidecar = sidecar_with(address, &[policy(&[ELASTIC.into(), limit("free", 100, "")])]);
    let ask = async |key| get(sidecar.addresses()[0], &format!("x-api-key: {key}\r\n")).await;
    let policy =
        |answer: &CheckResponse| answer.header("ratelimit-policy").split(',').next().unwrap().to_owned();
    let usual = ask("first").await;
    assert_eq!(policy(&usual), "\"l\";q=3;w=3600", "nothing is spare before it was measured");
    until(&sidecar, RAISED, 1).await;
    let raised = ask("first").await;
    assert_eq!((policy(&raised).as_str(), raised.header("x-ratelimit-limit")), ("\"l\";q=5;w=3600", "5"));
    assert_eq!(raised.header("x-ratelimit-remaining"), "3", "of 5, two are used: it counts on");
    for _ in 0..2 {
        assert_eq!(ask("first").await.status, 200);
    }

    // Two requests stay at the application.
    answers.send(false).unwrap();
    let mut clients = Vec::new();
    for key in ["busy", "busier"] {
        let mut client = Client::connect(sidecar.addresses()[0]).await;
        client.send(format!("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: {key}\r\n\r\n")).await;
        clients.push(client);
    }
    until(&sidecar, IN_FLIGHT, 2).await;
    until(&sidecar, RAISED, 0).await;
    let denied = ask("first").await;
    assert_eq!((denied.status, policy(&denied).as_str()), (429, "\"l\";q=3;w=3600"), "{}", denied.body);
    assert!(denied.body.contains("Limit l admits 3 requests per 1h"), "{}", denied.body);

    answers.send(true).unwrap();
    for client in &mut clients {
        assert_eq!(client.answer().await.status, 200);
    }
    until(&sidecar, IN_FLIGHT, 0).await;
    until(&sidecar, RAISED, 1).await;
    assert_eq!(ask("first").await.status, 200, "the fifth");
    let denied = ask("first").await;
    assert!(denied.status == 429 && denied.body.contains("admits 5 requests per 1h"), "{}", denied.body);
}

#[tokio::test]
async fn a_request_is_in_flight_until_the_end_of_its_answer() {
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

    // And no longer than its client.
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    until(&sidecar, IN_FLIGHT, 1).await;
    drop(client);
    until(&sidecar, IN_FLIGHT, 0).await;
}
