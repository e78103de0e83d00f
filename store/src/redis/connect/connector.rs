//! Finds a server and connects to it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::time::sleep;

use super::backoff::backoff;
use super::fault::ServerFailure;
use super::open::try_open;
use super::probe::{ServerClock, verify, verify_master};
use super::sentinel::{MasterWatch, Sentinels};
use super::target::Target;
use crate::redis::script::Scripts;

/// Finds the server that a worker uses, and connects to it.
pub(crate) enum Connector {
    /// Always the same server.
    Fixed(Arc<Target>),
    /// The master that the sentinels report.
    Sentinels(Arc<Sentinels>),
}

/// A connection that has run the scripts, with its server and that server's clock.
pub(crate) struct Connected {
    pub(crate) target: Arc<Target>,
    pub(crate) connection: MultiplexedConnection,
    pub(crate) clock: ServerClock,
}

impl fmt::Display for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(target) => f.write_str(&target.address),
            Self::Sentinels(sentinels) => write!(f, "the master {}", sentinels.name()),
        }
    }
}

impl Connector {
    /// Finds the server, connects to it, and verifies the connection.
    pub(crate) async fn connect(
        &self,
        scripts: &Scripts,
        key: Option<&str>,
        budget: Duration,
        failed: u32,
    ) -> Result<Connected, ServerFailure> {
        let target = match self {
            Self::Fixed(target) => target.clone(),
            Self::Sentinels(sentinels) => sentinels.master(failed).await?,
        };
        let mut connection = try_open(&target, failed).await?;
        if matches!(self, Self::Sentinels(_)) {
            verify_master(&mut connection, &target, budget).await?;
        }
        let mut waits = 0;
        loop {
            match verify(&mut connection, scripts, key, budget).await {
                Ok(clock) => return Ok(Connected { target, connection, clock }),
                // Checks wait for the first attempt, but for no later one.
                Err(failure) if failed > 0 && waits < failure.waits() => {
                    sleep(backoff(failed.saturating_add(waits), failure.cause)).await;
                    waits += 1;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Watches for a change of the master away from `address`. The notification never comes for a fixed
    /// server.
    pub(crate) fn watch(&self, address: &str) -> (Option<MasterWatch>, Arc<Notify>) {
        let changed = Arc::new(Notify::new());
        let Self::Sentinels(sentinels) = self else { return (None, changed) };
        let watch = MasterWatch::start(sentinels.clone(), address.to_owned(), changed.clone());
        (Some(watch), changed)
    }
}
