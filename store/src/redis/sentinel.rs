//! Who the master is, as the sentinels say: <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use redis::Value;
use tokio::time::timeout;

use super::connect::open;
use super::fault::classify;
use super::script::send;
use super::target::{Reach, Target};
use crate::failure::StoreFault;

/// The sentinels of one master.
pub(super) struct Sentinels {
    sentinels: Vec<Target>,
    /// The name by which they know the master.
    name: String,
    reach: Reach,
    /// The one that answered last is asked first.
    first: AtomicUsize,
}

impl Sentinels {
    pub(super) fn new(sentinels: Vec<Target>, name: String, reach: Reach) -> Self {
        Self { sentinels, name, reach, first: AtomicUsize::new(0) }
    }

    /// The name by which they know the master.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The master, as the first sentinel that knows it says. Each may take so long, over TLS as long as that takes.
    pub(super) async fn master(&self, failed: u32) -> Result<Arc<Target>, StoreFault> {
        let mut fault = StoreFault::Unreachable;
        let first = self.first.load(Relaxed);
        for n in 0..self.sentinels.len() {
            let at = (first + n) % self.sentinels.len();
            let Some(sentinel) = self.sentinels.get(at) else { continue };
            match self.ask(sentinel, failed).await {
                Ok(master) => {
                    self.first.store(at, Relaxed);
                    return Ok(Arc::new(master));
                }
                // That one is not to be reached says less than what another one answers.
                Err(StoreFault::Unreachable) => {}
                Err(other) => fault = other,
            }
        }
        Err(fault)
    }

    async fn ask(&self, sentinel: &Target, failed: u32) -> Result<Target, StoreFault> {
        let mut connection = open(sentinel, failed).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let reply = match timeout(LONGEST_ANSWER, send(&mut connection, &command)).await {
            Ok(reply) => reply.map_err(|error| {
                tracing::debug!(address = sentinel.address, %error, "a sentinel refuses to answer");
                classify(&error)
            })?,
            Err(_) => return Err(StoreFault::Slow),
        };
        match &reply {
            Value::Array(cells) => {
                let text = |at: usize| match cells.get(at) {
                    Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
                    _ => None,
                };
                let address = text(0).zip(text(1).and_then(|port| port.parse().ok()));
                address.and_then(|(host, port)| self.reach.at(host, port)).ok_or(StoreFault::Nonsense)
            }
            Value::Nil => {
                tracing::warn!(
                    address = sentinel.address,
                    master = self.name,
                    "a sentinel knows no master of this name"
                );
                Err(StoreFault::Nonsense)
            }
            _ => Err(StoreFault::Nonsense),
        }
    }
}

/// How long one that is connected may take to answer.
const LONGEST_ANSWER: Duration = Duration::from_millis(500);
