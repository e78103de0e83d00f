//! The check that a connection can be used: it runs the scripts, whose reply has the server's clock, and leads to one server. A proxy
//! before the shards of a cluster may send each call to the server of its first key, so that the keys of one call, or of two, are on
//! different servers.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::time::{Instant, sleep, timeout};

use super::fault::{ServerFailure, loggable};
use super::open::{ATTEMPT, backoff};
use super::target::{Target, split};
use crate::eviction::Eviction;
use crate::fault_cause::FaultCause;
use crate::redis::cluster_view::ClusterView;
use crate::redis::script::{KeyNames, ScriptArguments, Scripts, read_time, send};
use crate::redis::scripts::Script;

/// A connection that has run the scripts, with its server and that server's clock.
pub(crate) struct Connected {
    pub(crate) target: Arc<Target>,
    pub(crate) connection: MultiplexedConnection,
    pub(crate) clock: ServerClock,
    /// Duration of one call without an operation.
    pub(crate) round_trip: Duration,
}

/// The check that a connection can be used.
#[derive(Clone)]
pub(crate) struct Verification {
    pub(crate) scripts: Arc<Scripts>,
    /// A key that calls without an operation name, if proxies need one.
    pub(crate) probe_key: Option<Arc<str>>,
    /// A key from the last call that failed with an error.
    pub(crate) key: Option<String>,
    pub(crate) budget: Duration,
    /// The names of keys, if it is not known yet whether the address leads to one server.
    pub(crate) shards: Option<KeyNames>,
}

impl Verification {
    /// Verifies a connection, and waits while its server says that it will work soon.
    pub(super) async fn verify(
        &self,
        target: Arc<Target>,
        mut connection: MultiplexedConnection,
        failed: u32,
    ) -> Result<Connected, ServerFailure> {
        let mut waits = 0;
        loop {
            let keys = (self.probe_key.as_deref(), self.key.as_deref());
            let verified = async {
                let found = verify(&mut connection, &self.scripts, keys, self.budget).await?;
                if let Some(names) = &self.shards {
                    verify_one_server(&connection, names, self.budget.max(ATTEMPT)).await?;
                }
                Ok::<_, ServerFailure>(found)
            };
            match verified.await {
                Ok((clock, round_trip)) => return Ok(Connected { target, connection, clock, round_trip }),
                // Checks wait for the first attempt, but for no later one.
                Err(failure) if failed > 0 && waits < failure.waits() => {
                    sleep(backoff(failed.saturating_add(waits), failure.cause)).await;
                    waits += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
    }
}

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

/// Writes the second key. A proxy sends the call to the server of the first one.
const WRITE: &str = "return redis.call('SET', KEYS[2], '1', 'PX', 10000)";

/// Lets the second key expire. The user has no right to DEL.
const EXPIRE: &str = "return redis.call('SET', KEYS[2], '', 'PX', 1)";

/// Reads the second key.
const READ: &str = "return redis.call('GET', KEYS[2])";

/// Number of calls that read the key by other first keys with the same tag. Of two servers, of which one has a tenth of the keys,
/// all of these lead to one in one case of a thousand. Their names are always the same, so that another attempt finds the same.
const READS: usize = 64;

/// Number of other tags by which the key is read.
const OTHER_TAGS: usize = 16;

/// Checks that an address leads to one server: a key is written by a call with one first key, and read by calls with others.
async fn verify_one_server(
    connection: &MultiplexedConnection,
    names: &KeyNames,
    within: Duration,
) -> Result<(), ServerFailure> {
    let tags: Vec<u32> = names.partitions.tags().collect();
    let Some(&tag) = tags.first() else { return Ok(()) };
    let name = |tag: u32, what: &str| format!("{}probe:{{{tag}}}:{what}", names.prefix);
    // No other process writes it.
    let written = name(tag, &format!("written:{:x}", rand::random::<u64>()));
    let call = |script: &str, first: String| {
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(2).arg(first).arg(&written);
        answer(connection.clone(), command)
    };
    // Of the other partitions, some that lie evenly among them.
    let step = tags.len().div_ceil(OTHER_TAGS).max(1);
    let others: Vec<_> = tags.iter().skip(1).step_by(step).copied().collect();
    let all = async {
        call(WRITE, name(tag, "first")).await?;
        let same = join_all((0..READS).map(|n| call(READ, name(tag, &format!("same{n}"))))).await;
        let others = join_all(others.into_iter().map(|other| call(READ, name(other, "other")))).await;
        // Without it, the key expires some seconds later.
        let _ = call(EXPIRE, name(tag, "first")).await;
        Ok((same, others))
    };
    let (same, others) = match timeout(within, all).await {
        Ok(Ok(read)) => read,
        Ok(Err(error)) => return accept_missing_right(ServerFailure::from_error(&error)),
        Err(_) => return Err(FaultCause::Slow.into()),
    };
    for (replies, cause) in [(same, FaultCause::TagsSpread), (others, FaultCause::SeveralShards)] {
        for reply in replies {
            match reply {
                Ok(Value::Nil) => return Err(cause.into()),
                Ok(_) => {}
                Err(error) => return accept_missing_right(ServerFailure::from_error(&error)),
            }
        }
    }
    Ok(())
}

async fn answer(mut connection: MultiplexedConnection, command: Cmd) -> RedisResult<Value> {
    send(&mut connection, &command).await
}

/// A user may have no right to EVAL if the server knows the scripts already. Then the shards are not known.
fn accept_missing_right(failure: ServerFailure) -> Result<(), ServerFailure> {
    if failure.cause == FaultCause::NotPermitted { Ok(()) } else { Err(failure) }
}
