//! The tests of the stores in one program, so that what they share is compiled and linked once. `tests/run.py` runs each module as
//! a process of its own.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by a panic")]

mod chaos;
#[path = "support/checks.rs"]
mod checks;
#[path = "support/cluster.rs"]
mod cluster;
mod contract;
mod leases;
mod local_quota;
#[path = "support/log.rs"]
mod log;
mod redis_access;
mod redis_cluster;
mod redis_depth;
mod redis_differential;
mod redis_failure;
mod redis_faults;
mod redis_keys;
mod redis_log;
mod redis_losses;
mod redis_recovery;
mod redis_runs;
mod redis_sentinel;
mod redis_store;
mod redis_tls;
mod redis_topology;
mod reservations;
#[path = "support/sentinel.rs"]
mod sentinel;
#[path = "support/servers.rs"]
mod servers;
mod single_client;
mod support;
#[path = "support/tls.rs"]
mod tls;
