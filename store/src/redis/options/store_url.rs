//! Options from a single URL: its scheme names the topology, the rest names the servers.
//!
//! No error repeats any part of a URL: where special characters of a password are not written as `%XX`, any
//! part may be a piece of the password.

use std::net::Ipv6Addr;

use super::error::OptionsError;
use super::redis_options::{RedisOptions, Secret, Topology};
use super::server_url::{parse, parse_all};

/// Default ports of servers and sentinels.
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl RedisOptions {
    /// Reads a store's URL. All other options have their defaults.
    ///
    /// - `redis://HOST:PORT/DATABASE`: a single server.
    /// - `redis+cluster://HOST:PORT,HOST:PORT,...`: a cluster, by some of its servers.
    /// - `redis+sentinel://HOST:PORT,HOST:PORT,.../MASTER`: a master by its name, and the sentinels that
    ///   monitor it.
    ///
    /// The scheme `rediss` instead of `redis` means TLS, also for sentinels. The default port is 6379, or
    /// 26379 for sentinels; an IPv6 address is written in brackets. `USER:PASSWORD@` before the first host,
    /// with special characters as `%XX`, is for the servers that hold counters. Credentials for sentinels
    /// cannot be part of the URL.
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
                if UrlParts::split(rest, PORT)?.servers.len() > 1 {
                    return Err(OptionsError::Several);
                }
                parse(url).map(|_| Self::new(url))
            }
            Some("cluster") => {
                let UrlParts { user, servers, path } = UrlParts::split(rest, PORT)?;
                if !matches!(path, "" | "0") {
                    return Err(OptionsError::Database);
                }
                let urls: Vec<_> = servers.iter().map(|server| at(user, server)).collect();
                parse_all(&urls).map(|_| Self::cluster(urls))
            }
            Some("sentinel") => {
                let UrlParts { user, servers, path } = UrlParts::split(rest, SENTINEL_PORT)?;
                let (master, database) = path.split_once('/').unwrap_or((path, ""));
                if !matches!(database, "" | "0") {
                    return Err(OptionsError::Database);
                }
                if master.is_empty() {
                    return Err(OptionsError::Master(String::new()));
                }
                let urls: Vec<_> = servers.iter().map(|server| at("", server)).collect();
                parse_all(&urls)?;
                // The client library decodes the user and the password of the servers that hold counters.
                let first = parse(&at(user, servers.first().ok_or(OptionsError::NoUrl)?))?;
                let settings = first.redis_settings();
                Ok(Self {
                    username: settings.username().map(str::to_owned),
                    password: settings.password().map(Secret::new),
                    ..Self::sentinel(urls, master)
                })
            }
            Some(_) => Err(OptionsError::Scheme),
        }
    }

    /// Adds the user and the password at the servers that hold counters, unless the URL contains them.
    ///
    /// # Errors
    /// The URL of sentinels has a password too. For the other topologies [`RedisOptions::check`] detects
    /// this.
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

/// The parts of a URL after the scheme.
struct UrlParts<'a> {
    /// `USER:PASSWORD@`, not decoded, or empty.
    user: &'a str,
    /// `HOST:PORT` of each server, with brackets around an IPv6 address.
    servers: Vec<String>,
    /// Text after the first slash.
    path: &'a str,
}

impl<'a> UrlParts<'a> {
    fn split(rest: &'a str, port: u16) -> Result<Self, OptionsError> {
        let wrong = |what: &str| Err(OptionsError::Url(what.to_owned()));
        if rest.ends_with("#insecure") {
            return Err(OptionsError::Insecure);
        }
        if rest.contains(['?', '#']) {
            return wrong("it contains a ? or a #");
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return wrong("it has a / before its @");
        }
        let (user, hosts) = authority.split_at(authority.rfind('@').map_or(0, |at| at + 1));
        // Otherwise all servers but the last would be taken for a password.
        if user.split_once('@').is_some_and(|(_, more)| more.contains(',')) {
            return wrong(
                "it has an @ after its first server: write USER:PASSWORD@ once, with %40 for an @ in it",
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

/// Parses `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT` and adds the default port.
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
        return Err("has several colons: write an IPv6 address in brackets");
    }
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if !host.starts_with('[') && (host.len() > 253 || !host.bytes().all(plain)) {
        return Err("has an invalid host name");
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
