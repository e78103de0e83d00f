//! Limits see a request as the application receives it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::Full;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use sluice_config::prepared::Identified;
use sluice_config::{KeySecret, PreparedPolicy, RequestAttributes};

use crate::support::*;

/// Requests per minute that each limit admits.
const MANY: u64 = 1_000_000;

/// Returns a limit in JSON, with these further members before its rate.
fn limit_with(name: &str, members: &str) -> String {
    let rate = r#"{"requests":1000000,"periodMillis":60000,"algorithm":{"fixedWindow":"Clock"}}"#;
    format!(
        r#"{{"name":"{name}","mode":"Enforce","onMissing":"Skip",{members}"kind":{{"rates":{{"base":[{rate}]}}}}}}"#
    )
}

/// Returns what is left of each limit that a response tells of.
fn left(response: &http::HeaderMap) -> BTreeMap<String, u64> {
    let values = response.get_all("ratelimit").iter().filter_map(|value| value.to_str().ok());
    let items = values.flat_map(|value| value.split(',')).filter_map(|item| {
        let mut parts = item.trim().split(';');
        let name = parts.next()?.trim_matches('"').to_owned();
        let left = parts.find_map(|part| part.strip_prefix("r="))?.parse().ok()?;
        Some((name, left))
    });
    items.collect()
}

/// A client of either protocol.
struct Sender {
    address: SocketAddr,
    is_http2: bool,
}

impl Sender {
    /// Sends a request, and returns the headers of the response. `version` is that of HTTP/1.
    async fn send(&self, target: &str, version: &str, fields: &[(String, String)]) -> HeaderMap {
        if self.is_http2 {
            let mut request = Request::get(format!("http://shop.example{target}"));
            for (name, value) in fields {
                request = request.header(name, value);
            }
            let (mut sender, _) = http2(self.address).await;
            let request = request.body(Full::default()).unwrap();
            return sender.send_request(request).await.unwrap().headers().clone();
        }
        let lines: String = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let mut client = Client::connect(self.address).await;
        client.send(format!("GET {target} HTTP/{version}\r\n{lines}\r\n")).await;
        let response = client.response().await;
        let headers = response.headers.iter().map(|(name, value)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap())
        });
        headers.collect()
    }
}

/// Returns a random request: its target and fields.
fn requests() -> impl Strategy<Value = (String, Vec<(String, String)>)> {
    let fields = [
        ("X-Api-Key", "r1"),
        ("X-Api-Key", "r2"),
        ("X_Api_Key", "r1"),
        ("Cookie", "session=a"),
        ("Cookie", "session=b; plan=gold"),
        ("Authorization", "Bearer a"),
        ("Authorization", ""),
        ("X-Exempt", "yes"),
        ("X-Plan", "gold"),
        ("Upgrade", "websocket"),
        ("Upgrade", "h2c"),
        ("TE", "gzip, trailers"),
        ("TE", "gzip"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("Expect", "100-continue"),
        ("X-Odd", " a"),
    ];
    let named = [
        "close",
        "keep-alive",
        "upgrade",
        "x-api-key",
        "X_API_KEY",
        "Cookie",
        "authorization",
        "x-exempt",
        "X-Plan",
        "te",
        "host",
        "x-none",
    ];
    let fields = subsequence(fields.to_vec(), 0..8).prop_shuffle();
    let connection = proptest::option::of(subsequence(named.to_vec(), 1..6));
    let target = select(&["/", "/a?plan=gold", "/a;x?Plan=gold", "/b"][..]);
    (target, fields, connection).prop_map(|(target, fields, connection)| {
        let mut fields: Vec<_> =
            fields.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        fields.insert(0, ("Host".to_owned(), "shop.example".to_owned()));
        fields.extend(connection.map(|names| ("Connection".to_owned(), names.join(", "))));
        (target.to_owned(), fields)
    })
}

/// Returns a policy that looks at requests in all ways.
fn curious() -> Arc<PreparedPolicy> {
    let header = |name: &str, value: &str| format!(r#"{{"headers":[{{"name":"{name}",{value}}}]}}"#);
    let present = r#""present":true"#;
    let seen = ["upgrade", "te", "keep-alive", "proxy-connection", "connection", "expect", "authorization"];
    let seen = seen.map(|name| {
        limit_with(&format!("sees-{name}"), &format!(r#""matches":[{}],"#, header(name, present)))
    });
    let limits = [
        limit_with("key", r#""key":[{"header":{"name":"x-api-key"}}],"#),
        limit_with("cookie", r#""key":[{"cookie":{"name":"session"}}],"#),
        limit_with("query", r#""key":[{"query":{"name":"plan"}}],"#),
        limit_with("both", r#""key":[{"header":{"name":"x-plan"}},{"header":{"name":"authorization"}}],"#),
        limit_with(
            "anonymous",
            &format!(r#""matches":[{}],"#, header("authorization", r#""present":false"#)),
        ),
        limit_with("exempt", &format!(r#""except":[{}],"#, header("x-exempt", r#""exact":"yes""#))),
        limit_with("host", r#""matches":[{"hosts":["shop.example"]}],"#),
    ];
    prepare(&policy_json("curious", "Allow", &[&limits[..], &seen].concat()))
}

#[tokio::test]
async fn what_the_application_receives_decides() {
    let application = Application::start().await;
    let policy = curious();
    let sidecar = sidecar_with(application.address, std::slice::from_ref(&policy));
    let secret = KeySecret::new([7; 16]);
    let mut runner = TestRunner::deterministic();
    // The counters that the requests must have used.
    let mut used = BTreeMap::<(usize, u128), u64>::new();
    let (mut hidden, mut seen) = (0, 0);
    for number in 0..600 {
        let (target, mut fields) = requests().new_tree(&mut runner).unwrap().current();
        let is_http2 = number % 4 == 3;
        if is_http2 {
            // A client of HTTP/2 must not send these.
            let allowed =
                ["X-Api-Key", "X_Api_Key", "Cookie", "Authorization", "X-Exempt", "X-Plan", "X-Odd"];
            fields.retain(|(name, _)| allowed.contains(&name.as_str()));
        }
        let sender = Sender { address: sidecar.addresses()[0], is_http2 };
        let told = left(&sender.send(&target, "1.1", &fields).await);
        let received = application.last();
        let peer = [127, 0, 0, 1].into();
        let attributes = RequestAttributes::new(&received.method, &received.uri, &received.headers, peer);
        let path = attributes.path_readings();
        let mut expected = BTreeMap::new();
        for (limit, identified) in policy.identify(0..policy.limits.len(), &attributes, &path, &secret) {
            let Identified::Counted { key, .. } = identified else { panic!("{identified:?}") };
            let used = used.entry((limit, key)).or_default();
            *used += 1;
            expected.insert(policy.limits[limit].name.clone(), MANY - *used);
        }
        assert_eq!(told, expected, "{number} {target} {fields:?} {:?}", received.headers);
        hidden += usize::from(fields.iter().any(|(name, _)| {
            name != "Connection" && name != "Expect" && !received.headers.contains_key(name.as_str())
        }));
        seen += expected.len();
    }
    assert!(
        hidden > 100 && seen > 1_500,
        "{hidden} requests had a field that is not forwarded, and {seen} limits applied"
    );
}

#[tokio::test]
async fn a_field_that_is_not_forwarded_makes_no_client() {
    let application = Application::start().await;
    let deny = limit("deny", 3, r#","onMissing":"Deny""#);
    let sidecar = sidecar_with(application.address, &[policy(&[limit("l", 3, "")])]);
    for number in 0..12 {
        let response =
            get(sidecar.addresses()[0], &format!("connection: x-api-key\r\nx-api-key: r{number}\r\n")).await;
        assert_eq!(response.status, if number < 3 { 200 } else { 429 }, "{number}");
    }
    assert!(application.seen.lock().unwrap().iter().all(|seen| !seen.headers.contains_key("x-api-key")));
    let sidecar = sidecar_with(application.address, &[policy(&[deny])]);
    let response = get(sidecar.addresses()[0], "connection: x-api-key\r\nx-api-key: r1\r\n").await;
    assert_eq!(response.status, 429);
    assert_eq!(get(sidecar.addresses()[0], "x-api-key: r1\r\n").await.status, 200);
}

#[tokio::test]
async fn an_address_is_read_though_its_field_is_not_forwarded() {
    let application = Application::start().await;
    let limit = limit("l", 2, "")
        .replace(r#"{"header":{"name":"x-api-key"}}"#, r#"{"clientIP":{"ipv4Prefix":32,"ipv6Prefix":64}}"#);
    for (header, own, other) in [
        ("XForwardedFor", "x-forwarded-for: 192.0.2.1", "x-forwarded-for: 192.0.2.2"),
        ("Forwarded", "forwarded: for=192.0.2.1", "forwarded: for=192.0.2.2"),
    ] {
        let trusted =
            format!(r#""clientAddress":{{"trustedProxies":["127.0.0.0/8"],"header":"{header}"}},"limits""#);
        let json =
            policy_json("checkout", "Allow", std::slice::from_ref(&limit)).replace(r#""limits""#, &trusted);
        let sidecar = sidecar_with(application.address, &[prepare(&json)]);
        for (connection, status) in [
            ("", 200),
            ("connection: x-forwarded-for, forwarded\r\n", 200),
            ("connection: Forwarded, X-Forwarded-For\r\n", 429),
            ("", 429),
        ] {
            let response = get(sidecar.addresses()[0], &format!("{connection}{own}\r\n")).await;
            assert_eq!(response.status, status, "{header} {connection}");
        }
        assert_eq!(get(sidecar.addresses()[0], &format!("{other}\r\n")).await.status, 200, "{header}");
    }
}

/// Returns the fields of a cell, such as `` `A: 1` `B: 2` ``.
fn fields(cell: &str, application: SocketAddr) -> Vec<(String, String)> {
    let texts = cell.split('`').skip(1).step_by(2).filter_map(|text| text.split_once(": "));
    let value =
        |value: &str| value.replace("PEER", "127.0.0.1").replace("APPLICATION", &application.to_string());
    texts.map(|(name, text)| (name.to_ascii_lowercase(), value(text))).collect()
}

#[tokio::test]
async fn the_table_of_fields_that_change_is_true() {
    let text = include_str!("../../docs/protocols.md");
    let table = text.split("## Fields that change on the way").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    assert!(rows.len() >= 13, "{rows:?}");
    let application = Application::start().await;
    for row in rows {
        let [_, protocol, sent, received, seen, _] = row[..] else { panic!("{row:?}") };
        let (sent, received) = (fields(sent, application.address), fields(received, application.address));
        // A limit for each field that is in the line.
        let mut all: Vec<_> = sent.iter().chain(&received).cloned().collect();
        all.sort();
        all.dedup();
        let condition = |n: usize, (name, value): &(String, String)| {
            let named = match name.as_str() {
                "host" => format!(r#""hosts":["{}"]"#, value.split(':').next().unwrap()),
                _ => format!(r#""headers":[{{"name":"{name}","exact":"{value}"}}]"#),
            };
            limit_with(&format!("l{n}"), &format!(r#""matches":[{{{named}}}],"#))
        };
        let limits: Vec<_> = all.iter().enumerate().map(|(n, field)| condition(n, field)).collect();
        let sidecar = sidecar_with(application.address, &[policy(&limits)]);
        let protocols: &[bool] = match protocol {
            "HTTP/1" | "HTTP/1.0" => &[false],
            "HTTP/2" => &[true],
            _ => &[false, true],
        };
        for &is_http2 in protocols {
            let version = if protocol == "HTTP/1.0" { "1.0" } else { "1.1" };
            let mut with_host = sent.clone();
            if !is_http2 && version == "1.1" {
                with_host.insert(0, ("host".to_owned(), "a".to_owned()));
            }
            let sender = Sender { address: sidecar.addresses()[0], is_http2 };
            let told = left(&sender.send("/", version, &with_host).await);
            let headers = application.last().headers;
            for field in &all {
                let has = headers.get_all(&field.0).iter().any(|value| value.to_str().unwrap() == field.1);
                assert_eq!(has, received.contains(field), "{row:?}: {field:?} in {headers:?}");
            }
            let expected = all.iter().enumerate().filter(|(_, field)| match seen {
                "what it receives" => received.contains(field),
                "what the client sends" => sent.contains(field),
                "nothing" => false,
                other => panic!("{other}"),
            });
            let expected: Vec<_> = expected.map(|(n, _)| format!("l{n}")).collect();
            assert_eq!(told.into_keys().collect::<Vec<_>>(), expected, "{row:?}: {all:?}");
        }
    }
}
