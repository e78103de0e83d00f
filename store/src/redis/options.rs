//! Options of a Redis store: where its servers are and how to reach them, as the operator sends them to sidecars. A URL, whose scheme names
//! the topology, or a message goes in. [`connect`](super::connect) checks the values. No `Debug` output contains a password or a key.
//!
//! No error repeats any part of a URL: where special characters of a password are not written as `%XX`, any
//! part may be a piece of the password.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};

/// Maximum of [`RedisOptions::partitions`].
pub const MAX_PARTITIONS: u16 = 1024;

/// A password. It is serialized in plain text, but never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a password.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the password in plain text.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

/// The servers that hold the counters, and what the endpoints are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Topology {
    /// The only endpoint is the server.
    Standalone {
        /// Number of the database.
        database: u32,
    },
    /// The endpoints are some servers of a Redis Cluster, from which the others are discovered.
    Cluster,
    /// The endpoints are sentinels, and the server is the current master of the group that they monitor.
    Sentinel {
        /// Name of the master, as configured in the sentinels.
        master: String,
        /// User at the sentinels; `default` if there is only a password.
        username: Option<String>,
        /// Password at the sentinels.
        password: Option<Secret>,
    },
}

/// How the scripts are called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Calls {
    /// By EVALSHA, and by EVAL if the server does not know the script.
    #[default]
    Scripts,
    /// By FCALL of the library that an administrator has loaded. The user needs no right to run other scripts.
    Functions,
}

/// Address of a server or sentinel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Host name or IP address, without brackets.
    pub host: String,
    /// Port.
    pub port: u16,
}

/// TLS for all connections, including those to sentinels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// Trusted certificate authorities in PEM. Without them the public ones are trusted.
    pub ca: Option<String>,
    /// Certificate for servers that require one.
    pub client_certificate: Option<ClientCertificate>,
}

/// The certificate that this client presents, and its key. Neither is printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCertificate {
    /// The certificate and any intermediate certificates, in PEM.
    pub certificate: String,
    /// The private key, in PEM.
    pub key: String,
}

/// The options of a Redis store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RedisOptions {
    /// The servers.
    pub topology: Topology,
    /// Addresses of servers or sentinels, depending on the topology. At least one.
    pub endpoints: Vec<Endpoint>,
    /// TLS, unless connections are in plain text.
    pub tls: Option<Tls>,
    /// User at the servers that hold counters; `default` if there is only a password.
    pub username: Option<String>,
    /// Password at these servers.
    pub password: Option<Secret>,
    /// File with the password at these servers instead, which is read for each connection and may change. It exists in this
    /// process only.
    #[serde(skip)]
    pub password_file: Option<PathBuf>,
    /// Maximum duration of a check, including the time in the queue. 1 ms to 10 s.
    #[serde(rename = "latencyBudgetMillis", with = "millis")]
    pub latency_budget: Duration,
    /// Prefix of every key: 1 to 64 visible ASCII characters without braces.
    pub prefix: String,
    /// How the scripts are called.
    #[serde(default)]
    pub calls: Calls,
    /// Number of hash tags over which the keys are spread, 1 to [`MAX_PARTITIONS`]. All users of a Redis must
    /// use the same number: with another one, keys have other names, and counters start at zero.
    pub partitions: u16,
}

impl RedisOptions {
    /// Reports whether sentinels require a password.
    pub(crate) fn has_sentinel_password(&self) -> bool {
        matches!(&self.topology, Topology::Sentinel { password: Some(_), .. })
    }
}

/// A duration as a number of milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(duration.as_millis() as u64)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientCertificate").finish_non_exhaustive()
    }
}

/// Credentials and certificates from outside of a store's URL.
#[derive(Debug, Default)]
pub struct StoreCredentials {
    /// User at the servers that hold counters. Replaces the user in the URL.
    pub username: Option<String>,
    /// Password at these servers.
    pub password: Option<Secret>,
    /// User at the sentinels.
    pub sentinel_username: Option<String>,
    /// Password at the sentinels.
    pub sentinel_password: Option<Secret>,
    /// See [`Tls::ca`].
    pub ca: Option<String>,
    /// See [`Tls::client_certificate`].
    pub client_certificate: Option<ClientCertificate>,
}

impl RedisOptions {
    /// Adds credentials and certificates to options from a URL.
    ///
    /// # Errors
    /// The URL has a password too, names no sentinels for their credentials, or does not use TLS for the
    /// certificates.
    pub fn with_credentials(mut self, credentials: StoreCredentials) -> Result<Self, OptionsError> {
        let StoreCredentials {
            username: user,
            password: secret,
            sentinel_username,
            sentinel_password,
            ca,
            client_certificate,
        } = credentials;
        if self.password.is_some() && secret.is_some() {
            return Err(OptionsError::TwoPasswords);
        }
        (self.username, self.password) = (user.or(self.username), secret.or(self.password));
        match &mut self.topology {
            Topology::Sentinel { username, password, .. } => {
                (*username, *password) = (sentinel_username, sentinel_password);
            }
            _ if sentinel_username.is_some() || sentinel_password.is_some() => {
                return Err(OptionsError::NoSentinels);
            }
            _ => {}
        }
        match &mut self.tls {
            Some(tls) => *tls = Tls { ca, client_certificate },
            None if ca.is_some() => return Err(OptionsError::CaWithoutTls),
            None if client_certificate.is_some() => return Err(OptionsError::ClientWithoutTls),
            None => {}
        }
        Ok(self)
    }
}

/// Options that cannot be used, and what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The store was started outside of a tokio runtime.
    #[error("the Redis store was started outside of a tokio runtime: start it within one")]
    NoRuntime,
    /// The URL has another scheme than Redis's.
    #[error(
        "the store's URL must begin with redis://, redis+cluster:// or redis+sentinel://, with rediss for TLS, or with unix:///"
    )]
    Scheme,
    /// The URL cannot be parsed.
    #[error("the store's URL cannot be used: {0}; special characters in it are written as %XX")]
    Url(String),
    /// A single server has several endpoints.
    #[error("the store's URL has several servers: begin it with redis+cluster:// or redis+sentinel://")]
    Several,
    /// The options name no server.
    #[error("the store has no endpoint: name at least one server")]
    NoEndpoint,
    /// A database number for a cluster or for sentinels.
    #[error("the store's URL names a database: clusters and sentinels only support 0, so leave it out")]
    Database,
    /// The master's name is empty or invalid.
    #[error(
        "the store's master name is {0:?}: use the name from `sentinel monitor`, in a URL after the sentinels"
    )]
    Master(String),
    /// The URL ends in `#insecure`.
    #[error(
        "the store's URL ends in #insecure, which would accept any certificate: \
         configure the certificate authority instead"
    )]
    Insecure,
    /// The password is given twice.
    #[error("the store's password is given both in its URL and beside it: remove one")]
    TwoPasswords,
    /// A user without a password.
    #[error("the store's username is given without a password: add the password or remove the username")]
    NoPassword,
    /// The file with the password cannot be read.
    #[error("the file with the store's password cannot be read ({0}): correct its path, or its rights")]
    PasswordFile(String),
    /// A user or a password for sentinels, but the URL names none.
    #[error("the store has a user or a password for sentinels, but its URL names no sentinels: remove them")]
    NoSentinels,
    /// The certificate authority cannot be read.
    #[error("the store's certificate authority cannot be used ({0}): provide certificates in PEM")]
    Ca(String),
    /// A certificate authority for a connection without TLS.
    #[error(
        "the store has a certificate authority, but its URL does not begin with rediss: \
         change the URL, or remove the certificate authority"
    )]
    CaWithoutTls,
    /// The client's certificate or its key cannot be read.
    #[error(
        "the store's client certificate cannot be used ({0}): provide the certificate and its key in PEM"
    )]
    ClientCertificate(String),
    /// A client certificate for a connection without TLS.
    #[error(
        "the store has a client certificate, but its URL does not begin with rediss: \
         change the URL, or remove the client certificate"
    )]
    ClientWithoutTls,
    /// The process has no cryptography provider for TLS.
    #[error("the store uses TLS, but this process has no default rustls provider: install one at startup")]
    NoTlsProvider,
    /// The latency budget is out of range.
    #[error("the store's latency budget is {0:?}: it must be from 1 ms to 10 s")]
    Budget(Duration),
    /// The prefix cannot be part of a key.
    #[error("the store's key prefix is {0:?}: it must be 1 to 64 visible ASCII characters without {{ and }}")]
    Prefix(String),
    /// The number of partitions is out of range.
    #[error("the store has {0} partitions: it must have 1 to {MAX_PARTITIONS}")]
    Partitions(u16),
}

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
