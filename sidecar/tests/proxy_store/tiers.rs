//! Tiers of a limit in a real Redis: all of them count in the same records, in every pod and through an outage.

use std::sync::Arc;

use sluice_config::PreparedPolicy;

use super::{YEAR, pod, until_unreachable};
use crate::server::Redis;
use crate::support::{Application, get, prepare, redis_at};

/// Returns a policy that admits 10 a year, and of the tier `gold` 40 a year and 30 in half a year.
fn tiers(on_failure: &str) -> Arc<PreparedPolicy> {
    let rate = |requests: u64, period: u64| {
        format!(r#"{{"requests":{requests},"periodMillis":{period},"algorithm":{{"fixedWindow":"Clock"}}}}"#)
    };
    let gold = format!("{},{}", rate(30, YEAR / 2), rate(40, YEAR));
    prepare(&format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"{on_failure}","consistency":"Strict","ambiguousPaths":"Match",
        "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],"kind":{{"rates":{{"base":[{}],
        "tiers":[{{"name":"gold","matches":[{{"headers":[{{"name":"x-plan","exact":"gold"}}]}}],"allowance":{{"rates":[{gold}]}}}}]}}}}}}]}}"#,
        rate(10, YEAR)
    ))
}

/// Sends requests of one client until one is denied. Returns how many were admitted, at most 60.
async fn admitted(sidecar: &sluice_sidecar::Sidecar, plan: &str) -> usize {
    for n in 0..60 {
        let headers = format!("x-api-key: a\r\nx-plan: {plan}\r\n");
        if get(sidecar.addresses()[0], &headers).await.status != 200 {
            return n;
        }
    }
    60
}

#[tokio::test]
async fn pods_count_all_tiers_of_a_client_in_the_same_records() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let store = redis_at(&redis.url());
    let one = pod(&application, &store, &[tiers("Deny")], (0, 2)).await;
    let two = pod(&application, &store, &[tiers("Deny")], (1, 2)).await;
    assert_eq!(admitted(&one, "free").await, 10);
    assert_eq!(admitted(&two, "gold").await, 20, "30 in half a year, less those of the other tier and pod");
    assert_eq!((admitted(&one, "gold").await, admitted(&two, "free").await), (0, 0));
}

#[tokio::test]
async fn an_outage_gives_no_tier_more_than_its_share() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let store = redis_at(&redis.url());
    let one = pod(&application, &store, &[tiers("Share")], (0, 2)).await;
    assert_eq!(admitted(&one, "free").await, 10);
    drop(redis);
    until_unreachable(&one).await;
    assert_eq!(admitted(&one, "free").await, 0);
    assert_eq!(admitted(&one, "gold").await, 10, "half of 30, less half of what was counted");
    assert_eq!((admitted(&one, "free").await, admitted(&one, "gold").await), (0, 0));
}
