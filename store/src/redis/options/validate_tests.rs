//! Tests of the validation of options.

use std::time::Duration;

use super::redis_options::{ClientCertificate, RedisOptions, Secret, Topology};
use super::{ConnectPlan, OptionsError};
use crate::redis::connect::Target;

fn error(options: &RedisOptions) -> OptionsError {
    let error = options.validate().err().unwrap();
    for text in [format!("{error} {error:?}"), format!("{options:?}")] {
        assert!(!text.contains("hunter2"), "the message repeats the password: {text}");
    }
    error
}

#[test]
fn invalid_options_are_rejected_without_repeating_the_password() {
    let url = |url: &str| error(&RedisOptions::new(url));
    assert_eq!(url("http://user:hunter2@localhost"), OptionsError::Scheme);
    assert!(matches!(url("redis://user:hunter2@:x:y"), OptionsError::Url(_)));
    assert!(matches!(url("redis://user:hunter2@localhost/db"), OptionsError::Url(_)));
    assert!(matches!(url("redis://u:hunter2@host:port"), OptionsError::Url(_)));
    assert!(!url("redis://u:1?protocol=hunter3@host").to_string().contains("hunter3"));
    assert_eq!(url("rediss://localhost#insecure"), OptionsError::Insecure);
    assert_eq!(url("rediss://localhost"), OptionsError::NoTlsProvider);
    let with = |change: fn(&mut RedisOptions)| {
        let mut options = RedisOptions::new("redis://user:hunter2@localhost:6379");
        change(&mut options);
        error(&options)
    };
    assert_eq!(with(|o| o.password = Some(Secret::new("hunter2"))), OptionsError::TwoPasswords);
    assert_eq!(
        with(|o| *o = RedisOptions { username: Some("me".into()), ..RedisOptions::new("redis://h") }),
        OptionsError::NoPassword
    );
    let client = ClientCertificate { certificate_pem: vec![1], key_pem: b"hunter2".into() };
    let options = RedisOptions { client_certificate: Some(client), ..RedisOptions::new("redis://h") };
    assert_eq!(error(&options), OptionsError::ClientWithoutTls);
    assert_eq!(with(|o| o.ca_pem = Some(vec![1])), OptionsError::CaWithoutTls);
    assert_eq!(with(|o| o.latency_budget = Duration::ZERO), OptionsError::Budget(Duration::ZERO));
    assert_eq!(with(|o| o.prefix = "a{b".into()), OptionsError::Prefix("a{b".into()));
    assert_eq!(with(|o| o.partitions = 0), OptionsError::Partitions);
}

#[test]
fn invalid_options_of_several_servers_are_rejected_without_repeating_the_password() {
    let cluster = |urls: &[&str]| error(&RedisOptions::cluster(urls.iter().copied()));
    assert_eq!(cluster(&[]), OptionsError::NoUrl);
    assert_eq!(cluster(&["redis://:hunter2@a", "http://b"]), OptionsError::Scheme);
    assert_eq!(cluster(&["redis://:hunter2@a", "redis://b"]), OptionsError::Differ);
    assert_eq!(cluster(&["redis://a", "rediss://b"]), OptionsError::Differ);
    assert_eq!(cluster(&["redis://:hunter2@a/1"]), OptionsError::Database);
    let sentinel = |urls: &[&str], master: &str| error(&RedisOptions::sentinel(urls.iter().copied(), master));
    assert_eq!(sentinel(&[], "main"), OptionsError::NoUrl);
    assert_eq!(sentinel(&["redis://:hunter2@a"], ""), OptionsError::Master(String::new()));
    assert_eq!(sentinel(&["redis://:hunter2@a/1"], "main"), OptionsError::Database);
    let mut options = RedisOptions::sentinel(["redis://a"], "main");
    options.topology = Topology::Sentinel {
        urls: vec!["redis://:hunter2@a".into()],
        master: "main".into(),
        username: None,
        password: Some(Secret::new("hunter2")),
    };
    assert_eq!(error(&options), OptionsError::TwoPasswords);
}

#[test]
fn valid_options_are_accepted() {
    let mut options = RedisOptions::new("redis://localhost/3");
    options.password = Some(Secret::new("hunter2"));
    let Ok(ConnectPlan::Standalone(target)) = options.validate() else { panic!("the options are rejected") };
    assert_eq!((target.address.as_str(), target.tls), ("localhost:6379", false));
    let info = target.client.get_connection_info().redis_settings().clone();
    assert_eq!((info.db(), info.password(), info.username()), (3, Some("hunter2"), None));
    assert!(!format!("{options:?}").contains("hunter2"));
}

#[test]
fn the_credentials_of_sentinels_and_of_the_master_are_kept_apart() {
    let mut options =
        RedisOptions::sentinel(["redis://watch:hunter2@a:26379", "redis://watch:hunter2@b:26379"], "main");
    (options.username, options.password) = (Some("sluice".into()), Some(Secret::new("hunter3")));
    let Ok(ConnectPlan::Sentinel { sentinels, master, template }) = options.validate() else {
        panic!("the options are rejected")
    };
    assert_eq!((sentinels.len(), sentinels[1].address.as_str(), master.as_str()), (2, "b:26379", "main"));
    let credentials = |target: &Target| {
        let settings = target.client.get_connection_info().redis_settings().clone();
        (settings.username().map(str::to_owned), settings.password().map(str::to_owned))
    };
    assert_eq!(credentials(&sentinels[0]), (Some("watch".into()), Some("hunter2".into())));
    let master = template.target("10.0.0.1", 6379).unwrap();
    assert_eq!(credentials(&master), (Some("sluice".into()), Some("hunter3".into())));
    options.password = None;
    assert_eq!(error(&options), OptionsError::NoPassword);
}
