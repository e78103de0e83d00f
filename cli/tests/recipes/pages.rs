//! The recipes of `docs/recipes.md`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::client::Admitted::{AtLeast, Exactly};
use crate::client::{Client, Requests};
use crate::process::{self, Run};

/// For each recipe, requests in their order.
const RECIPES: [(&str, &[Requests]); 22] = [
    (
        "Each API key",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: a", Exactly(100)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: b", Exactly(100)),
        ],
    ),
    // Tokens are tested with those of `examples/jwt.yaml`.
    ("Each user of a token", &[Requests("GET / HTTP/1.1\r\nhost: a", Exactly(100))]),
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
        "One customer without a limit, another one banned",
        &[
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: a\r\nx-customer: acme", AtLeast(500)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: b\r\nx-customer: mallory", Exactly(0)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-api-key: c\r\nx-customer: other", Exactly(100)),
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
        "Logins",
        &[
            Requests("POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: 0", Exactly(5)),
            Requests("GET /login HTTP/1.1\r\nhost: a", AtLeast(50)),
        ],
    ),
    // Failures are tested with `examples/failed-logins.yaml`.
    ("Failed logins only", &[Requests("POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: 0", AtLeast(3))]),
    // Blocks are tested with `examples/login-block.yaml`, waits with `examples/queue.yaml`, and marks with `examples/mark.yaml`.
    ("A login that blocks", &[Requests("POST /login HTTP/1.1\r\nhost: a\r\ncontent-length: 0", AtLeast(3))]),
    ("Bursts that wait", &[Requests("GET / HTTP/1.1\r\nhost: a", AtLeast(30))]),
    ("Requests that the application decides about", &[Requests("GET / HTTP/1.1\r\nhost: a", AtLeast(150))]),
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
    ("Each pod by itself", &[Requests("GET / HTTP/1.1\r\nhost: a", AtLeast(400))]),
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
        let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
        std::fs::write(file.path(), policy).unwrap();
        let run = Run::start(file.path(), &["--store", "memory"]).await;
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
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), policy).unwrap();
    let run = Run::start(file.path(), &["--store", "memory"]).await;
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
