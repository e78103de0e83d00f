use sluice_config::store_access::StoreChoice;

use super::support::*;
use super::{decisions, limited};

/// Ten minutes after three denials within a minute.
const BLOCK: &str = r#","onLimit":{"block":{"after":3,"within":"1m","for":"10m"}}"#;

#[tokio::test]
async fn a_client_that_is_denied_too_often_is_blocked_for_a_while() {
    let application = Application::start().await;
    let (sidecar, clock) = sidecar(application.address);
    let limits = [limited("login", 2, 60_000, "", BLOCK), limited("all", 100, 60_000, "", "")];
    publish(&sidecar, &StoreChoice::Memory, &[policy(&limits)]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    let mut answers = Vec::new();
    for _ in 0..6 {
        let answer = client.get("").await;
        answers.push((answer.status, answer.header("retry-after").to_owned()));
    }
    let answers: Vec<_> = answers.iter().map(|(status, wait)| (*status, wait.as_str())).collect();
    assert_eq!(
        answers,
        [(200, ""), (200, ""), (429, "60"), (429, "60"), (429, "600"), (429, "600")],
        "the third denial begins the block and says so"
    );
    assert_eq!((decisions(&sidecar, "login", "denied"), decisions(&sidecar, "login", "blocked")), (3, 1));

    // The window is free again, and the client still blocked.
    clock.advance(120_000);
    let blocked = client.get("").await;
    assert_eq!((blocked.status, blocked.header("retry-after")), (429, "480"));
    assert_eq!(
        blocked.json()["detail"],
        "Limit login blocks a client for 10 minutes after 3 denied requests within 1 minute. Try again in 8 minutes."
    );
    assert_eq!(blocked.json()["violated-policies"], serde_json::json!(["login"]));
    assert_eq!(blocked.header("ratelimit"), "\"login\";r=0;t=480, \"all\";r=100;t=0");
    assert_eq!(blocked.header("ratelimit-policy"), "\"login\";q=2;w=60, \"all\";q=100;w=60");
    assert_eq!(blocked.header("x-ratelimit-remaining"), "0");
    assert_eq!(
        get(sidecar.addresses()[0], "x-api-key: other\r\n").await.status,
        200,
        "others are not blocked"
    );

    clock.advance(480_000 - 1);
    assert_eq!(client.get("").await.status, 429);
    clock.advance(1);
    assert_eq!(client.get("").await.status, 200, "what was blocked has not lengthened the block");
    assert_eq!(decisions(&sidecar, "login", "blocked"), 3);
}

#[tokio::test]
async fn only_denials_of_the_limit_itself_within_the_time_count() {
    let application = Application::start().await;
    let (sidecar, clock) = sidecar(application.address);
    let limits = [limited("blocks", 4, 60_000, "", BLOCK), limited("other", 1, 60_000, "", "")];
    publish(&sidecar, &StoreChoice::Memory, &[policy(&limits)]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for n in 0..20 {
        assert_eq!(client.get("").await.status, if n == 0 { 200 } else { 429 });
    }
    assert_eq!(decisions(&sidecar, "blocks", "denied"), 0, "the other limit denies");
    // Two denials a minute are too few.
    publish(&sidecar, &StoreChoice::Memory, &[policy(&limits[..1])]);
    for minute in 0..5 {
        clock.advance(60_000);
        let mut denied = 0;
        for _ in 0..6 {
            denied += u32::from(client.get("").await.status == 429);
        }
        assert_eq!(denied, 2, "minute {minute}");
    }
    assert_eq!(decisions(&sidecar, "blocks", "blocked"), 0);
}

#[tokio::test]
async fn a_block_holds_in_all_tiers_and_over_an_edit_of_the_numbers() {
    let application = Application::start().await;
    let (sidecar, _clock) = sidecar(application.address);
    let gold = r#","tiers":[{"name":"gold","matches":[{"headers":[{"name":"x-plan","exact":"gold"}]}],
        "allowance":{"rates":[{"requests":1000,"periodMillis":60000,"algorithm":{"fixedWindow":"Clock"}}]}}]"#;
    let limit = |requests| limited("l", requests, 60_000, gold, BLOCK);
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limit(1)])]);
    let mut client = Client::connect(sidecar.addresses()[0]).await;
    for _ in 0..5 {
        client.get("").await;
    }
    publish(&sidecar, &StoreChoice::Memory, &[policy(&[limit(50)])]);
    assert_eq!(client.get("x-plan: gold\r\n").await.status, 429);
    assert_eq!(client.get("").await.status, 429);
    assert_eq!(decisions(&sidecar, "l", "blocked"), 3);
}
