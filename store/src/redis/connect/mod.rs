//! Connections to Redis servers. A validated target goes in; a connection that has run the scripts comes out,
//! or the fault that prevents it.
//!
//! - [`plan`]: the check of all options, and the servers that follow from them.
//! - [`target`]: a server's address, with the means to connect to it.
//! - [`resolve`]: the addresses of its host name.
//! - [`mod@open`]: one attempt to connect. [`mod@backoff`]: the delay before the next one.
//! - [`gather`](mod@gather): the answers of several servers that are asked at the same time.
//! - [`login`]: a password in a file, which may change.
//! - [`members`]: the servers of a cluster, so that no connection ends at a stranger.
//! - [`sentinel`]: the current master, from the sentinels.
//! - [`mod@probe`]: the check that a connection can run the scripts.
//! - [`shards`]: the check that one address leads to one server.
//! - [`verification`]: the check that a connection can be used.
//! - [`connector`]: all of this for one server.
//! - [`fault`]: the meaning of Redis's errors.
//!
//! `redis::aio::ConnectionManager` is not used: during an outage its callers wait for it to reconnect, and
//! their number has no bound.

mod backoff;
mod connector;
mod fault;
mod gather;
mod login;
mod members;
mod open;
mod plan;
mod probe;
mod resolve;
mod sentinel;
mod shards;
mod target;
mod verification;

pub(crate) use backoff::backoff;
pub(crate) use connector::Connector;
pub(crate) use fault::{FailureAt, Redirect, ServerFailure, loggable};
pub(crate) use gather::gather;
pub(crate) use login::LoginWatch;
pub(crate) use members::Members;
pub(crate) use open::open;
pub(crate) use plan::ConnectPlan;
pub(crate) use probe::{Ended, ServerClock, probe, read_eviction, read_view};
pub(crate) use sentinel::Sentinels;
pub(crate) use sentinel::watch::MasterWatch;
pub(crate) use target::{Target, TargetTemplate, split};
pub(crate) use verification::{Connected, Verification};
