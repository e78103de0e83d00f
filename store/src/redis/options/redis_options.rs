//! The options of a Redis store, as the operator sends them to sidecars. Their `Debug` output contains no
//! password and no key.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

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
