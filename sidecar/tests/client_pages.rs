//! The pages of the debug port: the clients that limits deny most, what a client has left, and what limits do about a
//! request.

use serde_json::{Value, json};
use sluice_config::store_access::StoreChoice;
use sluice_sidecar::Sidecar;
use sluice_store::{Clock, KeyHash};

use crate::support::*;

/// Asks a page a question, and returns status and body.
async fn ask(sidecar: &Sidecar, path: &str, question: &str) -> (u16, String) {
    let mut client = Client::connect(sidecar.debug().unwrap()).await;
    let length = question.len();
    let head =
        format!("POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    client.send(head + question).await;
    let response = client.response_to("POST").await;
    (response.status, response.body)
}

async fn answer(sidecar: &Sidecar, path: &str, question: &Value) -> Value {
    let (status, body) = ask(sidecar, path, &question.to_string()).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

async fn peek(sidecar: &Sidecar, limit: &str, client: Value) -> Value {
    let question = json!({"policy": "shop/checkout", "limit": limit, "client": client});
    answer(sidecar, "/keys/peek", &question).await
}

async fn top(sidecar: &Sidecar) -> Value {
    let response = page(sidecar.debug().unwrap(), "/keys/top").await;
    assert_eq!((response.status, response.header("content-type")), (200, "application/json"));
    response.json()
}

fn start(application: &Application, limits: &[String]) -> Sidecar {
    let sidecar = sidecar_tuned(application.address, |options| {
        options.clock = Clock::manual(1_700_000_000_000 / 60_000 * 60_000);
        options.admin = Some("127.0.0.1:0".parse().unwrap());
        options.debug = Some("127.0.0.1:0".parse().unwrap());
    });
    publish(&sidecar, &StoreChoice::Memory, &[policy(limits)]);
    sidecar
}

/// Returns client and number of denials of each entry of a limit.
fn clients(top: &Value, limit: &str) -> Vec<(String, u64)> {
    let limits = top["limits"].as_array().unwrap();
    let entry = limits.iter().find(|entry| entry["limit"] == limit);
    let clients = entry.map(|entry| entry["clients"].as_array().unwrap().as_slice()).unwrap_or_default();
    clients
        .iter()
        .map(|client| (client["client"].as_str().unwrap().to_owned(), client["denied"].as_u64().unwrap()))
        .collect()
}

/// Lets operators read the key of a limit.
fn with_public_key(limit: &str) -> String {
    limit.replace(r#"{"name":"x-api-key"}"#, r#"{"name":"x-api-key"},"public":true"#)
}

#[tokio::test]
async fn the_clients_that_are_denied_most_come_first_and_only_public_parts_are_shown() {
    let application = Application::start().await;
    let public = with_public_key(&limit("public", 2, ""));
    let hidden = limit("hidden", 4, "");
    let sidecar = start(&application, &[public, hidden]);
    assert_eq!(top(&sidecar).await, json!({"limits": []}));
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for (key, requests) in [("few", 3), ("many", 7), ("none", 1)] {
        for _ in 0..requests {
            client.get(&format!("x-api-key: {key}\r\n")).await;
        }
    }
    let top = top(&sidecar).await;
    let named = |name: &str, denied| (format!("header x-api-key={name}"), denied);
    assert_eq!(clients(&top, "public"), [named("many", 5), named("few", 1)]);
    assert_eq!(clients(&top, "hidden"), [], "it had room whenever the other one denied");
    assert_eq!(
        (&top["limits"][0]["policy"], &top["limits"][0]["seconds"]),
        (&json!("shop/checkout"), &json!(0))
    );
    let key = top["limits"][0]["clients"][0]["key"].as_str().unwrap();
    assert_eq!(key.len(), KeyHash(0).to_string().len());

    // An edit of the policy forgets nothing, unless a part is not public any more.
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[with_public_key(&limit("public", 1, ""))])]);
    client.get("x-api-key: many\r\n").await;
    assert_eq!(clients(&self::top(&sidecar).await, "public"), [named("many", 6), named("few", 1)]);
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limit("public", 1, "")])]);
    client.get("x-api-key: many\r\n").await;
    assert_eq!(clients(&self::top(&sidecar).await, "public"), [named("hidden", 1)]);
}

#[tokio::test]
async fn requests_that_are_marked_or_only_observed_are_listed_too() {
    let application = Application::start().await;
    let mark = with_public_key(&limit("mark", 1, r#","onLimit":{"mark":{"header":"x-rate-limited"}}"#));
    let shadow = with_public_key(&limit("shadow", 2, r#","mode":"Shadow""#));
    let sidecar = start(&application, &[mark, shadow]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for _ in 0..5 {
        assert_eq!(client.get("x-api-key: a\r\n").await.status, 200);
    }
    let top = top(&sidecar).await;
    assert_eq!(clients(&top, "mark"), [("header x-api-key=a".to_owned(), 4)]);
    assert_eq!(clients(&top, "shadow"), [("header x-api-key=a".to_owned(), 3)]);
}

#[tokio::test]
async fn only_the_debug_port_has_the_list() {
    let application = Application::start().await;
    let sidecar = start(&application, &[limit("l", 1, "")]);
    assert_eq!(page(sidecar.admin().unwrap(), "/keys/top").await.status, 404);
    for path in ["/metrics", "/livez", "/", "/keys"] {
        assert_eq!(page(sidecar.debug().unwrap(), path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_look_at_a_client_counts_nothing_and_blocks_nobody() {
    let application = Application::start().await;
    let block = limit("login", 2, r#","onLimit":{"block":{"after":3,"within":"1m","for":"10m"}}"#);
    let sidecar = start(
        &application,
        &[block, limit("everyone", 9, "").replace(r#"{"header":{"name":"x-api-key"}}"#, "")],
    );
    let acme = || json!({"values": ["acme"]});
    let rate = |peeked: &Value| peeked["state"]["rates"][0].clone();
    let unused = peek(&sidecar, "login", acme()).await;
    let rule = "Limit login admits 2 requests per minute.";
    assert_eq!(
        rate(&unused),
        json!({"rule": rule, "limit": 2, "remaining": 2, "hasRoom": true, "resetSeconds": 0.0})
    );
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for status in [200, 200, 429, 429] {
        assert_eq!(client.get("x-api-key: acme\r\n").await.status, status);
    }
    // More looks than denials would begin the block.
    for _ in 0..5 {
        let peeked = peek(&sidecar, "login", acme()).await;
        assert_eq!(
            rate(&peeked),
            json!({"rule": rule, "limit": 2, "remaining": 0, "hasRoom": false, "resetSeconds": 60.0})
        );
    }
    assert_eq!(client.get("x-api-key: acme\r\n").await.status, 429, "the third denial begins the block");
    let blocked = peek(&sidecar, "login", acme()).await;
    assert_eq!(rate(&blocked)["blockedSeconds"], 600.0);
    // The list names the same client by its hash.
    let key = top(&sidecar).await["limits"][0]["clients"][0]["key"].clone();
    assert_eq!(blocked["key"], key);
    assert_eq!(peek(&sidecar, "login", json!({"hash": key})).await, blocked);
    assert_eq!(rate(&peek(&sidecar, "everyone", json!({"values": []})).await)["remaining"], 7);
    assert_eq!(rate(&peek(&sidecar, "login", json!({"values": ["other"]})).await)["remaining"], 2);
}

#[tokio::test]
async fn an_explanation_names_the_limits_of_a_request_and_why_the_others_do_not_apply() {
    let application = Application::start().await;
    let with = |name: &str, extra: &str| limit(name, 5, extra);
    let tiers = r#""tiers":[{"name":"gold","matches":[{"headers":[{"name":"x-plan","exact":"gold"}]}],"allowance":"unlimited"}],"base""#;
    let limits = [
        with_public_key(&with("counts", "")),
        with("elsewhere", r#","matches":[{"path":{"prefix":"/admin","caseSensitive":true}}]"#),
        with(
            "exempt",
            r#","except":[{"path":{"prefix":"/admin","caseSensitive":true}},{"path":{"exact":"/orders","caseSensitive":true}}]"#,
        ),
        with("skips", r#","onMissing":"Skip","mode":"Shadow""#).replace("x-api-key", "x-tenant"),
        with("refuses", r#","onMissing":"Deny""#).replace("x-api-key", "x-tenant"),
        with("tiers", "").replace(r#""base""#, tiers),
        with("bans", "").replace(r#""base""#, &tiers.replace("unlimited", "deny")),
        // The request has no such header, and the empty text is no number.
        with("errs", r#","when":"is internal""#),
    ];
    let sidecar = start(&application, &limits);
    let question =
        |target: &str, headers: Value| json!({"method": "GET", "target": target, "headers": headers});
    let headers = json!([["x-api-key", "acme"], ["x-plan", "gold"]]);
    let explained = answer(&sidecar, "/explain", &question("/orders?page=2", headers)).await;
    let key = peek(&sidecar, "counts", json!({"values": ["acme"]})).await["key"].clone();
    let of = |name: &str| {
        let limits = explained["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["limit"] == name).unwrap().clone()
    };
    let state = json!({"rates": [{"rule": "Limit counts admits 5 requests per minute.", "limit": 5, "remaining": 5, "hasRoom": true, "resetSeconds": 0.0}]});
    let counts = json!({"policy": "shop/checkout", "limit": "counts", "effect": "Reject", "result": "Counts", "key": key,
        "client": "header x-api-key=acme", "cost": 1, "state": state});
    assert_eq!(of("counts"), counts);
    for (name, result, reason) in [
        (
            "elsewhere",
            "DoesNotApply",
            "no entry of matches applies: the request does not fulfil matches[0].path",
        ),
        ("exempt", "DoesNotApply", "except[1] applies"),
        ("skips", "DoesNotApply", "header x-tenant, a part of the key, is missing, and onMissing is Skip"),
        ("refuses", "Denies", "header x-tenant, a part of the key, is missing, and onMissing is Deny"),
        ("bans", "Denies", "tier gold admits nothing"),
        ("tiers", "DoesNotApply", "tier gold admits everything"),
    ] {
        assert_eq!(
            (of(name)["result"].as_str(), of(name)["reason"].as_str()),
            (Some(result), Some(reason)),
            "{name}"
        );
    }
    assert_eq!(of("skips")["effect"], "Shadow");
    assert_eq!(application.seen.lock().unwrap().len(), 0, "nothing was forwarded");
    let text = sidecar.metrics();
    assert_eq!(of("errs")["result"], "Counts");
    let counts = |line: &str| {
        line.starts_with("sluice_decisions_total{") || line.starts_with("sluice_expression_errors_total{")
    };
    assert!(text.contains("sluice_expression_errors_total{"));
    let counted = |line: &&str| counts(line) && !line.ends_with(" 0");
    assert_eq!(text.lines().find(counted), None);
}

#[tokio::test]
async fn an_explanation_says_what_decides_without_a_store() {
    let application = Application::start().await;
    let sidecar = start(&application, &[]);
    let denies = prepare(&policy_json("checkout", "Deny", &[limit("counts", 5, "")]));
    publish(&sidecar, &StoreChoice::Unconfigured, &[denies]);
    let question = json!({"method": "GET", "target": "/", "headers": []});
    let explained = answer(&sidecar, "/explain", &question).await;
    let state = &explained["limits"][0]["state"]["noStore"];
    assert_eq!(state["onStoreFailure"], "Deny", "{explained}");
    assert_eq!(get(sidecar.addresses()[0], "").await.status, 429);
}

#[tokio::test]
async fn what_is_wrong_with_a_question_is_said() {
    let application = Application::start().await;
    let sidecar = start(&application, &[limit("l", 1, "")]);
    let peek = |policy: &str, limit: &str, client: Value| {
        ("/keys/peek", json!({"policy": policy, "limit": limit, "client": client}).to_string())
    };
    let explain = |target: &str, method: &str, header: [&str; 2]| {
        ("/explain", json!({"method": method, "target": target, "headers": [header]}).to_string())
    };
    let acme = || json!({"values": ["acme"]});
    for ((path, question), expected) in [
        (("/keys/peek", "{".to_owned()), "the question is not valid: EOF"),
        (("/keys/peek", "\u{0}".to_owned()), "the question is not valid: expected value"),
        (
            ("/explain", json!({"method": "GET", "target": "/", "later": 1}).to_string()),
            "unknown field `later`",
        ),
        (peek("shop/other", "l", acme()), "this pod enforces no policy shop/other"),
        (peek("shop/checkout", "other", acme()), "policy shop/checkout has no limit other: its limits are l"),
        (
            peek("shop/checkout", "l", json!({"values": []})),
            "limit l: the key of the limit has one part, header x-api-key: give its value",
        ),
        (
            peek("shop/checkout", "l", json!({"hash": "abc"})),
            "\"abc\": not the hash of a key, which has 22 characters",
        ),
        (explain("orders", "GET", ["a", "b"]), "the target \"orders\" does not begin with a slash"),
        (explain("/a b", "GET", ["a", "b"]), "no such request can be sent: invalid uri character"),
        (explain("/", "G T", ["a", "b"]), "no such request can be sent: invalid HTTP method"),
        (explain("/", "GET", ["a b", "b"]), "no such request can be sent: invalid HTTP header name"),
        (explain("/", "GET", ["a", "b\r\nc"]), "no such request can be sent: failed to parse header value"),
    ] {
        let (status, body) = ask(&sidecar, path, &question).await;
        assert!(status == 400 && body.contains(expected), "{question}: {status} {body}");
    }
    let (status, _) = ask(&sidecar, "/explain", &" ".repeat(300 * 1024)).await;
    assert_eq!(status, 413);
    for (path, method, allowed) in [("/explain", "GET", "POST"), ("/keys/top", "POST", "GET, HEAD")] {
        let mut client = Client::connect(sidecar.debug().unwrap()).await;
        client
            .send(format!(
                "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            ))
            .await;
        let response = client.response_to(method).await;
        assert_eq!((response.status, response.header("allow")), (405, allowed));
    }
}

#[tokio::test]
async fn the_policies_in_force_have_their_hashes() {
    let application = Application::start().await;
    let sidecar = start(&application, &[limit("l", 1, "")]);
    let hash = policy(&[limit("l", 1, "")]).hash.to_string();
    let expected = json!({"policies": [{"policy": "shop/checkout", "hash": hash, "store": "default", "health": "healthy"}]});
    assert_eq!(page(sidecar.debug().unwrap(), "/policies").await.json(), expected);
}
