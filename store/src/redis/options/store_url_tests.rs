//! Tests of stores' URLs.

use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::error::OptionsError;
use super::redis_options::{RedisOptions, Secret, Topology};

fn urls(options: &RedisOptions) -> Vec<String> {
    match &options.topology {
        Topology::Standalone { url } => vec![url.clone()],
        Topology::Sentinel { urls, .. } | Topology::Cluster { urls } => urls.clone(),
    }
}

#[test]
fn a_url_names_the_topology_and_its_servers() {
    let of = |url: &str| RedisOptions::from_url(url).unwrap();
    let one = of("redis://sluice:p%40ss@[::1]:6380/3");
    assert!(
        matches!(&one.topology, Topology::Standalone { url } if url == "redis://sluice:p%40ss@[::1]:6380/3")
    );

    let cluster = of("rediss+cluster://u:p%2C@a.example:7000,10.0.0.1,[fd00::1]:7002/0");
    assert!(matches!(cluster.topology, Topology::Cluster { .. }) && cluster.password.is_none());
    let expected = ["a.example:7000", "10.0.0.1:6379", "[fd00::1]:7002"];
    assert_eq!(urls(&cluster), expected.map(|server| format!("rediss://u:p%2C@{server}")));

    let sentinel = of("redis+sentinel://u:p%2Fw@a,b:26380,[::2]/my-master");
    let expected = ["a:26379", "b:26380", "[::2]:26379"];
    assert_eq!(urls(&sentinel), expected.map(|server| format!("redis://{server}")), "without the user");
    let Topology::Sentinel { master, username, password, .. } = &sentinel.topology else { panic!() };
    assert_eq!((master.as_str(), username, password), ("my-master", &None, &None));
    assert_eq!((sentinel.username.as_deref(), sentinel.password), (Some("u"), Some(Secret::new("p/w"))));
    // The last @ ends the password, as in the URL of a single server.
    assert_eq!(of("redis+sentinel://:p@ss@a/main").password, Some(Secret::new("p@ss")));
    assert!(of("redis+sentinel://a/main/0").check().is_ok());
    assert!(of("redis+cluster://a").check().is_ok() && of("redis+cluster://a/").check().is_ok());
}

#[test]
fn an_invalid_url_is_rejected_with_the_reason_and_without_the_password() {
    let error = |url: &str| {
        let error = RedisOptions::from_url(url).unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("hunter2"), "{text}");
        error
    };
    for url in ["", "hunter2", "redis:/hunter2", "http://:hunter2@a", "redis+://a", "redis+hunter2://a"] {
        assert_eq!(error(url), OptionsError::Scheme, "{url}");
    }
    for url in ["REDIS://a", "cluster+redis://a", "redis-sentinel://a/main", "valkey://a", "unix:///a"] {
        assert_eq!(error(url), OptionsError::Scheme, "{url}");
    }
    assert_eq!(error("redis://:hunter2@a:1,b:2"), OptionsError::Several);
    assert_eq!(error("redis+cluster://:hunter2@a/1"), OptionsError::Database);
    assert_eq!(error("redis+sentinel://:hunter2@a/main/1"), OptionsError::Database);
    assert_eq!(error("redis+sentinel://:hunter2@a,b"), OptionsError::Master(String::new()));
    assert_eq!(error("rediss+cluster://:hunter2@a#insecure"), OptionsError::Insecure);
    for (url, expected) in [
        ("redis+cluster://", "its server has no host"),
        ("redis+cluster://a,,b", "server 2 of 3 has no host"),
        ("redis+cluster://:hunter2@a,", "server 2 of 2 has no host"),
        ("redis+sentinel://a,:1/main", "server 2 of 2 has no host"),
        ("redis+cluster://a:0,b", "server 1 of 2 has a port"),
        ("redis+cluster://a:65536", "has a port"),
        ("redis+cluster://a:+1", "has a port"),
        ("redis+cluster://a:", "has a port"),
        ("redis://:hunter2@a:b", "has a port"),
        ("redis+cluster://fd00::1:6379", "write an IPv6 address in brackets"),
        ("redis+cluster://[fd00::1", "has"),
        ("redis+cluster://[hunter2]:1", "no IPv6 address"),
        ("redis+cluster://[::1]1", "has a port"),
        ("redis+cluster://a b", "an invalid host name"),
        ("redis+cluster://a,b\n", "server 2 of 2 has an invalid host name"),
        ("redis+sentinel://\u{430}/main", "an invalid host name"),
        ("redis+cluster://0.0.0.0", "wildcard"),
        ("redis+cluster://:hun/ter@hunter2", "a / before its @"),
        ("redis://:hunter2/x@a", "a / before its @"),
        ("redis+sentinel://:hunter2?@a/main", "a ? or a #"),
        ("redis://a?protocol=hunter2", "a ? or a #"),
        ("redis://a/hunter2", "database"),
        ("redis+cluster://:%ff@a", "UTF-8"),
        ("redis+cluster://u:hunter2@a:1,u:hunter2@b:2", "an @ after its first server"),
        ("redis+sentinel://:hunter2@a,:hunter2@b/main", "an @ after its first server"),
    ] {
        let text = error(url).to_string();
        assert!(text.contains(expected), "{url}: {text}");
    }
}

#[test]
fn credentials_outside_of_the_url_are_added_where_they_belong() {
    let secret = || Some(Secret::new("hunter2"));
    let of = |url: &str| RedisOptions::from_url(url).unwrap();
    let sentinel = of("redis+sentinel://u@a/main").with_user(None, secret()).unwrap();
    let sentinel = sentinel.with_sentinel_user(Some("watch".into()), secret()).unwrap();
    assert_eq!((sentinel.username.as_deref(), &sentinel.password), (Some("u"), &secret()));
    let Topology::Sentinel { username, password, .. } = &sentinel.topology else { panic!() };
    assert_eq!((username.as_deref(), password), (Some("watch"), &secret()));
    assert!(sentinel.check().is_ok() && !format!("{sentinel:?}").contains("hunter2"));

    for url in ["redis://:p@a", "redis+cluster://:p@a", "redis+sentinel://:p@a/main"] {
        let both = of(url).with_user(None, secret()).and_then(|options| options.check());
        assert_eq!(both, Err(OptionsError::TwoPasswords), "{url}");
    }
    for url in ["redis://a", "redis+cluster://a"] {
        assert!(of(url).with_sentinel_user(None, None).is_ok());
        let watched = of(url).with_sentinel_user(None, secret());
        assert_eq!(watched.err(), Some(OptionsError::NoSentinels), "{url}");
    }
    let nameless = of("redis+sentinel://a/main").with_sentinel_user(Some("watch".into()), None).unwrap();
    assert_eq!(nameless.check(), Err(OptionsError::NoPassword));
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9-]{0,9}(\\.[a-z][a-z0-9]{0,9}){0,2}",
        any::<[u8; 4]>()
            .prop_filter("no wildcard", |ip| *ip != [0; 4])
            .prop_map(|ip| { std::net::Ipv4Addr::from(ip).to_string() }),
        any::<u128>()
            .prop_filter("no wildcard", |ip| *ip != 0)
            .prop_map(|ip| { format!("[{}]", Ipv6Addr::from_bits(ip)) }),
    ]
}

proptest! {
    #[test]
    fn a_url_of_several_servers_is_read_back_as_it_was_written(
        servers in proptest::collection::vec((host(), proptest::option::of(1u16..)), 1..6),
        password in proptest::option::of("\\PC{1,20}"),
        tls in any::<bool>(),
    ) {
        let encoded = |text: &str| text.bytes().map(|b| format!("%{b:02x}")).collect::<String>();
        let user = password.as_deref().map_or_else(String::new, |word| format!("u:{}@", encoded(word)));
        let scheme = if tls { "rediss" } else { "redis" };
        let list: Vec<_> = servers
            .iter()
            .map(|(host, port)| port.map_or_else(|| host.clone(), |port| format!("{host}:{port}")))
            .collect();
        let list = list.join(",");
        let with = |default: u16, user: &str| -> Vec<String> {
            let server = |(host, port): &(String, Option<u16>)| {
                format!("{scheme}://{user}{host}:{}", port.unwrap_or(default))
            };
            servers.iter().map(server).collect()
        };
        let cluster = RedisOptions::from_url(&format!("{scheme}+cluster://{user}{list}")).unwrap();
        prop_assert_eq!(urls(&cluster), with(6379, &user));
        let sentinel = RedisOptions::from_url(&format!("{scheme}+sentinel://{user}{list}/main")).unwrap();
        prop_assert_eq!(urls(&sentinel), with(26379, ""));
        prop_assert_eq!(sentinel.password, password.map(Secret::new));
    }

    #[test]
    fn no_message_repeats_the_password_of_any_url(
        scheme in "rediss?(\\+(cluster|sentinel))?",
        before in "[a:/?#@,%\\[\\] 0-9]{0,6}",
        after in "[a:/?#,%\\[\\] 0-9]{0,6}",
        rest in "(a|:|,|/|\\[|::1|\\]|[0-9]|#|\\?|\\+|%|\\PC){0,12}",
    ) {
        let url = format!("{scheme}://{before}:{after}hunter2{after}@{rest}");
        let text = match RedisOptions::from_url(&url) {
            Ok(options) => match options.check() {
                Ok(()) => format!("{options:?}"),
                Err(error) => format!("{options:?} {error} {error:?}"),
            },
            Err(error) => format!("{error} {error:?}"),
        };
        prop_assert!(!text.contains("hunter2"), "{}: {}", url, text);
    }

    #[test]
    fn any_text_is_parsed_without_a_panic(url in "(rediss?(\\+(cluster|sentinel))?://)?\\PC{0,40}") {
        if let Ok(options) = RedisOptions::from_url(&url) {
            let _ = options.check();
        }
    }
}
