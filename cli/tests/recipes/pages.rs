//! The recipes of `docs/recipes.md`.

use std::collections::BTreeMap;
use std::path::Path;

use sluice_limiter::{Algorithm, Bound, Period, Rate, Requests as Number, SubWindows};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::client::Admitted::{AtLeast, Exactly};
use super::client::{Client, Requests, start, until_metric, upload};
use crate::process::signer::Signer;
use crate::process::{self, Run};

/// For each recipe, requests in their order.
const RECIPES: [(&str, &[Requests]); 24] = [
    (
        "Each API key",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: a", Exactly(100)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: b", Exactly(100)),
        ],
    ),
    // Users with a token are tested below.
    ("Each user of a token", &[Requests("GET / HTTP/1.1\r\nhost: a", Exactly(100))]),
    (
        "Authenticated and anonymous clients",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nauthorization: Bearer a", Exactly(5000)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nauthorization: Basic b", Exactly(5000)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1", Exactly(60)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nauthorization:\r\nx-forwarded-for: 192.0.2.1", Exactly(0)),
            Requests(
                "GET / HTTP/1.1\r\nhost: a\r\nauthorization: \r\nx-forwarded-for: 192.0.2.2",
                Exactly(60),
            ),
            // The application receives none.
            Requests(
                "GET / HTTP/1.1\r\nhost: a\r\nauthorization: x\r\nx-forwarded-for: 192.0.2.3\r\nconnection: authorization",
                Exactly(60),
            ),
        ],
    ),
    (
        "Each client address",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1", Exactly(10)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 203.0.113.9, 192.0.2.1", Exactly(0)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.2", Exactly(10)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 2001:db8::1", Exactly(10)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 2001:db8::2", Exactly(0)),
        ],
    ),
    (
        "Plans that customers pay for",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: a\r\nx-plan: gold", Exactly(5000)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: b\r\nx-plan: silver", Exactly(1000)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: c\r\nx-plan: tin", Exactly(100)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: d", Exactly(100)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: b", Exactly(0)),
        ],
    ),
    (
        "More for one customer, no limit for another, a third banned",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: acme-2f6c1a", AtLeast(1500)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: mallory-d41d8c", Exactly(0)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: initech-77e0b3", Exactly(1000)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: other", Exactly(100)),
        ],
    ),
    (
        "Thousands of tenants",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a.shop.example\r\nx-forwarded-for: 192.0.2.1", Exactly(600)),
            Requests("GET / HTTP/1.1\r\nhost: B.shop.example:80\r\nx-forwarded-for: 192.0.2.2", Exactly(600)),
            Requests("GET / HTTP/1.1\r\nhost: b.shop.example\r\nx-forwarded-for: 192.0.2.3", Exactly(0)),
        ],
    ),
    (
        "Thousands of tenants with plans of their own",
        &[
            Requests("GET / HTTP/1.1\r\nhost: acme.shop.example", AtLeast(6500)),
            Requests("GET / HTTP/1.1\r\nhost: initech.shop.example", Exactly(6000)),
            Requests("GET / HTTP/1.1\r\nhost: mallory.shop.example", Exactly(0)),
            Requests("GET / HTTP/1.1\r\nhost: other.shop.example", Exactly(600)),
        ],
    ),
    (
        "More, less or nothing for one client until a date",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: acme-2f6c1a", Exactly(5000)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: initech-77e0b3", Exactly(5)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: mallory-d41d8c", Exactly(0)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: other", Exactly(100)),
        ],
    ),
    (
        "A path and a method",
        &[
            Requests("GET /v1/search HTTP/1.1\r\nhost: a", Exactly(20)),
            Requests("POST /v1//SEARCH/x HTTP/1.1\r\nhost: a\r\ncontent-length: 0", Exactly(0)),
            Requests("DELETE /v1/search HTTP/1.1\r\nhost: a", AtLeast(50)),
            Requests("GET /v1/searches HTTP/1.1\r\nhost: a", AtLeast(50)),
        ],
    ),
    (
        "Each method of a gRPC service",
        &[
            Requests("POST /shop.Checkout/Pay HTTP/1.1\r\nhost: a\r\ncontent-length: 0", Exactly(60)),
            Requests("POST /shop.Checkout/Cancel HTTP/1.1\r\nhost: a\r\ncontent-length: 0", Exactly(60)),
            Requests("POST /shop.Other/Pay HTTP/1.1\r\nhost: a\r\ncontent-length: 0", AtLeast(100)),
        ],
    ),
    (
        "Openings of WebSockets",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: WebSocket", Exactly(10)),
            Requests("GET / HTTP/1.1\r\nhost: a", AtLeast(50)),
        ],
    ),
    (
        "A route in the query",
        &[
            Requests(
                "GET /wp-json/wp/v2/users/1 HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1",
                Exactly(30),
            ),
            Requests(
                "GET /?rest_route=/wp/v2/users HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.2",
                Exactly(30),
            ),
            Requests(
                "GET /?rest_route=/wp/v2/posts HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.3",
                AtLeast(50),
            ),
        ],
    ),
    (
        "Logins",
        &[
            Requests("POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: 0", Exactly(5)),
            Requests("GET /login HTTP/1.1\r\nhost: a", AtLeast(50)),
        ],
    ),
    (
        "Failed logins only",
        &[Requests("POST /login HTTP/1.1\r\nhost: a\r\nx-password: wrong\r\ncontent-length: 0", Exactly(5))],
    ),
    // The block itself is tested below.
    (
        "A login that blocks",
        &[Requests("POST /login HTTP/1.1\r\nhost: a\r\nx-password: wrong\r\ncontent-length: 0", Exactly(5))],
    ),
    // In windows so long, who would have to wait is denied. The waits are tested below.
    ("Bursts that wait", &[Requests("GET / HTTP/1.1\r\nhost: a", Exactly(20))]),
    // The application denies what is marked.
    ("Requests that the application decides about", &[Requests("GET / HTTP/1.1\r\nhost: a", Exactly(100))]),
    // The application reports no tokens, so each request costs its reserve.
    (
        "Tokens of a language model",
        &[Requests("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 0", Exactly(40))],
    ),
    (
        "Bytes of uploads",
        &[
            Requests(
                "PUT /upload/a HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 1000000001",
                Exactly(0),
            ),
            Requests("PUT /upload/a HTTP/1.1\r\nhost: a\r\ncontent-length: 0", AtLeast(50)),
        ],
    ),
    (
        "Health checks and internal networks are exempt",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1", Exactly(300)),
            Requests("GET /healthz HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1", AtLeast(400)),
            Requests(
                "POST /healthz HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1\r\ncontent-length: 0",
                Exactly(0),
            ),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 10.1.2.3", AtLeast(400)),
        ],
    ),
    // How many are in progress is tested with an application that holds requests.
    ("Requests at a time", &[Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: a", Exactly(6000))]),
    ("Each pod by itself", &[Requests("GET / HTTP/1.1\r\nhost: a", Exactly(400))]),
    ("A tighter limit, first without effect", &[Requests("GET / HTTP/1.1\r\nhost: a", Exactly(1000))]),
];

/// Returns the policies of the recipes by their titles. Their windows are so long that none ends, and their dates far
/// away.
fn recipes() -> BTreeMap<String, String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/recipes.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut recipes = BTreeMap::new();
    for section in page.split("\n## ").skip(1) {
        let (title, rest) = section.split_once('\n').unwrap();
        let policy = rest.split_once("```yaml\n").unwrap().1.split_once("```").unwrap().0;
        let policy = policy
            .replace("per: 1s", "per: 12h")
            .replace("per: 1m", "per: 24h")
            .replace("per: 15m", "per: 36h")
            .replace("per: 1h", "per: 48h");
        let policy = policy.replace("10.20.30.0/28", "127.0.0.1/32").replace("until 202", "until 209");
        recipes.insert(title.to_owned(), policy);
    }
    recipes
}

#[tokio::test]
async fn each_recipe_admits_what_it_says() {
    let mut recipes = recipes();
    recipes.remove("A response for scripts in browsers").expect("it is tested below");
    for (title, requests) in RECIPES {
        let policy = recipes.remove(title).unwrap_or_else(|| panic!("there is no recipe {title:?}"));
        let run = start(&policy).await;
        let mut client = Client::new(&run);
        for Requests(head, expected) in requests {
            assert_eq!(client.flood(head, *expected, 429).await, *expected, "{title}: {head:?}");
        }
        println!("{title}: {} kinds of requests", requests.len());
    }
    assert!(recipes.is_empty(), "recipes without a test: {:?}", recipes.keys());
}

#[tokio::test]
async fn a_script_in_a_browser_reads_when_its_quota_is_back() {
    let policy = recipes().remove("A response for scripts in browsers").unwrap();
    let run = start(&policy).await;
    let mut client = Client::new(&run);
    let head = "GET / HTTP/1.1\r\nhost: a\r\norigin: https://b.example";
    assert_eq!(client.flood(head, Exactly(300), 429).await, Exactly(300));
    let preflight =
        "OPTIONS / HTTP/1.1\r\nhost: a\r\norigin: https://b.example\r\naccess-control-request-method: GET";
    assert_eq!(client.send(preflight).await.status, 200, "the application answers it");
    let denied = process::get(run.address, "/").await.to_lowercase();
    for header in ["access-control-allow-origin: ", "access-control-expose-headers: ", "x-ratelimit-reset: 1"]
    {
        assert!(denied.contains(header), "{header}: {denied}");
    }
    assert!(!denied.contains("\r\nratelimit"), "{denied}");
}

/// Returns the microseconds until the last of some requests is admitted that arrive together, and wait in a queue.
fn time_of_burst(rate: &Rate, requests: usize, begin: u64) -> u64 {
    let (mut stored, mut time, mut admitted) = (None, begin, 0);
    while admitted < requests {
        let (record, now) = rate.roll(stored, time);
        if rate.has_room(&record, now, 1) {
            stored = Some(rate.charge(record, now, 1));
            admitted += 1;
        } else {
            time += rate.decision(&record, now, 1, false, false).retry_after.unwrap();
            stored = Some(record);
        }
    }
    time - begin
}

#[tokio::test]
async fn bursts_of_50_requests_are_admitted_while_they_may_wait() {
    let (rates, queue) = ("rates: [{requests: 20, per: 1s}]", "queue: {maxWait: 3s, maxLength: 300}");
    let recipe = recipes().remove("Bursts that wait").unwrap().replace("per: 12h", "per: 1s");
    assert!(recipe.contains(rates) && recipe.contains(queue), "{recipe}");
    let algorithm = Algorithm::SlidingWindowCounter { sub_windows: SubWindows::ONE, bound: Bound::default() };
    let (requests, second) = (Number::new(20).unwrap(), Period::from_millis(1000).unwrap());
    let rate = Rate::new(requests, second, algorithm).unwrap();
    let longest = |burst| {
        let phases = (0..1000).map(|phase| 1_800_000_000_000_000 + phase * 1000);
        phases.map(|begin| time_of_burst(&rate, burst, begin)).max().unwrap()
    };
    // The recipe says 2.6 seconds. The rest of the three is for who is late.
    assert!((2_400_000..2_600_000).contains(&longest(50)), "{}", longest(50));
    // Ten clients at a time, as long as a busy machine may take.
    let run = start(&recipe.replace("maxWait: 3s", "maxWait: 2m")).await;
    let address = run.address;
    let bursts = (0..500).map(|n| {
        let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.{}\r\n\r\n", n % 10);
        tokio::spawn(async move { process::send(address, &request).await })
    });
    for response in bursts.collect::<Vec<_>>() {
        let response = response.await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }
}

/// Starts a recipe with some texts replaced, each of which it has.
async fn start_with(title: &str, edits: &[(&str, &str)]) -> Run {
    let mut policy = recipes().remove(title).unwrap();
    for (from, to) in edits {
        assert!(policy.contains(from), "{title}: {from}");
        policy = policy.replace(from, to);
    }
    start(&policy).await
}

#[tokio::test]
async fn each_user_of_a_valid_token_has_a_counter() {
    let (title, signer) = ("Each user of a token", Signer::new("2026-11"));
    let policy = recipes().remove(title).unwrap();
    let (begin, _) = policy.split_once("  jwks.json: ").unwrap();
    let run =
        start(&format!("{begin}  jwks.json: '{}'\n", serde_json::json!({"keys": [signer.jwk()]}))).await;
    let mut client = Client::new(&run);
    for user in ["alice", "bob"] {
        let head = format!("GET / HTTP/1.1\r\nhost: a\r\n{}", signer.token(user, None).trim_end());
        assert_eq!(client.flood(&head, Exactly(100), 429).await, Exactly(100), "{user}");
    }
}

#[tokio::test]
async fn a_login_is_blocked_after_twenty_denials() {
    let run = start_with("A login that blocks", &[("within: 15m", "within: 36h")]).await;
    let mut client = Client::new(&run);
    let login =
        |password| format!("POST /login HTTP/1.1\r\nhost: a\r\nx-password: {password}\r\ncontent-length: 0");
    let blocked = async || {
        let metrics = process::get(run.admin, "/metrics").await;
        let is_blocked = |line: &&str| {
            line.starts_with("sluice_decisions_total{") && line.contains(r#"outcome="blocked""#)
        };
        metrics
            .lines()
            .filter(is_blocked)
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum::<u64>()
    };
    for n in 1..=26 {
        let answer = client.send(&login("wrong")).await;
        assert_eq!(answer.status, if n <= 5 { 401 } else { 429 }, "{n}");
        // Nothing tells the rule.
        assert!(!answer.text.contains("block") && !answer.text.contains("ratelimit"), "{n}: {}", answer.text);
        assert_eq!(blocked().await > 0, n > 25, "{n}");
    }
    assert_eq!(client.send(&login("right")).await.status, 429);
}

#[tokio::test]
async fn twenty_websockets_of_a_client_are_open_at_a_time() {
    let run = start_with("Openings of WebSockets", &[("requests: 10,", "requests: 100,")]).await;
    let opening = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket";
    let mut client = Client::new(&run);
    let mut open = Vec::new();
    for n in 1..=20 {
        assert_eq!(client.send(opening).await.status, 200, "{n}");
        let mut stream = TcpStream::connect(run.address).await.unwrap();
        stream.write_all(format!("{opening}\r\nx-hold: 1\r\n\r\n").as_bytes()).await.unwrap();
        until_metric(&run, "sluice_requests_in_flight", n).await;
        open.push(stream);
    }
    let denied = client.send(opening).await;
    assert!(denied.status == 429 && denied.text.contains("Limit open "), "{}", denied.text);
    assert_eq!(client.send("GET / HTTP/1.1\r\nhost: a").await.status, 200, "it opens nothing");
}

#[tokio::test]
async fn bytes_of_uploads_add_up() {
    let run = start_with("Bytes of uploads", &[("requests: 1000000000,", "requests: 1000,")]).await;
    let mut client = Client::new(&run);
    // Three of 400 are more than 1000.
    assert_eq!(client.flood(&upload("/upload/a"), Exactly(2), 429).await, Exactly(2));
    assert_eq!(client.flood(&upload("/other"), AtLeast(4), 429).await, AtLeast(4));
}
