//! Metrics and reports of a store.

use std::collections::BTreeMap;

use super::{YEAR, pod, policy, until_unreachable};
use sluice_sidecar::Sidecar;

use crate::server::Redis;
use crate::support::*;

/// Returns the number of checks that the store failed to respond to because of this fault.
fn faults(sidecar: &Sidecar, fault: &str) -> u64 {
    let text = sidecar.metrics();
    let name = format!(r#"sluice_store_faults_total{{store="default",fault="{fault}"}}"#);
    assert!(text.contains(&name), "no {name} in\n{text}");
    metric(&text, &name)
}

const FAULTS: [&str; 8] =
    ["timeout", "overloaded", "unreachable", "slow", "refused", "read-only", "nonsense", "wrong-type"];

#[tokio::test]
async fn faults_are_counted_with_the_values_of_the_response_header_also_those_of_one_key() {
    let (application, mut redis) = (Application::start().await, Redis::start_restartable(&[]));
    let sidecar =
        pod(&application, &redis_at(&redis.url()), &[policy("p", "Strict", "Allow", 100)], (0, 1)).await;
    let address = sidecar.addresses()[0];
    assert_eq!(get(address, "x-api-key: a\r\n").await.header("x-sluice-store-failure"), "");
    assert_eq!(FAULTS.map(|fault| faults(&sidecar, fault)), [0; 8]);

    // Another program overwrites the counter's key with a list, and then with a text.
    let mut connection = redis.connection();
    let keys: Vec<String> = redis::cmd("KEYS").arg("sluice:*").query(&mut connection).unwrap();
    // Beside it there is the registry of the limit's keys.
    let keys: Vec<_> = keys.iter().filter(|key| !key.ends_with(":keys")).collect();
    let [key] = keys[..] else { panic!("{keys:?}") };
    let (): () = redis::cmd("DEL").arg(key).query(&mut connection).unwrap();
    let (): () = redis::cmd("LPUSH").arg(key).arg("x").query(&mut connection).unwrap();
    for _ in 0..3 {
        let response = get(address, "x-api-key: a\r\n").await;
        assert_eq!((response.status, response.header("x-sluice-store-failure")), (200, "wrong-type"));
    }
    let (): () = redis::cmd("SET").arg(key).arg("text").query(&mut connection).unwrap();
    assert_eq!(get(address, "x-api-key: a\r\n").await.header("x-sluice-store-failure"), "nonsense");
    assert_eq!(get(address, "x-api-key: b\r\n").await.header("x-sluice-store-failure"), "");
    assert_eq!(FAULTS.map(|fault| faults(&sidecar, fault)), [0, 0, 0, 0, 0, 0, 1, 3]);
    assert_eq!(metric(&sidecar.metrics(), "sluice_store_healthy"), 1, "all other keys work");

    redis.kill();
    until_unreachable(&sidecar).await;
    let before = faults(&sidecar, "unreachable");
    assert!(before > 0);
    assert_eq!(get(address, "x-api-key: a\r\n").await.header("x-sluice-store-failure"), "unreachable");
    assert_eq!(faults(&sidecar, "unreachable"), before + 1);
}

#[tokio::test]
async fn each_help_text_of_the_store_is_complete_and_unique() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let sidecar =
        pod(&application, &redis_at(&redis.url()), &[policy("p", "Leased", "Share", 100)], (0, 1)).await;
    let text = sidecar.metrics();
    let helps: BTreeMap<_, _> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP sluice_")?.split_once(' '))
        .filter(|(name, _)| ["store_", "lease_", "share_", "denials_"].iter().any(|of| name.starts_with(of)))
        .collect();
    assert!(helps.len() >= 24, "{helps:#?}");
    for (name, help) in &helps {
        let refers = ["Of th", "those", "see ", "above", "below"].iter().any(|word| help.contains(word));
        assert!(!refers, "{name} refers to another text: {help}");
        assert!(!name.starts_with("lease_") || help.contains("leased limit"), "{name}: {help}");
        assert!(
            !name.starts_with("lease_quota") || help.contains("in requests"),
            "{name} has no unit: {help}"
        );
        assert!(!name.contains("seconds") || help.contains("in seconds"), "{name} has no unit: {help}");
    }
    let texts: std::collections::BTreeSet<_> = helps.values().collect();
    assert_eq!(texts.len(), helps.len(), "two help texts are equal");
}

#[tokio::test]
async fn a_limit_with_too_many_keys_shows_in_metrics_and_in_the_report_of_its_policy() {
    let (application, redis) = (Application::start().await, Redis::start(&[]));
    let policy = prepare(&format!(
        r#"{{"namespace":"shop","name":"p","mode":"Enforce","onStoreFailure":"Allow","consistency":"Strict","ambiguousPaths":"Match",
        "limits":[{{"name":"few","mode":"Enforce","onMissing":"Shared","key":[{{"header":{{"name":"x-api-key"}}}}],"maxKeys":640,"kind":{{"rates":{{"base":[
        {{"requests":5,"periodMillis":{YEAR},"algorithm":{{"fixedWindow":"Clock"}}}}]}}}}}}]}}"#
    ));
    let sidecar = pod(&application, &redis_at(&redis.url()), std::slice::from_ref(&policy), (0, 1)).await;
    let address = sidecar.addresses()[0];
    let overflow = || {
        metric(
            &sidecar.metrics(),
            r#"sluice_key_overflow_total{policy_namespace="shop",policy="p",limit="few"}"#,
        )
    };
    assert_eq!((overflow(), policy.findings().nearly_full), (0, vec![]));
    let mut denied = 0;
    for client in 0..1500 {
        denied += u64::from(get(address, &format!("x-api-key: {client}\r\n")).await.status == 429);
    }
    // 64 partitions of 12 keys at most, each with an overflow counter of 5 requests.
    assert!(overflow() >= 1500 - 12 * 64 && denied >= overflow() - 5 * 64, "{} {denied}", overflow());
    assert_eq!(policy.findings().nearly_full, ["few"]);
    let text = sidecar.metrics();
    let usage = text.lines().find(|line| line.starts_with("sluice_key_usage_ratio{")).unwrap();
    let share: f64 = usage.rsplit(' ').next().unwrap().parse().unwrap();
    assert!((0.8..=1.0).contains(&share), "{usage}");
}
