//! A connection that was seen to work, or what is wrong; and how long to wait before the next attempt.
//!
//! [`redis::aio::ConnectionManager`] is not used: during an outage its callers wait for it to reconnect, and nothing
//! bounds how many of them do.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::time::{Instant, timeout};

use super::fault::Trouble;
use super::reply::Reply;
use super::script::{Request, Script, pack, send};
use super::sentinel::Sentinels;
use super::target::Target;
use crate::failure::StoreFault;

/// How long the first attempt may take, and with the handshake of TLS. Nobody waits for one while the circuit is open,
/// so later ones may take longer: a slow name server must not keep the store away for ever.
const ATTEMPT: Duration = Duration::from_millis(100);
const ATTEMPT_TLS: Duration = Duration::from_secs(1);
const LONGEST_ATTEMPT: Duration = Duration::from_secs(5);

const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The server's clock, as last heard.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerClock {
    millis: u64,
    heard: Instant,
}

impl ServerClock {
    pub(super) fn new(millis: u64) -> Self {
        Self { millis, heard: Instant::now() }
    }

    /// What the server's clock shows at an instant to come; it may show more by then, never less, as the reply was on
    /// its way for some time.
    pub(super) fn at(&self, instant: Instant) -> u64 {
        self.millis + instant.saturating_duration_since(self.heard).as_millis() as u64
    }
}

/// A connection without any promise. Each failed attempt before lets it take longer.
pub(super) async fn open(target: &Target, failed: u32) -> Result<MultiplexedConnection, StoreFault> {
    try_open(target, failed).await.map_err(|trouble| trouble.fault)
}

async fn try_open(target: &Target, failed: u32) -> Result<MultiplexedConnection, Trouble> {
    let attempt = if target.tls { ATTEMPT_TLS } else { ATTEMPT };
    let attempt = attempt.saturating_mul(1 << failed.min(16)).min(LONGEST_ATTEMPT);
    // Timeouts are ours: those of the crate would race with them.
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(Some(attempt)).set_response_timeout(None);
    match timeout(attempt, target.client.get_multiplexed_async_connection_with_config(&config)).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error)) => {
            tracing::debug!(address = target.address, %error, "cannot connect to Redis");
            Err(Trouble::of(&error))
        }
        Err(_) => Err(StoreFault::Unreachable.into()),
    }
}

/// Which server a worker talks to.
pub(super) enum Way {
    /// Always this one.
    Fixed(Arc<Target>),
    /// The one that sentinels name.
    Sentinels(Arc<Sentinels>),
}

/// A connection that was seen to work, to which server, and that server's clock.
pub(super) struct Connected {
    pub(super) target: Arc<Target>,
    pub(super) connection: MultiplexedConnection,
    pub(super) clock: ServerClock,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(target) => f.write_str(&target.address),
            Self::Sentinels(sentinels) => write!(f, "the master {}", sentinels.name()),
        }
    }
}

impl Way {
    /// Finds the server and connects to it.
    pub(super) async fn connect(
        &self,
        script: &Script,
        key: Option<&str>,
        budget: Duration,
        failed: u32,
    ) -> Result<Connected, Trouble> {
        let target = match self {
            Self::Fixed(target) => target.clone(),
            Self::Sentinels(sentinels) => sentinels.master(failed).await?,
        };
        let mut connection = try_open(&target, failed).await?;
        if matches!(self, Self::Sentinels(_)) {
            see_master(&mut connection, &target, budget).await?;
        }
        let clock = see_works(&mut connection, script, key, budget).await?;
        Ok(Connected { target, connection, clock })
    }
}

/// Sees that a server is a master: sentinels may name one that is not any more, or not yet.
async fn see_master(
    connection: &mut MultiplexedConnection,
    target: &Target,
    budget: Duration,
) -> Result<(), Trouble> {
    match timeout(budget.max(ATTEMPT), send(connection, &redis::cmd("ROLE"))).await {
        Ok(Ok(Value::Array(role))) => match role.first() {
            Some(Value::BulkString(role)) if role == b"master" => Ok(()),
            _ => {
                tracing::debug!(address = target.address, "the sentinels' master is none");
                Err(StoreFault::ReadOnly.into())
            }
        },
        Ok(Ok(_)) => Err(StoreFault::Nonsense.into()),
        Ok(Err(error)) => Err(Trouble::of(&error)),
        Err(_) => Err(StoreFault::Slow.into()),
    }
}

/// Sees that the script runs, and within the budget: a server that only answers later would close the circuit now and
/// open it with the next calls. If `key` is given, a counter's key that the last connection failed over, also that it
/// can be written: a replica or a full server must not look healthy until the next check.
async fn see_works(
    connection: &mut MultiplexedConnection,
    script: &Script,
    key: Option<&str>,
    budget: Duration,
) -> Result<ServerClock, Trouble> {
    // The first call may have to send the script, and the server to compile it.
    probe(connection, script, budget.max(ATTEMPT)).await?;
    if let Some(key) = key {
        // Writes nothing, but is refused wherever a write would be.
        let mut write = redis::cmd("SETRANGE");
        write.arg(key).arg(0).arg("");
        match timeout(budget.max(ATTEMPT), send(connection, &write)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) if error.code() == Some("WRONGTYPE") => {}
            // The key has moved to another server of the cluster: no fault of this one.
            Ok(Err(error)) if matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN")) => {}
            Ok(Err(error)) => return Err(Trouble::of(&error)),
            Err(_) => return Err(StoreFault::Slow.into()),
        }
    }
    probe(connection, script, budget).await
}

/// Calls the script with no check at all: it answers its time.
pub(super) async fn probe(
    connection: &mut MultiplexedConnection,
    script: &Script,
    within: Duration,
) -> Result<ServerClock, Trouble> {
    let nothing = Request { keys: Vec::new(), payload: pack(&[u64::from(u32::MAX) << 20]) };
    match timeout(within, script.call(connection, &nothing)).await {
        Ok(Ok(value)) => Reply::read(value)
            .map(|reply| ServerClock::new(reply.now))
            .map_err(|_| StoreFault::Nonsense.into()),
        Ok(Err(error)) => {
            tracing::debug!(%error, "Redis does not run the script");
            Err(Trouble::of(&error))
        }
        Err(_) => Err(StoreFault::Slow.into()),
    }
}

/// Warns of a server that may evict counters: a client would start anew. Says nothing if the user has no right to ask.
pub(super) async fn warn_of_eviction(connection: &mut MultiplexedConnection, address: &str) {
    let mut info = redis::cmd("INFO");
    info.arg("memory");
    if let Ok(Ok(Value::BulkString(text))) = timeout(ATTEMPT, send(connection, &info)).await {
        let text = String::from_utf8_lossy(&text);
        let policy = text.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")).map(str::trim);
        if let Some(policy) = policy.filter(|&policy| policy != "noeviction") {
            tracing::warn!(
                address,
                policy,
                "Redis may evict counters, and then their clients start anew: set maxmemory-policy noeviction"
            );
        }
    }
}

/// How long to wait before the next attempt, after so many that failed: any time up to a bound that doubles ("full
/// jitter", AWS Architecture Blog, "Exponential Backoff And Jitter", 2015).
pub(super) fn backoff(failed: u32) -> Duration {
    let bound = FIRST_WAIT.saturating_mul(1 << failed.min(16)).min(LONGEST_WAIT);
    rand::random_range(Duration::ZERO..=bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound() {
        for failed in 0..40 {
            let bound = Duration::from_millis(20 << failed.min(8)).min(LONGEST_WAIT);
            assert!((0..100).all(|_| backoff(failed) <= bound));
        }
    }
}
