//! The parser of a store's URL: its scheme names the topology, the rest names the servers.
//!
//! No error repeats any part of a URL: where special characters of a password are not written as `%XX`, any
//! part may be a piece of the password.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use percent_encoding::percent_decode_str;

use super::error::OptionsError;
use super::redis_options::{Calls, Endpoint, RedisOptions, Secret, Tls, Topology};

impl RedisOptions {
    /// Parses a store's URL. All other options have their defaults: a budget of 50 ms, the prefix `sluice:`,
    /// 64 partitions.
    ///
    /// - `redis://HOST:PORT/DATABASE`: a single server.
    /// - `redis+cluster://HOST:PORT,HOST:PORT,...`: a cluster, by some of its servers.
    /// - `redis+sentinel://HOST:PORT,HOST:PORT,.../MASTER`: a master by its name, and the sentinels that
    ///   monitor it.
    /// - `unix:///PATH?db=DATABASE`: a single server on this machine, by the path of its socket.
    ///
    /// The scheme `rediss` instead of `redis` means TLS, also for sentinels. `valkey` and `valkeys` mean the same. The default
    /// port is 6379, or 26379 for sentinels; an IPv6 address is written in brackets. `USER:PASSWORD@` before the first host,
    /// with special characters as `%XX`, is for the servers that hold counters. Credentials for sentinels cannot be part of the
    /// URL.
    pub fn from_url(url: &str) -> Result<Self, OptionsError> {
        // A file or a Secret often ends with a newline.
        let (scheme, rest) = url.trim_ascii().split_once("://").ok_or(OptionsError::Scheme)?;
        if scheme == "unix" {
            return Self::from_socket(rest);
        }
        let (server, topology) = scheme.split_at(scheme.find('+').unwrap_or(scheme.len()));
        let (with_tls, suffix) = match server {
            "redis" | "valkey" => (false, topology),
            "rediss" | "valkeys" => (true, topology),
            _ => return Err(OptionsError::Scheme),
        };
        let port = match suffix {
            "" | "+cluster" => 6379,
            "+sentinel" => 26379,
            _ => return Err(OptionsError::Scheme),
        };
        let UrlParts { user, endpoints, path } = UrlParts::split(rest, port)?;
        let (master, database) = match suffix {
            "+sentinel" => path.split_once('/').unwrap_or((path, "")),
            _ => ("", path),
        };
        let database = match database {
            "" => 0,
            _ => number(database).ok_or_else(|| invalid("its database is not a number"))?,
        };
        let topology = match suffix {
            "" if endpoints.len() > 1 => return Err(OptionsError::Several),
            "" => Topology::Standalone { database },
            _ if database != 0 => return Err(OptionsError::Database),
            "+cluster" => Topology::Cluster,
            _ if master.is_empty() => return Err(OptionsError::Master(String::new())),
            _ => Topology::Sentinel { master: master.to_owned(), username: None, password: None },
        };
        Self::of_url(user, topology, endpoints, with_tls.then(Tls::default))
    }

    /// Parses what follows `unix://`: `USER:PASSWORD@`, the path, and `?db=DATABASE`.
    fn from_socket(rest: &str) -> Result<Self, OptionsError> {
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (user, path) = location.split_at(location.find('/').unwrap_or(location.len()));
        let user = match user.strip_suffix('@') {
            Some(user) => user,
            None if user.is_empty() => user,
            None => return Err(invalid("what stands before its path does not end with an @")),
        };
        let path = decode(path)?.filter(|path| path.len() <= LONGEST_SOCKET && !path.contains('\0'));
        let path = path.ok_or_else(|| invalid("it has no path of a socket: write unix:///run/redis.sock"))?;
        let database = match query.strip_prefix("db=") {
            None if query.is_empty() => Some(0),
            digits => digits.and_then(number),
        };
        let database = database.ok_or_else(|| invalid("what follows its ? is not db= with a number"))?;
        let endpoint = Endpoint { host: path, port: 0 };
        Self::of_url(user, Topology::Standalone { database }, vec![endpoint], None)
    }

    /// Returns options with the parts of a URL, of which `USER:PASSWORD` is not decoded yet.
    fn of_url(
        user: &str,
        topology: Topology,
        endpoints: Vec<Endpoint>,
        tls: Option<Tls>,
    ) -> Result<Self, OptionsError> {
        let (username, password) = user.split_once(':').unwrap_or((user, ""));
        Ok(Self {
            topology,
            endpoints,
            tls,
            username: decode(username)?,
            password: decode(password)?.map(Secret::new),
            password_file: None,
            latency_budget: Duration::from_millis(50),
            prefix: "sluice:".into(),
            partitions: 64,
            calls: Calls::default(),
        })
    }
}

/// Longest path of a socket, in bytes, that Linux accepts.
const LONGEST_SOCKET: usize = 107;

/// The parts of a URL after the scheme.
struct UrlParts<'a> {
    /// `USER:PASSWORD`, not decoded, or empty.
    user: &'a str,
    endpoints: Vec<Endpoint>,
    /// Text after the first slash.
    path: &'a str,
}

impl<'a> UrlParts<'a> {
    fn split(rest: &'a str, default_port: u16) -> Result<Self, OptionsError> {
        if rest.ends_with("#insecure") {
            return Err(OptionsError::Insecure);
        }
        if rest.contains(['?', '#']) {
            return Err(invalid("it contains a ? or a #"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if path.contains('@') {
            return Err(invalid("it has a / before its @"));
        }
        let (user, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        // Otherwise all servers but the last would be taken for a password.
        if user.split_once('@').is_some_and(|(_, more)| more.contains(',')) {
            return Err(invalid(
                "it has an @ after its first server: write USER:PASSWORD@ once, with %40 for an @ in it",
            ));
        }
        let count = hosts.split(',').count();
        let endpoint = |(at, text)| {
            endpoint(text, default_port).map_err(|what| match count {
                1 => invalid(&format!("its server {what}")),
                _ => invalid(&format!("server {} of {count} {what}", at + 1)),
            })
        };
        let endpoints = hosts.split(',').enumerate().map(endpoint).collect::<Result<_, _>>()?;
        Ok(Self { user, endpoints, path })
    }
}

impl Endpoint {
    /// Reports whether this is a socket on this machine: its host is the path.
    #[must_use]
    pub fn is_socket(&self) -> bool {
        self.host.starts_with('/')
    }

    /// Parses `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`. The error continues "the server ...".
    pub fn parse(text: &str, default_port: u16) -> Result<Self, &'static str> {
        endpoint(text, default_port)
    }
}

fn endpoint(text: &str, default_port: u16) -> Result<Endpoint, &'static str> {
    let (host, port) = if let Some((address, port)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        if address.parse::<Ipv6Addr>().is_err() {
            return Err("has no IPv6 address in its brackets");
        }
        (address, port)
    } else {
        let (host, port) = text.split_at(text.find(':').unwrap_or(text.len()));
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if port.matches(':').count() > 1 {
            return Err("has several colons: write an IPv6 address in brackets");
        }
        if host.len() > 253 || !host.bytes().all(plain) {
            return Err("has an invalid host name");
        }
        (host, port)
    };
    if host.is_empty() {
        return Err("has no host");
    }
    if host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) {
        return Err("has a wildcard address");
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => Some(default_port),
        digits => digits.and_then(number).filter(|&port| port != 0),
    };
    let port = port.ok_or("has a port that is not from 1 to 65535")?;
    Ok(Endpoint { host: host.to_owned(), port })
}

/// Parses digits, without a sign.
fn number<T: std::str::FromStr>(digits: &str) -> Option<T> {
    digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Decodes `%XX`. An empty text counts as absent.
fn decode(text: &str) -> Result<Option<String>, OptionsError> {
    let decoded =
        percent_decode_str(text).decode_utf8().map_err(|_| invalid("its user or password is not UTF-8"))?;
    Ok((!decoded.is_empty()).then(|| decoded.into_owned()))
}

fn invalid(what: &str) -> OptionsError {
    OptionsError::Url(what.to_owned())
}
