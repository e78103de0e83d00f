//! The servers of a store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::store_access::{Endpoint, Topology};

use crate::checks::field::{Field, number};

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
    pub(super) fn compile(&self, at: &Field<'_>) -> (Topology, Vec<Endpoint>) {
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
        let texts = || endpoints.iter().map(text).collect();
        match topology {
            Topology::Standalone { database } => Self::Standalone(Standalone {
                endpoint: endpoints.first().map(text).unwrap_or_default(),
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
pub(crate) fn text(Endpoint { host, port }: &Endpoint) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
