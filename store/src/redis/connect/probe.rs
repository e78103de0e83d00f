//! The check that a connection can run the scripts, and the server's clock from its reply.

use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, timeout};

use super::fault::{ServerFailure, loggable};
use super::open::ATTEMPT;
use super::target::{Target, split};
use crate::eviction::Eviction;
use crate::fault_cause::FaultCause;
use crate::redis::cluster_view::ClusterView;
use crate::redis::script::{ScriptArguments, Scripts, read_time, send};
use crate::redis::scripts::Script;

/// An estimate of the server's clock, from its last reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerClock {
    millis: u64,
    received: Instant,
}

impl ServerClock {
    /// A clock that shows `millis` now.
    pub(crate) fn new(millis: u64) -> Self {
        Self { millis, received: Instant::now() }
    }

    /// Returns the server's time at a future instant, in milliseconds. It may be too early, by the time that
    /// the reply took to arrive, but never too late.
    pub(crate) fn at(&self, instant: Instant) -> u64 {
        self.millis + instant.saturating_duration_since(self.received).as_millis() as u64
    }
}

/// Checks that a server is a master: after a failover, sentinels may for some time report one that is not.
pub(super) async fn verify_master(
    connection: &mut MultiplexedConnection,
    reply_timeout: Duration,
) -> Result<(), ServerFailure> {
    match timeout(reply_timeout.max(ATTEMPT), send(connection, &redis::cmd("ROLE"))).await {
        Ok(Ok(Value::Array(role))) => match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => Err(FaultCause::ReadOnlyReplica.into()),
        },
        Ok(Ok(_)) => Err(FaultCause::InvalidReply.into()),
        Ok(Err(error)) => Err(ServerFailure::from_error(&error)),
        Err(_) => Err(FaultCause::Slow.into()),
    }
}

/// Reads what a server of a cluster says about it.
pub(crate) async fn read_view(
    connection: &mut MultiplexedConnection,
    target: &Target,
    reply_timeout: Duration,
) -> Result<ClusterView, ServerFailure> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    match timeout(reply_timeout.max(ATTEMPT), send(connection, &command)).await {
        Ok(Ok(reply)) => {
            let host = split(&target.address).map_or("", |(host, _)| host);
            ClusterView::read(&reply, host).ok_or_else(|| FaultCause::InvalidReply.into())
        }
        Ok(Err(error)) => {
            tracing::debug!(
                address = target.address,
                error = loggable(&error),
                "cannot read the hash slots of the Redis Cluster"
            );
            Err(ServerFailure::from_error(&error))
        }
        Err(_) => Err(FaultCause::Slow.into()),
    }
}

/// Checks that the server runs the scripts within the budget: a slower one would close the circuit now, and
/// the next calls would open it again. The calls name the key `named`, if there is one. `key` is a counter's key that the last
/// connection failed on. If there is one, the function also checks that it can be written, so that a replica or a full server
/// does not look healthy until the next check. Also returns the duration of a call.
pub(super) async fn verify(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    (named, key): (Option<&str>, Option<&str>),
    budget: Duration,
) -> Result<(ServerClock, Duration), ServerFailure> {
    // The first call takes longer if it has to send the script, which the server then compiles.
    for script in Script::ALL {
        probe(connection, scripts, script, named, budget.max(ATTEMPT)).await?;
    }
    if let Some(key) = key {
        // Writes nothing, but fails wherever a write would.
        let mut write = redis::cmd("SETRANGE");
        write.arg(key).arg(0).arg("");
        match timeout(budget.max(ATTEMPT), send(connection, &write)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) if error.code() == Some("WRONGTYPE") => {}
            // The key has moved to another server of the cluster, so this one is fine.
            Ok(Err(error)) if matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN")) => {}
            Ok(Err(error)) => return Err(ServerFailure::from_error(&error)),
            Err(_) => return Err(FaultCause::Slow.into()),
        }
    }
    let begun = Instant::now();
    let clock = probe(connection, scripts, Script::Single, named, budget).await?;
    Ok((clock, begun.elapsed()))
}

/// Calls a script without any check, upon which it only returns its time. A user may have no right to the key that proxies need:
/// then the call names none.
pub(crate) async fn probe(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    script: Script,
    key: Option<&str>,
    within: Duration,
) -> Result<ServerClock, ServerFailure> {
    match call_empty(connection, scripts, script, key, within).await {
        Err(failure) if key.is_some() && failure.cause == FaultCause::NotPermitted => {
            call_empty(connection, scripts, script, None, within).await
        }
        other => other,
    }
}

async fn call_empty(
    connection: &mut MultiplexedConnection,
    scripts: &Scripts,
    script: Script,
    key: Option<&str>,
    within: Duration,
) -> Result<ServerClock, ServerFailure> {
    match timeout(within, scripts.call(connection, &ScriptArguments::empty(script, key))).await {
        Ok(Ok(value)) => match read_time(value) {
            Some(millis) => Ok(ServerClock::new(millis)),
            None => Err(FaultCause::InvalidReply.into()),
        },
        Ok(Err(error)) => {
            tracing::debug!(error = loggable(&error), "Redis does not run the script");
            Err(ServerFailure::from_error(&error))
        }
        Err(_) => Err(FaultCause::Slow.into()),
    }
}

/// A proxy ends the connection upon a command that it does not know.
#[derive(Debug)]
pub(crate) struct Ended;

/// Reads whether the server evicts counters. The right to INFO is optional.
pub(crate) async fn read_eviction(connection: &mut MultiplexedConnection) -> Result<Eviction, Ended> {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    match timeout(ATTEMPT, send(connection, &info)).await {
        Ok(Ok(Value::BulkString(text))) => Ok(Eviction::read(&String::from_utf8_lossy(&text))),
        Ok(Err(error)) if error.is_io_error() => Err(Ended),
        _ => Ok(Eviction::NotSeen),
    }
}
