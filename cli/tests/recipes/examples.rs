//! Examples of fields that no other example has: `examples/sessions.yaml`, `examples/costs.yaml` and `examples/per-pod.yaml`.

use std::path::Path;
use std::time::{Duration, Instant};

use super::client::Admitted::Exactly;
use super::client::{self, Client, Requests, settled, until_metric, upload};
use crate::process::signer::Signer;
use crate::process::{Run, send};

/// Returns an example with some texts replaced, each of which it has. Its shortest windows are so long that none ends.
fn example(name: &str, edits: &[(&str, &str)]) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{name}.yaml"));
    let mut text = std::fs::read_to_string(file).unwrap();
    for (from, to) in edits {
        assert!(text.contains(from), "{name}: {from}");
        text = text.replace(from, to);
    }
    text.replace("10.20.30.0/28", "127.0.0.1/32")
        .replace("per: 1m", "per: 24h")
        .replace("per: 1h", "per: 48h")
}

async fn admits(run: &Run, requests: &[Requests]) {
    let mut client = Client::new(run);
    for Requests(head, expected) in requests {
        assert_eq!(client.flood(head, *expected, 429).await, *expected, "{head:?}: {}", client.last);
    }
}

#[tokio::test]
async fn sessions_are_counted_on_each_host_and_paths_by_their_case() {
    let mut run = client::start(&example("sessions", &[])).await;
    admits(
        &run,
        &[
            Requests("GET / HTTP/1.1\r\nhost: shop.example\r\ncookie: session=a", Exactly(5)),
            Requests("GET / HTTP/1.1\r\nhost: EU.shop.example.:80\r\ncookie: b=c; session=a", Exactly(5)),
            Requests("GET /x HTTP/1.1\r\nhost: shop.example\r\ncookie: session=b", Exactly(5)),
            // A client at another address is the same session.
            Requests(
                "GET / HTTP/1.1\r\nhost: shop.example\r\ncookie: session=a\r\nx-forwarded-for: 192.0.2.1",
                Exactly(0),
            ),
            // Neither host is one of the shop's. The address has 20, of which 15 are used.
            Requests("GET / HTTP/1.1\r\nhost: xshop.example\r\ncookie: session=a", Exactly(5)),
            Requests("GET /Reports/1 HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.2", Exactly(3)),
            Requests("GET /reports/1 HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.2", Exactly(17)),
            Requests("GET /v0/orders HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.3", Exactly(0)),
        ],
    )
    .await;
    // Operators read the host, and nobody the session.
    let logged = run.logged("limit=\"per-session\"").await;
    assert!(logged.contains("client=\"host=shop.example, cookie session=hidden\""), "{logged}");
    let mut client = Client::new(&run);
    let retired = client.send("GET /V0 HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.3").await;
    assert!(retired.status == 429 && !retired.text.contains("retry-after"), "{}", retired.text);
    for path in ["/a%2fb", "/a%5cb", "/a/../b"] {
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.4");
        assert_eq!(client.send(&head).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn sessions_beyond_the_maximum_share_a_counter() {
    let run = client::start(&example("sessions", &[])).await;
    let mut client = Client::new(&run);
    let mut send = async |session: usize| {
        let address = format!("10.0.{}.{}", session / 250, session % 250);
        let head = format!(
            "GET / HTTP/1.1\r\nhost: shop.example\r\ncookie: session={session}\r\nx-forwarded-for: {address}"
        );
        client.send(&head).await.status
    };
    for session in 0..10_005 {
        assert_eq!(send(session).await, 200, "{session}");
    }
    assert_eq!(send(10_005).await, 429, "the sixth of those that share a counter");
    assert_eq!(send(9_999).await, 200, "the last with a counter of its own");
}

#[tokio::test]
async fn costs_are_what_requests_and_responses_say() {
    let run = client::start(&example(
        "costs",
        &[("requests: 1000000000,", "requests: 1000,"), ("reserve: 1000000}", "reserve: 100}")],
    ))
    .await;
    admits(
        &run,
        &[
            // 10 of 35 in one limit, and 1 of 35 in the other.
            Requests("GET /reports/export HTTP/1.1\r\nhost: a", Exactly(3)),
            Requests("GET /reports/1 HTTP/1.1\r\nhost: a", Exactly(32)),
            Requests("GET /batch HTTP/1.1\r\nhost: a\r\nx-items: 30", Exactly(3)),
            Requests("GET /batch HTTP/1.1\r\nhost: a", Exactly(10)),
        ],
    )
    .await;
    let mut client = Client::new(&run);
    assert_eq!(client.flood(&upload("/upload/a"), Exactly(2), 429).await, Exactly(2), "400 bytes each");
    let call = "POST /shop.Accounts/Login HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\nx-password: ";
    for (head, most) in [
        // Each of 300 bytes is charged 100 first. The fourth begins at 900.
        ("GET /download/a HTTP/1.1\r\nhost: a", 4),
        // Each of 300 rows is charged 10 first.
        ("POST /shop.Search/Find HTTP/1.1\r\nhost: a\r\ncontent-length: 0", 4),
        (&format!("{call}right"), 30),
        (&format!("{call}wrong"), 5),
        (&format!("{call}right"), 0),
    ] {
        assert_eq!(admitted_in_turn(&run, head).await, most, "{head:?}");
    }
}

/// Sends equal requests, each when the one before is settled, until one is denied. Returns how many were admitted, at most 30.
async fn admitted_in_turn(run: &Run, head: &str) -> usize {
    let mut client = Client::new(run);
    for n in 0..30 {
        let before = settled(run).await;
        match client.send(head).await.status {
            200 => {}
            429 => return n,
            other => panic!("{head:?}: {other}"),
        }
        let begun = Instant::now();
        while settled(run).await == before {
            assert!(begun.elapsed() < Duration::from_secs(30), "{head:?}");
        }
    }
    30
}

/// Returns the beginning of a connection through the load balancer, and a request.
fn from(client: &str, headers: &str) -> String {
    format!("PROXY TCP4 {client} 198.51.100.1 4711 80\r\nGET / HTTP/1.1\r\nhost: a\r\n{headers}\r\n")
}

async fn admitted_from(run: &Run, client: &str, headers: &str) -> usize {
    for n in 0..20 {
        let answer = send(run.address, &from(client, headers)).await;
        match answer.split(' ').nth(1).unwrap() {
            "200" => {}
            "429" => return n,
            other => panic!("{other}"),
        }
    }
    20
}

#[tokio::test]
async fn a_pod_by_itself_reads_trusted_tokens_and_the_addresses_of_the_load_balancer() {
    let run = client::start(&example("per-pod", &[])).await;
    let token = |user| Signer::new("of nobody").token(user, None);
    assert_eq!(admitted_from(&run, "192.0.2.1", &token("alice")).await, 5, "nobody verifies the token");
    assert_eq!(admitted_from(&run, "192.0.2.2", &token("alice")).await, 0, "another token of the same user");
    assert_eq!(admitted_from(&run, "192.0.2.1", "").await, 3, "the address has 8");
    assert_eq!(admitted_from(&run, "192.0.2.2", "").await, 8);
}

#[tokio::test]
async fn the_last_to_come_is_the_first_to_go() {
    // As long as a busy machine may take.
    let edits = [
        ("requests: 50, per: 1s", "requests: 1, per: 3s"),
        ("burst: 50", "burst: 1"),
        ("maxWait: 2s", "maxWait: 2m"),
    ];
    let run = client::start(&example("per-pod", &edits)).await;
    let waiting = "sluice_waiting_requests{policy_namespace=\"default\",policy=\"per-pod\",limit=\"pace\"}";
    let first = send(run.address, &from("192.0.2.9", "")).await;
    assert!(first.starts_with("HTTP/1.1 200 "), "{first}");
    let (ended, mut order) = tokio::sync::mpsc::unbounded_channel();
    for n in 1..=2 {
        let (address, ended) = (run.address, ended.clone());
        tokio::spawn(async move {
            let answer = send(address, &from(&format!("192.0.2.{n}"), "")).await;
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            let _ = ended.send(n);
        });
        until_metric(&run, waiting, n).await;
    }
    assert_eq!([order.recv().await, order.recv().await], [Some(2), Some(1)]);
}
