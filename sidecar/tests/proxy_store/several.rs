//! Policies of one pod that count in different stores.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::{Application, get, limit, policy_json, prepare, redis_at, sidecar};
use sluice_config::PreparedPolicy;
use sluice_config::store_access::{StoreChoice, StoreChoices};
use sluice_sidecar::Sidecar;

/// Returns a policy that counts in a store of this name.
fn policy_in(store: &str, on_store_failure: &str, limits: &[String]) -> Arc<PreparedPolicy> {
    let json = policy_json(store, on_store_failure, limits);
    prepare(&json.replace("\"ambiguousPaths\"", &format!("\"store\":\"{store}\",\"ambiguousPaths\"")))
}

fn publish(sidecar: &Sidecar, stores: &[(&str, StoreChoice)], policies: &[Arc<PreparedPolicy>]) {
    let named = policies.iter().map(|policy| (policy.name.clone(), policy.clone())).collect::<Vec<_>>();
    let stores: BTreeMap<_, _> =
        stores.iter().map(|(name, choice)| ((*name).to_owned(), choice.clone())).collect();
    assert_eq!(sidecar.publisher().publish(&StoreChoices { stores, namespaces: None }, &named), []);
}

const KEY: &str = "x-api-key: a\r\n";

#[tokio::test]
async fn a_request_that_one_store_denies_is_charged_in_none() {
    let application = Application::start().await;
    let (sidecar, _) = sidecar(application.address);
    let [narrow, wide] = [
        policy_in("a", "Allow", &[limit("narrow", 2, "")]),
        policy_in("b", "Allow", &[limit("wide", 10, "")]),
    ];
    let stores = [("a", StoreChoice::Memory), ("b", StoreChoice::Memory)];
    publish(&sidecar, &stores, &[narrow.clone(), wide.clone()]);
    let address = sidecar.addresses()[0];
    let statuses = async |n: usize| {
        let mut statuses = Vec::new();
        for _ in 0..n {
            statuses.push(get(address, KEY).await.status);
        }
        statuses
    };
    assert_eq!(statuses(5).await, [200, 200, 429, 429, 429]);
    // Only the two that were admitted stay charged in the other store. A request that is denied there reads the rest.
    publish(&sidecar, &stores, std::slice::from_ref(&wide));
    let mut admitted = 0;
    while get(address, KEY).await.status == 200 {
        admitted += 1;
    }
    assert_eq!(admitted, 8);
}

#[tokio::test]
async fn limits_of_all_stores_are_reported_and_the_narrowest_decides() {
    let application = Application::start().await;
    let (sidecar, _) = sidecar(application.address);
    let policies =
        [policy_in("a", "Allow", &[limit("five", 5, "")]), policy_in("b", "Allow", &[limit("three", 3, "")])];
    publish(&sidecar, &[("a", StoreChoice::Memory), ("b", StoreChoice::Memory)], &policies);
    let address = sidecar.addresses()[0];
    let response = get(address, KEY).await;
    assert_eq!((response.status, response.header("x-ratelimit-remaining")), (200, "2"));
    assert_eq!(sidecar.metrics().matches("sluice_store_healthy{store=").count(), 2);
}

#[tokio::test]
async fn a_store_that_fails_decides_only_its_own_limits() {
    let application = Application::start().await;
    let (sidecar, _) = sidecar(application.address);
    let address = sidecar.addresses()[0];
    let working = policy_in("a", "Deny", &[limit("l", 2, "")]);
    let failing = |on_store_failure| policy_in("b", on_store_failure, &[limit("m", 100, "")]);
    // A free port, without a listener.
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let stores = [("a", StoreChoice::Memory), ("b", redis_at(&format!("redis://{gone}")))];
    publish(&sidecar, &stores, &[working.clone(), failing("Allow")]);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let response = get(address, KEY).await;
        statuses.push(response.status);
    }
    assert_eq!(statuses, [200, 200, 429], "the working store still counts");
    publish(&sidecar, &stores, &[working, failing("Deny")]);
    let response = get(address, "x-api-key: other\r\n").await;
    assert_eq!((response.status, response.header("x-sluice-store-failure")), (429, "unreachable"));
}
