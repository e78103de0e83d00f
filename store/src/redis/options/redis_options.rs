//! The options of a Redis store. Their `Debug` output contains no password and no key.

use std::fmt;
use std::time::Duration;

/// A password. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a password.
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// Returns the password in plain text.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

/// The servers that hold the counters. A URL is `redis://HOST:PORT`, or `rediss://` for TLS, and may contain
/// `USER:PASSWORD@`.
#[derive(Clone)]
pub enum Topology {
    /// A single server.
    Standalone {
        /// URL of the server; `/DATABASE` may follow.
        url: String,
    },
    /// The current master of a group of servers that Redis Sentinel monitors. Its database is 0.
    Sentinel {
        /// URLs of the sentinels, with the port (usually 26379). Credentials in them are for the sentinels.
        urls: Vec<String>,
        /// Name of the master, as configured in the sentinels.
        master: String,
        /// User at the sentinels; `default` if there is only a password.
        username: Option<String>,
        /// Password at the sentinels.
        password: Option<Secret>,
    },
    /// A Redis Cluster, whose masters share the hash slots.
    Cluster {
        /// URLs of some of its servers, from which the others are discovered. Credentials in them are used
        /// for all servers, so they must be equal.
        urls: Vec<String>,
    },
}

/// The certificate that this client presents, and its key.
#[derive(Clone)]
pub struct ClientCertificate {
    /// The certificate and any intermediate certificates, in PEM.
    pub certificate_pem: Vec<u8>,
    /// The private key, in PEM. It is never printed.
    pub key_pem: Vec<u8>,
}

/// The options of a Redis store.
#[derive(Clone)]
pub struct RedisOptions {
    /// The servers.
    pub topology: Topology,
    /// User at the servers that hold counters; `default` if there is only a password.
    pub username: Option<String>,
    /// Password at these servers, unless the URL contains it.
    pub password: Option<Secret>,
    /// Trusted certificate authorities in PEM. Without them the public ones are trusted.
    pub ca_pem: Option<Vec<u8>>,
    /// Certificate for servers that require one.
    pub client_certificate: Option<ClientCertificate>,
    /// Maximum duration of a check, including the time in the queue. 1 ms to 10 s.
    pub latency_budget: Duration,
    /// Prefix of every key: 1 to 64 visible ASCII characters without braces.
    pub prefix: String,
    /// Number of hash tags over which the keys are spread. All users of a Redis must use the same number.
    pub partitions: u16,
}

impl RedisOptions {
    /// A single server, with the defaults: a budget of 50 ms, the prefix `sluice:`, 64 partitions.
    pub fn new(url: impl Into<String>) -> Self {
        Self::with(Topology::Standalone { url: url.into() })
    }

    /// The master that these sentinels know by this name, with the defaults.
    pub fn sentinel(urls: impl IntoIterator<Item = impl Into<String>>, master: impl Into<String>) -> Self {
        let urls = urls.into_iter().map(Into::into).collect();
        Self::with(Topology::Sentinel { urls, master: master.into(), username: None, password: None })
    }

    /// The cluster that these servers belong to, with the defaults.
    pub fn cluster(urls: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::with(Topology::Cluster { urls: urls.into_iter().map(Into::into).collect() })
    }

    fn with(topology: Topology) -> Self {
        Self {
            topology,
            username: None,
            password: None,
            ca_pem: None,
            client_certificate: None,
            latency_budget: Duration::from_millis(50),
            prefix: "sluice:".into(),
            partitions: 64,
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Everything before the last @ may be a password, even in a URL that does not parse.
        let bare = |url: &String| url.rsplit_once('@').map_or(url.as_str(), |(_, rest)| rest).to_owned();
        let all = |urls: &[String]| urls.iter().map(bare).collect::<Vec<_>>();
        match self {
            Self::Standalone { url } => f.debug_struct("Standalone").field("url", &bare(url)).finish(),
            Self::Sentinel { urls, master, username, password } => f
                .debug_struct("Sentinel")
                .field("urls", &all(urls))
                .field("master", master)
                .field("username", username)
                .field("password", password)
                .finish(),
            Self::Cluster { urls } => f.debug_struct("Cluster").field("urls", &all(urls)).finish(),
        }
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { certificate_pem, key_pem: _ } = self;
        f.debug_struct("ClientCertificate")
            .field("certificate_pem", &certificate_pem.len())
            .field("key_pem", &"(secret)")
            .finish()
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            topology,
            username,
            password,
            ca_pem,
            client_certificate,
            latency_budget,
            prefix,
            partitions,
        } = self;
        f.debug_struct("RedisOptions")
            .field("topology", topology)
            .field("username", username)
            .field("password", password)
            .field("ca_pem", &ca_pem.as_ref().map(Vec::len))
            .field("client_certificate", client_certificate)
            .field("latency_budget", latency_budget)
            .field("prefix", prefix)
            .field("partitions", partitions)
            .finish()
    }
}
