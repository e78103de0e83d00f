//! The words of servers about who they are: sentinels that are wrong, servers that have left a cluster, and one address before
//! several servers.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../support/checks.rs"]
mod checks;
#[path = "../support/cluster.rs"]
mod cluster;
#[path = "../support/log.rs"]
mod log;
mod one_address;
#[path = "../support/sentinel.rs"]
mod sentinel;
#[path = "../support/servers.rs"]
mod servers;
mod stale_cluster;
mod stale_sentinels;
#[path = "../support/mod.rs"]
mod support;
