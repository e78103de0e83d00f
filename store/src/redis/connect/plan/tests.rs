//! Tests of the validation of options.

use std::time::Duration;

use super::ConnectPlan;
use crate::redis::connect::Target;
use crate::redis::options::{OptionsError, RedisOptions, Secret, Topology};

/// Changes the options of a URL, and returns the error that follows.
fn error(url: &str, change: impl FnOnce(&mut RedisOptions)) -> OptionsError {
    let mut options = RedisOptions::from_url(url).unwrap();
    change(&mut options);
    let error = options.validate().err().unwrap();
    for text in [format!("{error} {error:?}"), format!("{options:?}")] {
        assert!(!text.contains("hunter2"), "the message repeats the password: {text}");
    }
    error
}

fn credentials(target: &Target) -> (Option<String>, Option<String>) {
    let settings = target.client.get_connection_info().redis_settings();
    (settings.username().map(str::to_owned), settings.password().map(str::to_owned))
}

#[test]
fn invalid_options_are_rejected_without_repeating_the_password() {
    const URL: &str = "redis://user:hunter2@localhost:6379";
    assert_eq!(error("rediss://localhost", |_| {}), OptionsError::NoTlsProvider);
    assert_eq!(error(URL, |o| o.password = None), OptionsError::NoPassword);
    assert_eq!(error(URL, |o| o.latency_budget = Duration::ZERO), OptionsError::Budget(Duration::ZERO));
    assert_eq!(error(URL, |o| o.prefix = "a{b".into()), OptionsError::Prefix("a{b".into()));
    for partitions in [0, 1025] {
        assert_eq!(error(URL, |o| o.partitions = partitions), OptionsError::Partitions(partitions));
    }
    let standalone = Topology::Standalone { database: 0 };
    assert_eq!(error("redis+cluster://a,b", |o| o.topology = standalone), OptionsError::Several);
    for url in [URL, "redis+cluster://:hunter2@a", "redis+sentinel://:hunter2@a/main"] {
        assert_eq!(error(url, |o| o.endpoints.clear()), OptionsError::NoEndpoint, "{url}");
    }
    for master in ["", "a b"] {
        let topology = Topology::Sentinel { master: master.into(), username: None, password: None };
        let error = error("redis+sentinel://:hunter2@a/main", |o| o.topology = topology);
        assert_eq!(error, OptionsError::Master(master.into()));
    }
}

#[test]
fn valid_options_are_accepted() {
    let mut options = RedisOptions::from_url("redis://localhost/3").unwrap();
    options.password = Some(Secret::new("hunter2"));
    let Ok(ConnectPlan::Standalone(target)) = options.validate() else { panic!("the options are rejected") };
    assert_eq!((target.address.as_str(), target.tls), ("localhost:6379", false));
    assert_eq!(target.client.get_connection_info().redis_settings().db(), 3);
    assert_eq!(credentials(&target), (None, Some("hunter2".into())));
    for partitions in [1, 1024] {
        assert_eq!(RedisOptions { partitions, ..options.clone() }.check(), Ok(()));
    }
}

#[test]
fn the_credentials_of_sentinels_and_of_the_master_are_kept_apart() {
    let mut options = RedisOptions::from_url("redis+sentinel://sluice:hunter3@a,b/main").unwrap();
    let Topology::Sentinel { username, password, .. } = &mut options.topology else { panic!() };
    (*username, *password) = (Some("watch".into()), Some(Secret::new("hunter2")));
    let Ok(ConnectPlan::Sentinel(sentinels)) = options.validate() else { panic!("the options are rejected") };
    let targets = sentinels.targets();
    assert_eq!((targets.len(), targets[1].address.as_str(), sentinels.name()), (2, "b:26379", "main"));
    assert_eq!(credentials(&targets[0]), (Some("watch".into()), Some("hunter2".into())));
    let master = sentinels.template().target("10.0.0.1", 6379).unwrap();
    assert_eq!(credentials(&master), (Some("sluice".into()), Some("hunter3".into())));
}

#[test]
fn all_servers_of_a_cluster_get_the_same_credentials() {
    let options = RedisOptions::from_url("redis+cluster://u:hunter2@a,[::1]:7000").unwrap();
    let Ok(ConnectPlan::Cluster { seeds, template }) = options.validate() else {
        panic!("the options are rejected")
    };
    let addresses: Vec<_> = seeds.iter().map(|seed| seed.address.as_str()).collect();
    assert_eq!(addresses, ["a:6379", "::1:7000"]);
    let discovered = template.target("10.0.0.1", 6379).unwrap();
    for target in seeds.iter().chain([&discovered]) {
        assert_eq!(credentials(target), (Some("u".into()), Some("hunter2".into())));
    }
}
