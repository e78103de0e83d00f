//! The tiers of `examples/tiers.yaml`, as `sluice run` enforces them.

use std::path::Path;

use crate::process::{Run, get_with};

/// Starts the example. Its shortest windows are so long that none ends, and differ from the others.
async fn start() -> Run {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/tiers.yaml");
    let text = std::fs::read_to_string(example).unwrap().replace("per: 1m", "per: 24h");
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), text).unwrap();
    Run::start(file.path(), &["--store", "memory"]).await
}

async fn send(run: &Run, customer: &str, plan: &str) -> String {
    get_with(run.address, "/", &format!("x-api-key: {customer}\r\nx-plan: {plan}\r\n")).await
}

/// Sends requests until one is denied. Returns how many were admitted, at most 30.
async fn admitted(run: &Run, customer: &str, plan: &str) -> usize {
    for n in 0..30 {
        let response = send(run, customer, plan).await;
        match response.split(' ').nth(1).unwrap() {
            "200" => {}
            "429" => return n,
            other => panic!("{other}"),
        }
    }
    30
}

#[tokio::test]
async fn each_plan_has_its_own_rate_and_others_have_the_base_rate() {
    let run = start().await;
    for (plan, expected) in [("gold", 20), ("free", 5), ("", 5), ("banned", 0), ("partner", 30)] {
        let customer = format!("customer-of-{plan}");
        assert_eq!(admitted(&run, &customer, plan).await, expected, "{plan}");
    }
    let response = send(&run, "another", "gold").await;
    // The rates of the tier, and none of those that only count.
    let expected = "ratelimit-policy: \"per-customer/24h\";q=20;w=86400, \"per-customer/1h\";q=500;w=3600, \
                    \"per-address\";q=6000;w=86400";
    assert!(response.to_lowercase().contains(expected), "{response}");
    let denied = send(&run, "customer-of-gold", "gold").await;
    assert!(denied.contains("Limit per-customer (tier gold) admits 20 requests per day. "), "{denied}");
    let denied = send(&run, "customer-of-banned", "banned").await;
    assert!(denied.contains("Limit per-customer admits no such requests."), "{denied}");
    assert!(!denied.to_lowercase().contains("retry-after"), "{denied}");
}

#[tokio::test]
async fn a_customer_that_changes_its_plan_keeps_what_it_has_used() {
    let run = start().await;
    assert_eq!(admitted(&run, "grows", "free").await, 5);
    assert_eq!(admitted(&run, "grows", "gold").await, 15, "20 less those that were counted before");
    assert_eq!(admitted(&run, "grows", "free").await, 0);
    assert_eq!(admitted(&run, "grows", "partner").await, 30, "nothing is counted");
    assert_eq!(admitted(&run, "shrinks", "gold").await, 20);
    assert_eq!(admitted(&run, "shrinks", "free").await, 0);
}
