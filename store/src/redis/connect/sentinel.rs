//! The address of the current master, from the sentinels:
//! <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use redis::Value;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::fault::classify;
use super::open::open;
use super::target::{Target, TargetTemplate};
use crate::fault_cause::FaultCause;
use crate::redis::script::send;

/// Maximum duration of a sentinel's reply once it is connected.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Interval at which the sentinels are queried for a change of the master.
const WATCH_INTERVAL: Duration = Duration::from_secs(5);

/// The sentinels of one master.
pub(crate) struct Sentinels {
    sentinels: Vec<Target>,
    /// Name of the master at the sentinels.
    name: String,
    template: TargetTemplate,
    /// Index of the sentinel that replied last, which is queried first.
    first: AtomicUsize,
}

impl Sentinels {
    pub(crate) fn new(sentinels: Vec<Target>, name: String, template: TargetTemplate) -> Self {
        Self { sentinels, name, template, first: AtomicUsize::new(0) }
    }

    /// Returns the name of the master at the sentinels.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the master as reported by the first sentinel that knows it. Each sentinel has its own timeout.
    pub(super) async fn master(&self, failed: u32) -> Result<Arc<Target>, FaultCause> {
        let mut cause = FaultCause::NoRoute;
        let first = self.first.load(Relaxed);
        for n in 0..self.sentinels.len() {
            let at = (first + n) % self.sentinels.len();
            let Some(sentinel) = self.sentinels.get(at) else { continue };
            match self.query(sentinel, failed).await {
                Ok(master) => {
                    self.first.store(at, Relaxed);
                    return Ok(Arc::new(master));
                }
                // The fault of a sentinel that answers is the more specific one.
                Err(other) if cause.is_silence() || !other.is_silence() => cause = other,
                Err(_) => {}
            }
        }
        Err(cause)
    }

    async fn query(&self, sentinel: &Target, failed: u32) -> Result<Target, FaultCause> {
        let mut connection = open(sentinel, failed).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let reply = match timeout(REPLY_TIMEOUT, send(&mut connection, &command)).await {
            Ok(reply) => reply.map_err(|error| {
                tracing::debug!(address = sentinel.address, %error, "a sentinel returned an error");
                classify(&error)
            })?,
            Err(_) => return Err(FaultCause::Slow),
        };
        match &reply {
            Value::Array(cells) => {
                let text = |at: usize| match cells.get(at) {
                    Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok(),
                    _ => None,
                };
                let address = text(0).zip(text(1).and_then(|port| port.parse().ok()));
                let target = address.and_then(|(host, port)| self.template.target(host, port));
                target.ok_or(FaultCause::InvalidReply)
            }
            Value::Nil => {
                tracing::warn!(
                    address = sentinel.address,
                    master = self.name,
                    "a sentinel does not know the master by this name"
                );
                Err(FaultCause::InvalidReply)
            }
            _ => Err(FaultCause::InvalidReply),
        }
    }
}

/// A background task that watches for a change of the master. Dropping it ends the task.
pub(crate) struct MasterWatch(AbortHandle);

impl MasterWatch {
    /// Starts a task that queries the sentinels until they report a master other than `address`, then
    /// notifies `changed`.
    pub(super) fn start(sentinels: Arc<Sentinels>, address: String, changed: Arc<Notify>) -> Self {
        let task = tokio::spawn(async move {
            loop {
                sleep(WATCH_INTERVAL).await;
                if sentinels.master(0).await.is_ok_and(|master| master.address != address) {
                    return changed.notify_one();
                }
            }
        });
        Self(task.abort_handle())
    }
}

impl Drop for MasterWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}
