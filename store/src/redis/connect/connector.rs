//! Finds a server and connects to it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

use super::backoff::backoff;
use super::fault::{FailureAt, ServerFailure};
use super::members::Members;
use super::open::{ATTEMPT, try_open};
use super::probe::{ServerClock, read_view, verify};
use super::sentinel::{MasterWatch, Sentinels};
use super::shards::verify_one_server;
use super::target::Target;
use crate::fault_cause::FaultCause;
use crate::redis::script::{KeyNames, Scripts};

/// Finds the server that a worker uses, and connects to it.
pub(crate) enum Connector {
    /// Always the same server.
    Fixed(Arc<Target>),
    /// A master of a cluster, as long as it belongs to the cluster.
    Member(Arc<Target>, Members),
    /// The master that the sentinels report.
    Sentinels(Arc<Sentinels>),
}

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
            match verify(&mut connection, &self.scripts, self.key.as_deref(), self.budget).await {
                Ok((clock, round_trip)) => {
                    if let Some(names) = &self.shards {
                        verify_one_server(&connection, names, self.budget.max(ATTEMPT)).await?;
                    }
                    return Ok(Connected { target, connection, clock, round_trip });
                }
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

impl fmt::Display for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(target) | Self::Member(target, _) => f.write_str(&target.address),
            Self::Sentinels(sentinels) => write!(f, "the master {}", sentinels.name()),
        }
    }
}

impl Connector {
    /// Finds the server, connects to it, and verifies the connection. `last` is the address of the last server.
    pub(crate) async fn connect(
        &self,
        last: Option<&str>,
        verification: &Verification,
        failed: u32,
    ) -> Result<Connected, FailureAt> {
        match self {
            Self::Fixed(target) => {
                let connected = async {
                    let connection = try_open(target, failed).await?;
                    verification.verify(target.clone(), connection, failed).await
                };
                connected.await.map_err(|failure| FailureAt { address: target.address.clone(), failure })
            }
            Self::Member(target, members) => {
                let connected = async {
                    let mut connection = try_open(target, failed).await?;
                    let view = read_view(&mut connection, target, verification.budget).await?;
                    if !members.knows(&target.address, view.ids()) {
                        return Err(FaultCause::AnotherCluster.into());
                    }
                    verification.verify(target.clone(), connection, failed).await
                };
                connected.await.map_err(|failure| FailureAt { address: target.address.clone(), failure })
            }
            Self::Sentinels(sentinels) => sentinels.connect(last, verification, failed).await,
        }
    }

    /// Watches for a master that replaces the one in use, which only sentinels name.
    pub(crate) fn watch(&self, address: &str, verification: Verification) -> Option<MasterWatch> {
        match self {
            Self::Fixed(_) | Self::Member(..) => None,
            Self::Sentinels(sentinels) => {
                Some(MasterWatch::start(sentinels.clone(), address.to_owned(), verification))
            }
        }
    }
}
