//! The limits of well-known APIs: `examples/api-*.yaml`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::client::Admitted::{AtLeast, Exactly};
use super::client::{Client, Requests, settled};
use crate::process::Run;

/// Requests to an API, and its responses to those that it denies.
struct Api {
    name: &'static str,
    /// Replacements in the policy that move other limits out of the way.
    without: &'static [(&'static str, &'static str)],
    requests: &'static [Requests],
    status: u16,
    /// Parts of the last denial. Its head is in lower case.
    denial: &'static [&'static str],
}

const APIS: [Api; 13] = [
    Api {
        name: "github",
        without: &[("requests: 900,", "requests: 90000,")],
        requests: &[
            Requests("GET /search/code HTTP/1.1\r\nhost: a\r\nauthorization: token a", Exactly(10)),
            Requests("GET /search/issues HTTP/1.1\r\nhost: a\r\nauthorization: token a", Exactly(20)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.1", Exactly(60)),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.2", Exactly(60)),
            // An empty token is none.
            Requests(
                "GET / HTTP/1.1\r\nhost: a\r\nauthorization:\r\nx-forwarded-for: 192.0.2.7",
                Exactly(60),
            ),
            // The application receives none.
            Requests(
                "GET / HTTP/1.1\r\nhost: a\r\nauthorization: token z\r\nx-forwarded-for: 192.0.2.8\r\nconnection: authorization",
                Exactly(60),
            ),
            Requests(
                "GET / HTTP/1.1\r\nhost: a\r\nauthorization: token b\r\nx-plan: enterprise",
                AtLeast(5500),
            ),
            Requests("GET / HTTP/1.1\r\nhost: a\r\nauthorization: token a", Exactly(5000)),
        ],
        status: 403,
        denial: &[
            "\r\nx-ratelimit-limit: 5000\r\n",
            "\r\nx-ratelimit-remaining: 0\r\n",
            "\r\nx-ratelimit-reset: 1",
            "\r\n\r\n{\"message\":\"API rate limit exceeded: core.\",",
        ],
    },
    Api {
        name: "github",
        without: &[],
        requests: &[
            Requests("GET /repos/a HTTP/1.1\r\nhost: a\r\nauthorization: token a", Exactly(900)),
            Requests("DELETE /repos/b HTTP/1.1\r\nhost: a\r\nauthorization: token a", Exactly(180)),
            Requests(
                "POST /repos HTTP/1.1\r\nhost: a\r\nauthorization: token a\r\ncontent-length: 0",
                Exactly(80),
            ),
            Requests(
                "GET / HTTP/1.1\r\nhost: a\r\nauthorization: bad\r\nx-forwarded-for: 192.0.2.3",
                Exactly(60),
            ),
            Requests(
                "GET / HTTP/1.1\r\nhost: a\r\nauthorization: bad 2\r\nx-forwarded-for: 192.0.2.3",
                Exactly(0),
            ),
        ],
        status: 403,
        denial: &["API rate limit exceeded: bad-tokens."],
    },
    Api {
        name: "github",
        without: &[("requests: 80,", "requests: 8000,"), ("requests: 900,", "requests: 90000,")],
        requests: &[Requests(
            "POST /gists HTTP/1.1\r\nhost: a\r\nauthorization: token a\r\ncontent-length: 0",
            Exactly(500),
        )],
        status: 403,
        denial: &["secondary-content"],
    },
    Api {
        name: "stripe",
        without: &[],
        requests: &[
            Requests("GET /v1/charges HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk_live_a", Exactly(100)),
            Requests("GET /v1/charges HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk_test_a", Exactly(25)),
            Requests(
                "POST /v1/charges HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk_live_a\r\ncontent-length: 0",
                Exactly(100),
            ),
            Requests(
                "POST /v1/billing/meter_events HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk_live_a\r\ncontent-length: 0",
                Exactly(1000),
            ),
            Requests(
                "POST /v1/files HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk_live_b\r\ncontent-length: 0",
                Exactly(20),
            ),
            Requests("GET /v1/files/5 HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk_live_b", Exactly(20)),
            Requests(
                "GET /v1/customers/search HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk_live_b",
                Exactly(20),
            ),
        ],
        status: 429,
        denial: &[
            "\r\nstripe-rate-limited-reason: endpoint-rate\r\n",
            "\"type\": \"invalid_request_error\",\n    \"code\": \"rate_limit\"",
        ],
    },
    Api {
        name: "stripe",
        without: &[("requests: 100,", "requests: 5000,")],
        requests: &[Requests(
            "POST /v1/payment_intents/pi_1 HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk_live_a\r\ncontent-length: 0",
            Exactly(1000),
        )],
        status: 429,
        denial: &["\r\nstripe-rate-limited-reason: resource-specific\r\n"],
    },
    Api {
        name: "shopify",
        without: &[],
        requests: &[
            Requests(
                "GET /admin/api/2026-07/shop.json HTTP/1.1\r\nhost: a\r\nx-shopify-access-token: a\r\nx-shop: b\r\nx-shop-plan: plus",
                Exactly(400),
            ),
            Requests(
                "GET /admin/api/2026-07/shop.json HTTP/1.1\r\nhost: a\r\nx-shopify-access-token: a\r\nx-shop: c",
                Exactly(40),
            ),
        ],
        status: 429,
        denial: &["\r\n\r\n{\"errors\":\"Exceeded 40 calls per api client."],
    },
    // A query costs 10 points, as much as is charged at first.
    Api {
        name: "shopify",
        without: &[],
        requests: &[Requests(
            "POST /admin/api/2026-07/graphql.json HTTP/1.1\r\nhost: a\r\nx-shopify-access-token: a\r\nx-shop: b\r\nx-cost: 10\r\ncontent-length: 0",
            Exactly(100),
        )],
        status: 429,
        denial: &["\"code\":\"THROTTLED\""],
    },
    Api {
        name: "x",
        without: &[],
        requests: &[
            Requests("GET /2/tweets/search/recent?query=a HTTP/1.1\r\nhost: a\r\nx-app: a", Exactly(450)),
            // An empty user is none.
            Requests(
                "GET /2/tweets/search/recent?query=a HTTP/1.1\r\nhost: a\r\nx-app: a\r\nx-user:",
                Exactly(0),
            ),
            Requests(
                "GET /2/tweets/search/recent?query=a HTTP/1.1\r\nhost: a\r\nx-app: a\r\nx-user: b",
                Exactly(300),
            ),
            Requests("GET /2/users/5/tweets HTTP/1.1\r\nhost: a\r\nx-app: a\r\nx-user: b", Exactly(900)),
            Requests("GET /2/tweets/search/all HTTP/1.1\r\nhost: a\r\nx-app: a", Exactly(1)),
            Requests(
                "POST /2/tweets HTTP/1.1\r\nhost: a\r\nx-app: a\r\nx-user: b\r\ncontent-length: 0",
                Exactly(100),
            ),
        ],
        status: 429,
        denial: &[
            "\r\nx-ratelimit-limit: 100\r\n",
            "\r\nx-ratelimit-reset: 1",
            "{\"title\":\"Too Many Requests\",",
        ],
    },
    Api {
        name: "x",
        without: &[("requests: 1,", "requests: 1000,")],
        requests: &[Requests("GET /2/tweets/search/all HTTP/1.1\r\nhost: a\r\nx-app: a", Exactly(300))],
        status: 429,
        denial: &["\r\nx-ratelimit-limit: 300\r\n"],
    },
    Api {
        name: "bitly",
        without: &[],
        requests: &[
            Requests(
                "POST /v4/shorten HTTP/1.1\r\nhost: a\r\nauthorization: a\r\ncontent-length: 0",
                Exactly(100),
            ),
            Requests("GET /v4/user HTTP/1.1\r\nhost: a\r\nauthorization: a", Exactly(100)),
        ],
        status: 429,
        denial: &["{\"message\":\"RATE_LIMIT_EXCEEDED\",\"resource\":\"per-endpoint\""],
    },
    Api {
        name: "bitly",
        without: &[("requests: 100,", "requests: 2000,")],
        requests: &[Requests("GET /v4/user HTTP/1.1\r\nhost: a\r\nauthorization: a", Exactly(1000))],
        status: 429,
        denial: &["RATE_LIMIT_EXCEEDED"],
    },
    Api {
        name: "linkedin",
        without: &[("requests: 100000,", "requests: 200,")],
        requests: &[
            Requests(
                "POST /v2/shares HTTP/1.1\r\nhost: a\r\nx-application: a\r\nx-member: b\r\ncontent-length: 0",
                Exactly(25),
            ),
            Requests(
                "POST /v2/shares HTTP/1.1\r\nhost: a\r\nx-application: a\r\nx-member: c\r\ncontent-length: 0",
                Exactly(25),
            ),
            Requests(
                "POST /v2/invitations HTTP/1.1\r\nhost: a\r\nx-application: a\r\nx-member: b\r\ncontent-length: 0",
                Exactly(100),
            ),
            Requests("GET /v2/me HTTP/1.1\r\nhost: a\r\nx-application: a\r\nx-member: b", Exactly(50)),
        ],
        status: 429,
        denial: &["\"serviceErrorCode\":101,\"status\":429}"],
    },
    // A matrix of 100 elements costs as much as is charged at first.
    Api {
        name: "google-maps",
        without: &[],
        requests: &[
            Requests("GET /maps/api/geocode/json?key=a&address=b HTTP/1.1\r\nhost: a", Exactly(3000)),
            Requests(
                "GET /maps/api/distancematrix/json?key=a HTTP/1.1\r\nhost: a\r\nx-cost: 100",
                Exactly(600),
            ),
        ],
        status: 429,
        denial: &["\"status\":\"OVER_QUERY_LIMIT\"}"],
    },
];

/// Periods, and others that are so long that none ends in a test.
const PERIODS: [(&str, &str); 6] = [
    ("per: 24h", "per: 8784h"),
    ("per: 1h", "per: 8760h"),
    ("per: 15m", "per: 36h"),
    ("per: 1m", "per: 24h"),
    ("per: 20s", "per: 24h"),
    ("per: 1s", "per: 20h"),
];

/// Returns the policy of an API. Each replacement occurs in it.
fn policy(name: &str, without: &[(&str, &str)]) -> String {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/api-{name}.yaml"));
    let mut policy = std::fs::read_to_string(example).unwrap();
    for (from, to) in without {
        assert!(policy.contains(from), "{name}: {from}");
        policy = policy.replace(from, to);
    }
    for (from, to) in PERIODS {
        policy = policy.replace(from, to);
    }
    // Windows of the clock would end while a test runs at their end.
    if policy.contains("alignment: Clock") {
        policy = policy.replace("per: 24h", "per: 8784h");
    }
    policy.replace("10.20.30.0/28", "127.0.0.1/32")
}

/// Starts `sluice run` in front of an application that reports the cost of a request that the test names in `x-cost`.
async fn start(policy: &str) -> Run {
    let answer = |head: &str| {
        let status = if head.contains("authorization: bad") { "401 Unauthorized" } else { "200 OK" };
        let cost = head.split("x-cost: ").nth(1).and_then(|rest| rest.split("\r\n").next());
        let body = cost.map(|cost| format!("{{\"extensions\":{{\"cost\":{{\"actualQueryCost\":{cost}}}}}}}"));
        let (elements, body) = (cost.unwrap_or("1"), body.unwrap_or_default());
        format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\nx-elements: {elements}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), policy).unwrap();
    Run::start_before(answer, file.path(), &["--store", "memory"], &[]).await
}

#[tokio::test]
async fn each_api_admits_what_it_documents_and_denies_in_its_own_form() {
    for api in &APIS {
        let run = start(&policy(api.name, api.without)).await;
        let mut client = Client::new(&run);
        for Requests(head, expected) in api.requests {
            let admitted = client.flood(head, *expected, api.status).await;
            assert_eq!(admitted, *expected, "{}: {head:?}\n{}", api.name, client.last);
        }
        for part in api.denial {
            assert!(client.last.contains(part), "{}: {part:?} in {}", api.name, client.last);
        }
        assert!(client.last.contains("\r\nretry-after: "), "{}: {}", api.name, client.last);
        println!("{}: {} kinds of requests", api.name, api.requests.len());
    }
}

#[tokio::test]
async fn what_a_request_has_cost_counts_in_the_end() {
    for (name, without, head, most) in [
        // 4 queries of 250 points are 1000. Each is charged 10 points first.
        (
            "shopify",
            &[][..],
            "POST /admin/api/2026-07/graphql.json HTTP/1.1\r\nhost: a\r\nx-shopify-access-token: a\r\nx-shop: b\r\nx-cost: 250\r\ncontent-length: 0",
            4,
        ),
        // Each matrix of 10 elements is charged 100 first. After 51 of them, less than that is left.
        (
            "google-maps",
            &[("requests: 60000,", "requests: 600,")],
            "GET /maps/api/distancematrix/json?key=a HTTP/1.1\r\nhost: a\r\nx-cost: 10",
            51,
        ),
    ] {
        let run = start(&policy(name, without)).await;
        let mut client = Client::new(&run);
        let mut admitted = 0;
        while client.send(head).await.status == 200 {
            admitted += 1;
            let begun = Instant::now();
            while settled(&run).await < admitted {
                assert!(begun.elapsed() < Duration::from_secs(30), "{name}: {admitted}");
            }
        }
        assert_eq!(admitted, most, "{name}");
    }
}

#[test]
fn each_example_of_an_api_is_tested() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let names: BTreeSet<_> = std::fs::read_dir(examples)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter_map(|name| Some(name.strip_prefix("api-")?.strip_suffix(".yaml")?.to_owned()))
        .collect();
    assert_eq!(names, APIS.iter().map(|api| api.name.to_owned()).collect());
}
