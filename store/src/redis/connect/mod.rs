//! Connections to Redis servers. A validated target goes in; a connection that has run the scripts comes out,
//! or the fault that prevents it.
//!
//! - [`plan`]: the check of all options, and the servers that follow from them.
//! - [`target`]: a server's address, with the means to connect to it.
//! - [`mod@open`]: one attempt to connect, the delay before the next one, and the answers of several servers that are asked at once.
//! - [`sentinel`]: the current master, from the sentinels.
//! - [`verification`]: the check that a connection can run the scripts, and leads to one server.
//! - [`connector`]: all of this for one server.
//! - [`fault`]: the meaning of Redis's errors.
//!
//! `redis::aio::ConnectionManager` is not used: during an outage its callers wait for it to reconnect, and
//! their number has no bound.

mod connector;
mod fault;
mod open;
mod plan;
mod sentinel;
mod target;
mod verification;

pub(crate) use self::connector::Members;
pub(crate) use self::open::{backoff, gather};
pub(crate) use self::target::LoginWatch;
pub(crate) use self::verification::{Ended, ServerClock, probe, read_eviction, read_view};
pub(crate) use connector::Connector;
pub(crate) use fault::{FailureAt, Redirect, ServerFailure, loggable};
pub(crate) use open::open;
pub(crate) use plan::ConnectPlan;
pub(crate) use sentinel::Sentinels;
pub(crate) use sentinel::watch::MasterWatch;
pub(crate) use target::{Target, TargetTemplate, split};
pub(crate) use verification::{Connected, Verification};
