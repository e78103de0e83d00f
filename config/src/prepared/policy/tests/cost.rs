//! A request may cost at most so many times what a plain one does, however it is written and however large the policy is. Work
//! is counted, in about bytes that are looked at, and not timed.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use super::RATE;
use crate::effort::WORK;
use crate::overrides::{DENY, Override, OverrideTable, client_digest};
use crate::policy::BlobHash;
use crate::prepared::Blobs;
use crate::prepared::index::LimitIndex;
use crate::{KeySecret, PreparedPolicy, RequestAttributes};

/// Work of the rest of a plain request, such as system calls, which a sidecar does in 15 us.
const REST: usize = 15_000;
/// How many times the work of a plain request any other may cause.
const MOST: usize = 20;

fn policy(limits: &[String]) -> PreparedPolicy {
    let json = format!(
        r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Allow","consistency":"Strict","ambiguousPaths":"Match",
        "limits":[{}],"expressions":{{{}}}}}"#,
        limits.join(","),
        expressions()
    );
    PreparedPolicy::with_blobs(&json, &banning().1).unwrap()
}

/// Returns the expressions of all policies, by their texts.
fn expressions() -> String {
    let mut all = r#""path":{"root":{"attribute":"path"}}"#.to_owned();
    for n in 0..64 {
        let _ = write!(all, r#","any {n}":{{"root":{{"any":["#);
        for kind in ["query", "cookie", "header"] {
            let _ = write!(
                all,
                r#"{{"test":["contains",[{{"field":{{"{kind}":"plan"}}}},{{"text":"free{n}"}}]]}},"#
            );
        }
        let _ = write!(all, r#"{{"test":["endsWith",[{{"attribute":"path"}},{{"text":"/z{n}"}}]]}}]}}}}"#);
    }
    all
}

/// Returns the hash of a table of overrides that bans a client, and the table.
fn banning() -> (BlobHash, Blobs) {
    let client = Override { client: client_digest(b"mallory"), plan: 0, until: 0 };
    let table = OverrideTable::encode([DENY], vec![client]).unwrap();
    let (hash, mut blobs) = (BlobHash::of(&table), Blobs::default());
    blobs.insert(table.into());
    (hash, blobs)
}

fn limit(n: usize, fields: &str) -> String {
    let key = r#"[{"header":{"name":"x-api-key"}},{"path":{}}]"#;
    format!(
        r#"{{"name":"l{n}","mode":"Enforce","onMissing":"Skip","key":{key},"kind":{{"rates":{{"base":[{RATE}]}}}}{fields}}}"#
    )
}

fn matching(conditions: &[String]) -> String {
    format!(r#","matches":[{}]"#, conditions.join(","))
}

fn on(part: &str, name: &str, value: &str) -> String {
    format!(r#"{{"{part}":[{{"name":"{name}",{value}}}]}}"#)
}

/// Returns policies up to the largest that admission permits for a pod: a thousand limits, 256 regular expressions, 64 expressions.
fn policies() -> Vec<(&'static str, PreparedPolicy)> {
    let three = |n: usize| {
        let exact = format!(r#""exact":"free{n}""#);
        let parts = ["query", "cookies", "headers"].map(|part| on(part, "plan", &exact));
        limit(n, &matching(&[&parts[..], &parts.clone().map(|part| part.replace("plan", "other"))].concat()))
    };
    let cel = |n: usize| limit(n, &format!(r#","when":"any {n}""#));
    let regex = |n: usize| {
        let path = format!(r#"{{"path":{{"regex":"/.*/z{n}"}}}}"#);
        let value = format!(r#""regex":".*z{n}""#);
        limit(n, &matching(&[path, on("query", "plan", &value), on("headers", "plan", &value)]))
    };
    let prefix = |n: usize| {
        let path = |n: usize| format!(r#"{{"path":{{"prefix":"/a/{n}"}}}}"#);
        limit(n, &matching(&(8 * n..8 * n + 8).map(path).collect::<Vec<_>>()))
    };
    let banned = |n: usize| {
        let parts = [
            r#"{"query":{"name":"plan"}}"#,
            r#"{"cookie":{"name":"plan"}}"#,
            r#"{"header":{"name":"plan"}}"#,
            r#"{"path":{}}"#,
            r#"{"pathTemplate":{"templates":["/a/{id}/b","/{id}/a","/b/{id}"],"variable":"id"}}"#,
            r#"{"cel":{"expression":"path"}}"#,
        ];
        let rates = format!(r#"{{"base":[{RATE}],"overrides":"{}"}}"#, banning().0);
        let (key, kind) = (parts[n % 6], format!(r#"{{"rates":{rates}}}"#));
        format!(r#"{{"name":"l{n}","mode":"Enforce","onMissing":"Skip","key":[{key}],"kind":{kind}}}"#)
    };
    let of =
        |count: usize, limit: &dyn Fn(usize) -> String| policy(&(0..count).map(limit).collect::<Vec<_>>());
    vec![
        ("one limit", of(1, &three)),
        ("31 limits on values", of(31, &three)),
        ("a thousand limits on values", of(1000, &three)),
        ("64 expressions", of(64, &cel)),
        ("85 limits with 255 regular expressions", of(85, &regex)),
        ("a thousand limits on prefixes", of(1000, &prefix)),
        ("a thousand keys", of(1000, &|n| limit(n, ""))),
        ("a thousand keys with bans", of(1000, &banned)),
        ("six keys with bans", of(6, &banned)),
    ]
}

/// A request that a sidecar accepts: a target and headers.
type Written = (&'static str, String, Vec<(&'static str, String)>);

fn hostile() -> Vec<Written> {
    let query = |query: String| format!("/a?{query}");
    let cookie = |value: &str| vec![("cookie", value.to_owned())];
    let many =
        |count: usize, pair: &dyn Fn(usize) -> String| (0..count).map(pair).collect::<Vec<_>>().join("&");
    let no_headers = Vec::new;
    vec![
        ("empty pairs", query("&".repeat(31_000)), no_headers()),
        ("many names", query(many(4_000, &|n| format!("a{n}=b"))), no_headers()),
        ("one name", query(many(4_000, &|_| "plan=x".to_owned())), no_headers()),
        ("a similar name", query(many(3_000, &|n| format!("plan[{n}]=%61"))), no_headers()),
        ("semicolons", query("a;".repeat(15_000)), no_headers()),
        ("equals signs", query(format!("{}plan=x", "=".repeat(30_000))), no_headers()),
        ("a long value", query(format!("plan={}", "a".repeat(30_000))), no_headers()),
        ("escapes in a value", query(format!("plan={}", "%61".repeat(10_000))), no_headers()),
        ("many cookies", "/a".into(), cookie(&"a=%61;".repeat(5_000))),
        ("a cookie of many forms", "/a".into(), cookie(&format!("plan={}", "\"\\141%2525".repeat(3_000)))),
        ("quotation marks", "/a".into(), cookie(&format!("plan={}", "\"\\\"".repeat(10_000)))),
        ("open quotation marks", "/a".into(), cookie(&"a=\"\\\" ".repeat(5_000))),
        ("inner cookies", "/a".into(), cookie(&"plan=a,".repeat(4_000))),
        ("names of cookies", "/a".into(), cookie(&"a,".repeat(15_000))),
        ("repeated headers", "/a".into(), (0..90).map(|_| ("plan", "a".repeat(300))).collect()),
        ("a long header", "/a".into(), vec![("plan", "a".repeat(30_000))]),
        ("a long key", "/a".into(), vec![("x-api-key", "a".repeat(30_000))]),
        ("escapes in a path", "/%61".repeat(2_000), no_headers()),
        ("slashes", "/".repeat(8_000), no_headers()),
        ("a path of many readings", "/..;%2f\\%".repeat(99), no_headers()),
        ("a path of many segments", "/a;/..".repeat(1_000), no_headers()),
    ]
}

/// Returns the work of matching a request, building its keys and charging it.
fn work(
    policy: &PreparedPolicy,
    index: &LimitIndex,
    target: &str,
    headers: &[(&'static str, String)],
) -> usize {
    let uri: Uri = target.parse().unwrap();
    assert!(!crate::path::is_too_long(uri.path()), "{target:?} is refused");
    let mut map = HeaderMap::new();
    map.append("x-api-key", HeaderValue::from_static("alice"));
    for (name, value) in headers {
        map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    }
    let peer = [192, 0, 2, 1].into();
    WORK.with(|work| work.set(0));
    let request = RequestAttributes::new(&Method::GET, &uri, &map, peer);
    let readings = request.path_readings();
    let candidates = index.candidates(&request, &readings);
    let limits = candidates.into_iter().map(|n| n as usize);
    let _ = policy.identify(limits, &request, &readings, &KeySecret::new([1; 16])).count();
    WORK.with(std::cell::Cell::get)
}

#[test]
fn no_request_costs_more_than_twenty_plain_ones() {
    let mut table = String::new();
    let mut too_much = Vec::new();
    for (what, policy) in policies() {
        let index = LimitIndex::new(policy.limits.iter().map(|limit| &*limit.conditions));
        let plain = REST + work(&policy, &index, "/a/orders?page=2", &[("cookie", "theme=dark".into())]);
        let _ = writeln!(table, "{what}: {plain} for a plain request");
        for (how, target, headers) in hostile() {
            let cost = REST + work(&policy, &index, &target, &headers);
            let _ = writeln!(table, "  {how}: {:.1} times", cost as f64 / plain as f64);
            if cost > MOST * plain {
                too_much.push(format!("{what}, {how}: {cost} against {plain}"));
            }
        }
    }
    println!("{table}");
    assert!(too_much.is_empty(), "{}", too_much.join("\n"));
}
