//! The check that a connection can be used: it runs the scripts, and leads to one server.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::sleep;

use super::backoff::backoff;
use super::fault::ServerFailure;
use super::open::ATTEMPT;
use super::probe::{ServerClock, verify};
use super::shards::verify_one_server;
use super::target::Target;
use crate::redis::script::{KeyNames, Scripts};

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
