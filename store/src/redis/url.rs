//! A store in one string: the scheme says the topology, what follows it where the servers are.
//!
//! No error repeats any part of a URL: a password whose special characters were not written as `%XX` stands where
//! nobody looks for one.

use std::net::Ipv6Addr;

use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

use super::options::{OptionsError, RedisOptions, Secret, Topology};

/// Where servers and sentinels listen by custom.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl RedisOptions {
    /// The store that one of these URLs names, with the defaults:
    ///
    /// - `redis://HOST:PORT/DATABASE`: one server.
    /// - `redis+cluster://HOST:PORT,HOST:PORT,...`: a cluster, by some of its servers.
    /// - `redis+sentinel://HOST:PORT,HOST:PORT,.../MASTER`: a master by its name, and the sentinels that know it.
    ///
    /// `rediss` in place of `redis` is TLS, with sentinels too. Ports are 6379 and, for sentinels, 26379 by custom; an
    /// IPv6 address stands in brackets. `USER:PASSWORD@` before the first host, special characters as `%XX`, is for the
    /// servers that hold counters; what sentinels ask for, no URL can say.
    pub fn from_url(url: &str) -> Result<Self, OptionsError> {
        let (scheme, rest) = url.split_once("://").ok_or(OptionsError::Scheme)?;
        let (tls, topology) = match scheme.split_once('+') {
            None => (scheme, None),
            Some((tls, topology)) => (tls, Some(topology)),
        };
        if !matches!(tls, "redis" | "rediss") {
            return Err(OptionsError::Scheme);
        }
        let at = |user: &str, server: &String| format!("{tls}://{user}{server}");
        match topology {
            None => {
                if Parts::of(rest, PORT)?.servers.len() > 1 {
                    return Err(OptionsError::Several);
                }
                parse(url).map(|_| Self::new(url))
            }
            Some("cluster") => {
                let Parts { user, servers, path } = Parts::of(rest, PORT)?;
                if !matches!(path, "" | "0") {
                    return Err(OptionsError::Database);
                }
                let urls: Vec<_> = servers.iter().map(|server| at(user, server)).collect();
                parse_all(&urls).map(|_| Self::cluster(urls))
            }
            Some("sentinel") => {
                let Parts { user, servers, path } = Parts::of(rest, SENTINEL_PORT)?;
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if !matches!(database, "" | "0") {
                    return Err(OptionsError::Database);
                }
                if master.is_empty() {
                    return Err(OptionsError::Master(String::new()));
                }
                let urls: Vec<_> = servers.iter().map(|server| at("", server)).collect();
                parse_all(&urls)?;
                // Whoever has the counters is reached as this one is, but for the address.
                let like = parse(&at(user, servers.first().ok_or(OptionsError::NoUrl)?))?;
                let settings = like.redis_settings();
                Ok(Self {
                    username: settings.username().map(str::to_owned),
                    password: settings.password().map(Secret::new),
                    ..Self::sentinel(urls, master)
                })
            }
            Some(_) => Err(OptionsError::Scheme),
        }
    }

    /// Adds the user and the password at the servers that hold counters, where they do not stand in the URL.
    ///
    /// # Errors
    /// The URL has a password too, as far as that can be seen yet.
    pub fn with_user(self, username: Option<String>, password: Option<Secret>) -> Result<Self, OptionsError> {
        if self.password.is_some() && password.is_some() {
            return Err(OptionsError::TwoPasswords);
        }
        let (username, password) = (username.or(self.username), password.or(self.password));
        Ok(Self { username, password, ..self })
    }

    /// Adds the user and the password at the sentinels.
    ///
    /// # Errors
    /// The URL names no sentinels.
    pub fn with_sentinel_user(
        mut self,
        user: Option<String>,
        secret: Option<Secret>,
    ) -> Result<Self, OptionsError> {
        match &mut self.topology {
            Topology::Sentinel { username, password, .. } => (*username, *password) = (user, secret),
            _ if user.is_some() || secret.is_some() => return Err(OptionsError::NoSentinels),
            _ => {}
        }
        Ok(self)
    }
}

/// What follows the scheme.
struct Parts<'a> {
    /// `USER:PASSWORD@`, as it stands, or nothing.
    user: &'a str,
    /// `HOST:PORT` each, with brackets around an IPv6 address.
    servers: Vec<String>,
    /// What follows the first slash.
    path: &'a str,
}

impl<'a> Parts<'a> {
    fn of(rest: &'a str, port: u16) -> Result<Self, OptionsError> {
        let wrong = |what: &str| Err(OptionsError::Url(what.to_owned()));
        if rest.ends_with("#insecure") {
            return Err(OptionsError::Insecure);
        }
        if rest.contains(['?', '#']) {
            return wrong("there is a ? or a # in it");
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return wrong("there is a / before its @");
        }
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        // Else all servers but the last would be taken for a password.
        if user.split_once('@').is_some_and(|(_, more)| more.contains(',')) {
            return wrong(
                "there is an @ behind its first server: USER:PASSWORD@ stands once, with %40 for an @ in it",
            );
        }
        let count = hosts.split(',').count();
        let mut servers = Vec::with_capacity(count);
        for (at, text) in hosts.split(',').enumerate() {
            match server(text, port) {
                Ok(server) => servers.push(server),
                Err(what) if count == 1 => return wrong(&format!("its server {what}")),
                Err(what) => return wrong(&format!("server {} of {count} {what}", at + 1)),
            }
        }
        Ok(Self { user, servers, path })
    }
}

/// Reads `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`.
fn server(text: &str, default: u16) -> Result<String, &'static str> {
    let (host, port) = if let Some((address, port)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        if address.parse::<Ipv6Addr>().is_err() {
            return Err("has no IPv6 address in its brackets");
        }
        (&text[..address.len() + 2], port)
    } else {
        text.split_at(text.find(':').unwrap_or(text.len()))
    };
    if host.is_empty() {
        return Err("has no host");
    }
    if port.matches(':').count() > 1 {
        return Err("has several colons: an IPv6 address stands in brackets");
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if !host.starts_with('[') && (host.len() > 253 || !host.bytes().all(plain)) {
        return Err("has a host that cannot be one");
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => default,
        Some(digits) if digits.bytes().all(|b| b.is_ascii_digit()) => digits.parse().unwrap_or(0),
        _ => 0,
    };
    if port == 0 {
        return Err("has a port that is not from 1 to 65535");
    }
    Ok(format!("{host}:{port}"))
}

/// Reads the URL of one server.
pub(super) fn parse(url: &str) -> Result<ConnectionInfo, OptionsError> {
    if !url.starts_with("redis://") && !url.starts_with("rediss://") {
        return Err(OptionsError::Scheme);
    }
    let info = url.into_connection_info().map_err(|error| {
        // What the URL's parser says names a part of the URL; only a detail repeats what stands there.
        OptionsError::Url(match error.detail() {
            Some(_) => "there is something unknown in it".into(),
            None => error.to_string(),
        })
    })?;
    if matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }) {
        return Err(OptionsError::Insecure);
    }
    // RESP2 and no CLIENT SETINFO: a user needs no right to HELLO and CLIENT.
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
    Ok(info.set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}

/// Reads the URLs of several servers, which must be alike: all with TLS or none, and without a database.
pub(super) fn parse_all(urls: &[String]) -> Result<Vec<ConnectionInfo>, OptionsError> {
    let infos = urls.iter().map(|url| parse(url)).collect::<Result<Vec<_>, _>>()?;
    let tls = |info: &ConnectionInfo| matches!(info.addr(), ConnectionAddr::TcpTls { .. });
    let Some(first) = infos.first() else { return Err(OptionsError::NoUrl) };
    if infos.iter().any(|info| tls(info) != tls(first)) {
        return Err(OptionsError::Differ);
    }
    if infos.iter().any(|info| info.redis_settings().db() != 0) {
        return Err(OptionsError::Database);
    }
    Ok(infos)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn urls(options: &RedisOptions) -> Vec<String> {
        match &options.topology {
            Topology::Standalone { url } => vec![url.clone()],
            Topology::Sentinel { urls, .. } | Topology::Cluster { urls } => urls.clone(),
        }
    }

    #[test]
    fn a_url_says_the_topology() {
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
        // As with one server, the last @ ends the password.
        assert_eq!(of("redis+sentinel://:p@ss@a/main").password, Some(Secret::new("p@ss")));
        assert!(of("redis+sentinel://a/main/0").check().is_ok());
        assert!(of("redis+cluster://a").check().is_ok() && of("redis+cluster://a/").check().is_ok());
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_with_the_reason_and_without_the_password() {
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
        for (url, says) in [
            ("redis+cluster://", "its server has no host"),
            ("redis+cluster://a,,b", "server 2 of 3 has no host"),
            ("redis+cluster://:hunter2@a,", "server 2 of 2 has no host"),
            ("redis+sentinel://a,:1/main", "server 2 of 2 has no host"),
            ("redis+cluster://a:0,b", "server 1 of 2 has a port"),
            ("redis+cluster://a:65536", "has a port"),
            ("redis+cluster://a:+1", "has a port"),
            ("redis+cluster://a:", "has a port"),
            ("redis://:hunter2@a:b", "has a port"),
            ("redis+cluster://fd00::1:6379", "an IPv6 address stands in brackets"),
            ("redis+cluster://[fd00::1", "has"),
            ("redis+cluster://[hunter2]:1", "no IPv6 address"),
            ("redis+cluster://[::1]1", "has a port"),
            ("redis+cluster://a b", "a host that cannot be one"),
            ("redis+cluster://a,b\n", "server 2 of 2 has a host that cannot be one"),
            ("redis+sentinel://\u{430}/main", "a host that cannot be one"),
            ("redis+cluster://0.0.0.0", "wildcard"),
            ("redis+cluster://:hun/ter@hunter2", "a / before its @"),
            ("redis://:hunter2/x@a", "a / before its @"),
            ("redis+sentinel://:hunter2?@a/main", "a ? or a #"),
            ("redis://a?protocol=hunter2", "a ? or a #"),
            ("redis://a/hunter2", "database"),
            ("redis+cluster://:%ff@a", "UTF-8"),
            ("redis+cluster://u:hunter2@a:1,u:hunter2@b:2", "an @ behind its first server"),
            ("redis+sentinel://:hunter2@a,:hunter2@b/main", "an @ behind its first server"),
        ] {
            let text = error(url).to_string();
            assert!(text.contains(says), "{url}: {text}");
        }
    }

    #[test]
    fn credentials_beside_the_url_are_added_once_and_where_they_belong() {
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
        fn what_is_written_is_read(
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
        fn whatever_is_written_no_message_repeats_the_password(
            scheme in "rediss?(\\+(cluster|sentinel))?",
            before in "[a:/?#@,%\\[\\] 0-9]{0,6}",
            after in "[a:/?#,%\\[\\] 0-9]{0,6}",
            rest in "(a|:|,|/|\\[|::1|\\]|[0-9]|#|\\?|\\+|%|\\PC){0,12}",
        ) {
            let url = format!("{scheme}://{before}:{after}hunter2{after}@{rest}");
            let said = match RedisOptions::from_url(&url) {
                Ok(options) => match options.check() {
                    Ok(()) => format!("{options:?}"),
                    Err(error) => format!("{options:?} {error} {error:?}"),
                },
                Err(error) => format!("{error} {error:?}"),
            };
            prop_assert!(!said.contains("hunter2"), "{}: {}", url, said);
        }

        #[test]
        fn nothing_that_is_written_is_too_much(url in "(rediss?(\\+(cluster|sentinel))?://)?\\PC{0,40}") {
            if let Ok(options) = RedisOptions::from_url(&url) {
                let _ = options.check();
            }
        }
    }
}
