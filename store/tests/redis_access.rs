//! The rights that the store needs, what a user of a managed store cannot do, and managed stores that fail.

#![allow(missing_docs, clippy::unwrap_used)]

mod bounds;
#[path = "../support/checks.rs"]
mod checks;
#[path = "../support/cluster.rs"]
mod cluster;
mod failover;
mod managed;
mod rights;
#[path = "../support/sentinel.rs"]
mod sentinel;
#[path = "../support/servers.rs"]
mod servers;
#[path = "../support/mod.rs"]
mod support;
