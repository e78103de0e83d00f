//! The API type of a `RateLimitStore`, the servers of Redis, the options that sidecars connect with, and the observed state.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::duration;
use sluice_config::store_access::{Calls, Endpoint, RedisOptions, Tls, Topology};

use crate::checks::field::{Field, number};

/// Longest latency budget, in milliseconds.
const MAX_LATENCY_BUDGET: u64 = 10_000;

/// A Redis or Valkey that holds the counters of policies, and how sidecars reach it.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq)]
#[kube(
    group = "sluice.dev",
    version = "v1alpha1",
    kind = "RateLimitStore",
    plural = "ratelimitstores",
    shortname = "slst",
    category = "sluice",
    namespaced,
    status = "RateLimitStoreStatus",
    derive = "PartialEq",
    doc = "A Redis or Valkey that holds the counters of policies, and how sidecars reach it.",
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name":"Reason","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name":"Sidecars","type":"string","jsonPath":".status.sidecars.summary","description":"Number of sidecars that can use the store, and of those that have reported on it."}"#,
    printcolumn = r#"{"name":"Access","type":"string","jsonPath":".spec.access"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Message","type":"string","jsonPath":".status.conditions[?(@.type==\"Ready\")].message","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitStoreSpec {
    /// Servers that hold the counters.
    pub servers: Servers,
    /// Use TLS for all connections, also to Sentinels. Default: plain text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsConnection>,
    /// Secret of this namespace with the credentials, of the type sluice.dev/store. Default: no credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
    /// How far namespaces are kept apart:
    /// - Shared (default): all sidecars use the user of the Secret, so they trust each other: one that is compromised
    ///   can read and change all counters. Redis 6.2 or newer, or Valkey.
    /// - Managed: the Secret has an administrator, with whom the operator maintains a user for each namespace. It can
    ///   only run Sluice's functions, on the keys of its namespace. This keeps counters apart, but not memory and CPU.
    ///   Redis 7.0 or newer, or Valkey.
    #[serde(default)]
    pub access: Access,
    /// Number of the passwords of a managed store. With another number, the operator sets new ones for all namespaces.
    /// The old ones are accepted for five minutes more. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub password_epoch: Option<i64>,
    /// Longest time that a check may take before the policy's onStoreFailure decides: 1ms to 10s. Default: 50ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_budget: Option<duration::Duration>,
    /// Prefix of all keys: 1 to 64 visible ASCII characters without brackets, braces, backslashes and any of *?@. Stores that
    /// share a Redis need different prefixes. With another prefix, all counters start at zero.
    #[serde(default = "default_prefix")]
    #[schemars(length(min = 1, max = 64), regex(pattern = "^[!-)+->A-Z^-z|~]+$"))]
    pub key_prefix: String,
    /// Number of hash tags over which the keys are spread. Each master of a Redis Cluster should have 16 to 32. All
    /// users of the keys need the same number, so it cannot be changed.
    #[serde(default = "default_partitions")]
    #[schemars(range(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("partitions cannot be changed: all counters would start at zero. Delete the store and create it again"))]
    pub partitions: i64,
}

/// TLS for the connections to a store. The certificates are in the Secret: `ca.crt`, without which the public
/// authorities are trusted, and `tls.crt` with `tls.key` for servers that require a client certificate.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TlsConnection {}

/// Reference to a Secret of the store's namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretRef {
    /// Name of the Secret. Its fields are `password` and, as required, `username`, `ca.crt`, `tls.crt`, `tls.key`,
    /// `sentinel-username` and `sentinel-password`.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// How far namespaces are kept apart.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Access {
    /// All sidecars use one user.
    #[default]
    Shared,
    /// Each namespace has a user, which the operator maintains.
    Managed,
}

fn default_prefix() -> String {
    "sluice:".into()
}

fn default_partitions() -> i64 {
    64
}

/// A valid store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompiledStore {
    /// How sidecars connect, without credentials and certificates.
    pub redis: RedisOptions,
    /// Name of the Secret with the credentials.
    pub secret: Option<String>,
    /// How far namespaces are kept apart.
    pub access: Access,
    /// Number of the passwords of a managed store.
    pub password_epoch: i64,
}

impl RateLimitStoreSpec {
    /// Returns the spec of a store with these options. Credentials and certificates are left out.
    #[must_use]
    pub fn of(redis: &RedisOptions, secret: Option<&str>, access: Access, password_epoch: i64) -> Self {
        Self {
            servers: Servers::of(&redis.topology, &redis.endpoints),
            tls: redis.tls.as_ref().map(|_| TlsConnection {}),
            secret_ref: secret.map(|name| SecretRef { name: name.to_owned() }),
            access,
            password_epoch: (password_epoch != 0).then_some(password_epoch),
            latency_budget: u64::try_from(redis.latency_budget.as_millis())
                .ok()
                .map(duration::Duration::from_millis),
            key_prefix: redis.prefix.clone(),
            partitions: redis.partitions.into(),
        }
    }

    pub(crate) fn compile(&self, at: &Field<'_>) -> Option<CompiledStore> {
        let (topology, endpoints) = self.servers.compile(&at.at("servers"));
        let budget = self.latency_budget;
        let budget =
            budget.map_or(Some(50), |budget| at.at("latencyBudget").millis(budget, MAX_LATENCY_BUDGET))?;
        let redis = RedisOptions {
            topology,
            endpoints,
            tls: self.tls.map(|_| Tls::default()),
            username: None,
            password: None,
            password_file: None,
            latency_budget: Duration::from_millis(budget),
            prefix: self.key_prefix.clone(),
            partitions: u16::try_from(number(self.partitions)).unwrap_or(u16::MAX),
            calls: Calls::default(),
        };
        let secret = self.secret_ref.as_ref().map(|secret| secret.name.clone());
        match self.access {
            Access::Managed if secret.is_none() => {
                at.at("secretRef")
                    .violation("is required with access Managed: it has the store's administrator");
            }
            Access::Shared if self.password_epoch.is_some() => {
                at.at("passwordEpoch")
                    .violation("has no effect with access Shared: change the password in the Secret");
            }
            Access::Managed | Access::Shared => {}
        }
        let password_epoch = self.password_epoch.unwrap_or_default();
        Some(CompiledStore { redis, secret, access: self.access, password_epoch })
    }
}

/// Port of a server without a port of its own.
const PORT: u16 = 6379;
/// Port of a Sentinel without a port of its own.
const SENTINEL_PORT: u16 = 26379;

/// The servers of Redis or Valkey.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub enum Servers {
    /// One server, or an address that always leads to the primary.
    Standalone(Standalone),
    /// The primary that Sentinels monitor.
    Sentinel(Sentinel),
    /// A Redis Cluster.
    Cluster(Cluster),
}

/// One server.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Standalone {
    /// Address of the server as HOST or HOST:PORT, such as redis.shop.svc:6379. An IPv6 address is written in brackets.
    /// The default port is 6379.
    #[schemars(length(min = 1, max = 262))]
    pub endpoint: String,
    /// Number of the database. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub database: Option<i64>,
}

/// Sentinels and the primary that they monitor.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Sentinel {
    /// Addresses of the Sentinels as HOST or HOST:PORT. The default port is 26379.
    #[schemars(length(min = 1, max = 16), inner(length(min = 1, max = 262)))]
    pub endpoints: Vec<String>,
    /// Name of the primary, as configured by `sentinel monitor`.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[!-~]+$"))]
    pub master: String,
}

/// A Redis Cluster.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Addresses of some servers as HOST or HOST:PORT, from which the others are discovered. The default port is 6379.
    #[schemars(length(min = 1, max = 64), inner(length(min = 1, max = 262)))]
    pub endpoints: Vec<String>,
}

impl Servers {
    /// Returns the topology without credentials, and the addresses.
    fn compile(&self, at: &Field<'_>) -> (Topology, Vec<Endpoint>) {
        match self {
            Self::Standalone(Standalone { endpoint, database }) => {
                let found = parse(&at.at("standalone.endpoint"), endpoint, PORT);
                let database = u32::try_from(number(database.unwrap_or(0))).unwrap_or(0);
                (Topology::Standalone { database }, found.into_iter().collect())
            }
            Self::Sentinel(Sentinel { endpoints, master }) => {
                let topology = Topology::Sentinel { master: master.clone(), username: None, password: None };
                (topology, parse_all(&at.at("sentinel.endpoints"), endpoints, SENTINEL_PORT))
            }
            Self::Cluster(Cluster { endpoints }) => {
                (Topology::Cluster, parse_all(&at.at("cluster.endpoints"), endpoints, PORT))
            }
        }
    }

    /// Returns the servers of options.
    #[must_use]
    pub fn of(topology: &Topology, endpoints: &[Endpoint]) -> Self {
        let texts = || endpoints.iter().map(endpoint_text).collect();
        match topology {
            Topology::Standalone { database } => Self::Standalone(Standalone {
                endpoint: endpoints.first().map(endpoint_text).unwrap_or_default(),
                database: (*database > 0).then_some(i64::from(*database)),
            }),
            Topology::Sentinel { master, .. } => {
                Self::Sentinel(Sentinel { endpoints: texts(), master: master.clone() })
            }
            Topology::Cluster => Self::Cluster(Cluster { endpoints: texts() }),
        }
    }
}

fn parse_all(at: &Field<'_>, texts: &[String], port: u16) -> Vec<Endpoint> {
    texts.iter().enumerate().filter_map(|(n, text)| parse(&at.entry(n), text, port)).collect()
}

fn parse(at: &Field<'_>, text: &str, port: u16) -> Option<Endpoint> {
    at.accept(match text.split_once("://") {
        // What follows may contain a password.
        Some((scheme, _)) => {
            Err(format!("begins with the scheme `{scheme}://`: write HOST or HOST:PORT, without a scheme"))
        }
        None => {
            Endpoint::parse(text, port).map_err(|what| format!("{text:?} {what}: write HOST or HOST:PORT"))
        }
    })
}

/// Writes `HOST:PORT`, with an IPv6 address in brackets.
pub(crate) fn endpoint_text(Endpoint { host, port }: &Endpoint) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Observed state of the store.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitStoreStatus {
    /// Generation of the store that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions of the store:
    /// - Accepted: the store is valid, and its namespace may have one.
    /// - ResolvedRefs: the Secret exists, the operator may read it, and its content can be used.
    /// - Provisioned: all servers have the users of the namespaces and the function library. Only with access Managed.
    /// - Reachable: every sidecar that uses the store can. The reason names the cause otherwise.
    /// - Ready: all of the above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
    /// Numbers of sidecars that use the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecars: Option<SidecarCounts>,
    /// Passwords of the users of the namespaces. Only with access Managed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passwords: Option<PasswordEpoch>,
}

/// Passwords of the users of a managed store.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PasswordEpoch {
    /// The passwordEpoch of the store to which they belong.
    pub epoch: i64,
    /// Time since which they are used. Those of the number before are accepted for five minutes more.
    pub since: Time,
}

/// Numbers of sidecars. A sidecar reports on a store when a policy of its pod counts there.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SidecarCounts {
    /// Number of sidecars that have reported on the store.
    pub reporting: i32,
    /// Number of sidecars that can use it.
    pub healthy: i32,
    /// Both numbers, written as healthy/reporting.
    pub summary: String,
}
