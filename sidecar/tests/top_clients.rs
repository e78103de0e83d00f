//! The page `/keys/top` of the debug port: the clients that limits deny most.
#![allow(clippy::unwrap_used, reason = "helper functions of tests unwrap too")]

mod support;

use serde_json::{Value, json};
use sluice_config::store_access::StoreChoice;
use sluice_sidecar::Sidecar;
use sluice_store::{Clock, KeyHash};
use support::*;

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

#[tokio::test]
async fn the_clients_that_are_denied_most_come_first_and_only_public_parts_are_shown() {
    let application = Application::start().await;
    let public = limit("public", 2, r#","publicParts":[0]"#);
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
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limit("public", 1, r#","publicParts":[0]"#)])]);
    client.get("x-api-key: many\r\n").await;
    assert_eq!(clients(&self::top(&sidecar).await, "public"), [named("many", 6), named("few", 1)]);
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limit("public", 1, "")])]);
    client.get("x-api-key: many\r\n").await;
    assert_eq!(clients(&self::top(&sidecar).await, "public"), [named("hidden", 1)]);
}

#[tokio::test]
async fn requests_that_are_marked_or_only_observed_are_listed_too() {
    let application = Application::start().await;
    let mark = limit("mark", 1, r#","mark":"x-rate-limited","publicParts":[0]"#);
    let shadow = limit("shadow", 2, r#","mode":"Shadow","publicParts":[0]"#);
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
