//! Counters in Redis (6.2 or newer, or Valkey), shared by many processes.
//!
//! A check travels through these modules in this order:
//! - [`store`]: the store.
//! - [`route`]: in a cluster, the server of each key.
//! - [`pipeline`]: the queue and the worker of a server.
//! - [`batch`]: concurrent operations that become one script call.
//! - [`scripts`]: the scripts, and which of them decides an operation; [`library`]: all of them as a function library.
//! - [`script`]: the arguments and the reply of a script.
//!
//! [`options`] describe the servers, and [`connect`] makes connections to them. [`cluster_view`] is what a server of a cluster
//! says about it. [`admin`] maintains users and the
//! library. [`partitions`] spread the keys
//! over the hash slots of a cluster.
//!
//! # Keys
//!
//! `PREFIX SCOPE:{TAG}:HASH`, for example `sluice:NAMESPACE/POLICY/LIMIT:{109}:q83vEjRWeJCrze8SNFZ4kA`.
//! The tag stands for one of 64 partitions, which lie evenly over the hash slots of a cluster. The partition
//! depends on the client's hash only, so all limits of a client share it. The value is a
//! sequence of the records of `sluice-limiter`; it always has a time to live.
//!
//! # Rights
//!
//! A Redis user needs at least these rights (Redis also checks the commands inside a script):
//!
//! ```text
//! ACL SETUSER sluice on >PASSWORD resetkeys ~sluice:* resetchannels -@all +evalsha +eval +time +get +mget +set +setrange
//! ```
//!
//! A database other than 0 also needs `+select`; a cluster needs `+cluster|slots +asking` on all its servers;
//! a master behind sentinels needs `+role` on all servers that may become the master. At the sentinels, if
//! they require a password (the last right is optional: it lets the newest master win where sentinels disagree):
//!
//! ```text
//! ACL SETUSER watcher on >PASSWORD resetkeys resetchannels -@all +sentinel|get-master-addr-by-name +sentinel|master
//! ```
//!
//! # Cluster
//!
//! Servers are reached at the addresses from `CLUSTER SLOTS`, over TLS if the endpoints use it. Their certificates
//! must be valid for these addresses; `cluster-announce-hostname` with `cluster-preferred-endpoint-type
//! hostname` makes them host names. All counters of one client are in one hash slot. Counters of several
//! clients (a limit per client and one for all) may be in several hash slots, which are charged one after
//! another; if one denies, the charges of the others are refunded. While a hash slot moves, each of its keys
//! has a script call of its own.
//!
//! Replication is asynchronous. A master that dies takes with it the charges that its replica had not yet
//! received, and that much may be admitted again.
//!
//! # Failure
//!
//! No check waits longer than the latency budget, which starts when the check arrives. Each call carries its
//! deadline in the server's time, so a call that was given up is not counted later. A call that takes too
//! long fails its own checks only. Three in a row, or any error, open the circuit: waiting and new operations
//! fail immediately, until a new connection has run the script. Each master of a cluster has a circuit of its
//! own.

pub mod admin;
mod batch;
mod cluster_view;
mod connect;
pub mod library;
mod options;
mod partitions;
mod pipeline;
mod route;
mod script;
mod scripts;
mod store;

pub use options::{
    Calls, ClientCertificate, Endpoint, MAX_PARTITIONS, OptionsError, RedisOptions, Secret, StoreCredentials,
    Tls, Topology,
};
pub use pipeline::{LATENCY_BOUNDS_US, RedisMetrics};
pub use scripts::Script;
pub use store::{MAX_ACQUIRED, RedisStore};
