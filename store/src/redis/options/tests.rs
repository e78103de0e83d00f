//! Tests of stores' URLs.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::{
    ClientCertificate, Endpoint, OptionsError, RedisOptions, Secret, StoreCredentials, Tls, Topology,
};

fn of(url: &str) -> RedisOptions {
    RedisOptions::from_url(url).unwrap()
}

fn endpoints(list: &[(&str, u16)]) -> Vec<Endpoint> {
    list.iter().map(|&(host, port)| Endpoint { host: host.to_owned(), port }).collect()
}

#[test]
fn a_url_names_the_topology_and_its_servers() {
    let one = of("redis://sluice:p%40ss@[::1]:6380/3");
    assert_eq!(one.topology, Topology::Standalone { database: 3 });
    assert_eq!((one.endpoints, one.tls), (endpoints(&[("::1", 6380)]), None));
    assert_eq!((one.username.as_deref(), one.password), (Some("sluice"), Some(Secret::new("p@ss"))));

    let cluster = of("rediss+cluster://u:p%2C@a.example:7000,10.0.0.1,[fd00::1]:7002/0");
    assert_eq!((&cluster.topology, cluster.tls), (&Topology::Cluster, Some(Tls::default())));
    let expected = [("a.example", 7000), ("10.0.0.1", 6379), ("fd00::1", 7002)];
    assert_eq!((cluster.endpoints, cluster.password), (endpoints(&expected), Some(Secret::new("p,"))));

    let sentinel = of("redis+sentinel://u:p%2Fw@a,b:26380,[::2]/my-master");
    assert_eq!(sentinel.endpoints, endpoints(&[("a", 26379), ("b", 26380), ("::2", 26379)]));
    let master = "my-master".to_owned();
    assert_eq!(sentinel.topology, Topology::Sentinel { master, username: None, password: None });
    assert_eq!((sentinel.username.as_deref(), sentinel.password), (Some("u"), Some(Secret::new("p/w"))));
    for (valkey, redis) in [
        ("valkey://:p@a/1", "redis://:p@a/1"),
        ("valkeys://a", "rediss://a"),
        ("valkey+cluster://a,b", "redis+cluster://a,b"),
        ("valkeys+sentinel://a/main", "rediss+sentinel://a/main"),
        // A file often ends so.
        ("redis://a:1\n", "redis://a:1"),
        (" redis://a\r\n", "redis://a"),
    ] {
        assert_eq!(format!("{:?}", of(valkey)), format!("{:?}", of(redis)));
    }
    // The last @ ends the password, and the first colon ends the user.
    assert_eq!(of("redis+sentinel://:p@s:s@a/main").password, Some(Secret::new("p@s:s")));
    assert_eq!(of("redis://:@a").password, None);
    assert!(of("redis+sentinel://a/main/0").check().is_ok());
    assert!(of("redis+cluster://a").check().is_ok() && of("redis+cluster://a/").check().is_ok());
}

#[test]
fn a_socket_has_a_path_credentials_and_a_database() {
    let plain = of("unix:///run/redis.sock");
    assert_eq!(plain.endpoints, endpoints(&[("/run/redis.sock", 0)]));
    assert!(plain.endpoints[0].is_socket() && plain.check().is_ok());
    let all = of("unix://sluice:p%40%2F@/run/a%20b.sock?db=3\n");
    assert_eq!(all.topology, Topology::Standalone { database: 3 });
    assert_eq!(
        (all.endpoints, all.username.as_deref()),
        (endpoints(&[("/run/a b.sock", 0)]), Some("sluice"))
    );
    assert_eq!(all.password, Some(Secret::new("p@/")));
    let long = format!("unix:///{}", "a".repeat(107));
    for url in [
        "unix://",
        "unix://run/redis.sock",
        "unix://hunter2@run",
        "unix://u:hunter2/run/redis.sock",
        "unix:///a?db=x",
        "unix:///a?database=1",
        "unix:///a?db=-1",
        "unix:///a%00",
        &long,
    ] {
        let error = RedisOptions::from_url(url).unwrap_err();
        assert!(
            matches!(error, OptionsError::Url(_)) && !error.to_string().contains("hunter2"),
            "{url}: {error}"
        );
    }
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
    for url in ["REDIS://a", "cluster+redis://a", "redis-sentinel://a/main", "keydb://a", "unix+cluster:///a"]
    {
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
        ("redis+sentinel://\u{430}/main", "an invalid host name"),
        ("redis+cluster://0.0.0.0", "wildcard"),
        ("redis+cluster://a,[::]:1", "server 2 of 2 has a wildcard"),
        ("redis+cluster://:hun/ter@hunter2", "a / before its @"),
        ("redis://:hunter2/x@a", "a / before its @"),
        ("redis+sentinel://:hunter2?@a/main", "a ? or a #"),
        ("redis://a?protocol=hunter2", "a ? or a #"),
        ("redis://a/hunter2", "database is not a number"),
        ("redis://a/+1", "database is not a number"),
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
    let add = |url: &str, credentials| of(url).with_credentials(credentials);
    let password = || StoreCredentials { password: secret(), ..StoreCredentials::default() };
    let watcher = |password| StoreCredentials {
        sentinel_username: Some("watch".into()),
        sentinel_password: password,
        ..StoreCredentials::default()
    };
    let both = StoreCredentials { password: secret(), ..watcher(secret()) };
    let sentinel = add("redis+sentinel://u@a/main", both).unwrap();
    assert_eq!((sentinel.username.as_deref(), &sentinel.password), (Some("u"), &secret()));
    let Topology::Sentinel { username, password: watched, .. } = &sentinel.topology else { panic!() };
    assert_eq!((username.as_deref(), watched), (Some("watch"), &secret()));
    assert!(sentinel.check().is_ok() && !format!("{sentinel:?}").contains("hunter2"));
    let nameless = add("redis+sentinel://a/main", watcher(None)).unwrap();
    assert_eq!(nameless.check(), Err(OptionsError::NoPassword));

    for url in ["redis://:p@a", "redis+cluster://:p@a", "redis+sentinel://:p@a/main"] {
        assert_eq!(add(url, password()).err(), Some(OptionsError::TwoPasswords), "{url}");
    }
    for url in ["redis://a", "redis+cluster://a"] {
        assert!(add(url, password()).unwrap().check().is_ok());
        assert_eq!(add(url, watcher(secret())).err(), Some(OptionsError::NoSentinels), "{url}");
    }
}

#[test]
fn certificates_need_tls() {
    let (certificate, key) = ("hunter2".to_owned(), "hunter2".to_owned());
    let client = Some(ClientCertificate { certificate, key });
    let ca = || StoreCredentials { ca: Some("hunter2".into()), ..StoreCredentials::default() };
    let plain = |credentials| of("redis://a").with_credentials(credentials).err();
    assert_eq!(plain(ca()), Some(OptionsError::CaWithoutTls));
    let only = StoreCredentials { client_certificate: client.clone(), ..StoreCredentials::default() };
    assert_eq!(plain(only), Some(OptionsError::ClientWithoutTls));
    let both = StoreCredentials { client_certificate: client.clone(), ..ca() };
    let options = of("rediss+sentinel://a/main").with_credentials(both).unwrap();
    assert_eq!(options.tls, Some(Tls { ca: Some("hunter2".into()), client_certificate: client.clone() }));
    assert!(!format!("{client:?}").contains("hunter2"));
}

fn host() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z][a-z0-9-]{0,9}(\\.[a-z][a-z0-9]{0,9}){0,2}",
        (1..u32::MAX).prop_map(|ip| Ipv4Addr::from_bits(ip).to_string()),
        (1..u128::MAX).prop_map(|ip| Ipv6Addr::from_bits(ip).to_string()),
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
        let server = |(host, port): &(String, Option<u16>)| {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            port.map_or_else(|| host.clone(), |port| format!("{host}:{port}"))
        };
        let list = servers.iter().map(server).collect::<Vec<_>>().join(",");
        let with = |default: u16| -> Vec<Endpoint> {
            let endpoint = |(host, port): &(String, Option<u16>)| {
                Endpoint { host: host.clone(), port: port.unwrap_or(default) }
            };
            servers.iter().map(endpoint).collect()
        };
        let cluster = of(&format!("{scheme}+cluster://{user}{list}"));
        prop_assert_eq!((&cluster.endpoints, cluster.tls.is_some()), (&with(6379), tls));
        let sentinel = of(&format!("{scheme}+sentinel://{user}{list}/main"));
        prop_assert_eq!((&sentinel.endpoints, sentinel.tls.is_some()), (&with(26379), tls));
        prop_assert_eq!(cluster.password, sentinel.password.clone());
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
