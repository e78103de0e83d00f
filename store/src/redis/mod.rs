//! Counters in Redis (6.2 or newer, or Valkey), shared by many processes.
//!
//! A check travels through these modules in this order:
//! - [`options`]: where the store is and how to reach it.
//! - [`queue`]: a check and who waits for it, bounded in number and in time.
//! - [`batch`]: checks that wait become one call; equal ones merge; each key is named once.
//! - [`script`]: the one script, and how it is called.
//! - [`reply`]: what the script says becomes the answers, by the limiter's own functions.
//! - [`worker`]: the one task that does all this, and opens and closes the circuit.
//! - [`connect`]: a connection that was seen to work, or what is wrong; how long to wait before the next attempt.
//! - [`fault`]: what an error of Redis means.
//! - [`metrics`]: what happened, in numbers.
//!
//! # Keys
//!
//! `PREFIX SCOPE:{PARTITION}:HASH`, that is `sluice:NAMESPACE/POLICY/LIMIT:{17}:q83vEjRWeJCrze8SNFZ4kA`. The partition
//! comes from the client's hash alone, so that all limits of one client share it. The value is the records of
//! `sluice-limiter`, one after another; it always has a time to live.
//!
//! # Rights
//!
//! The least that a Redis user needs (Redis checks the commands inside a script too):
//!
//! ```text
//! ACL SETUSER sluice on >PASSWORD resetkeys ~sluice:* resetchannels -@all +evalsha +eval +time +get +set +setrange
//! ```
//!
//! A database other than 0 also needs `+select`.
//!
//! # Failure
//!
//! No check waits longer than the latency budget, which counts from its arrival. A call carries its deadline in the
//! server's time, so what was given up here is not counted there later. One call that takes too long fails its own
//! checks only; three in a row, or any error, open the circuit: all who wait are answered at once, and so is whoever
//! comes, until a new connection was seen to work.

mod batch;
mod connect;
mod fault;
mod metrics;
mod options;
mod queue;
mod reply;
mod script;
mod worker;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, timeout_at};

pub use metrics::{LATENCY_BOUNDS_US, RedisMetrics};
pub use options::{OptionsError, RedisOptions, Secret};
pub use script::CHECK_LUA;

use crate::check::{Answer, Check, Counter};
use crate::failure::{StoreError, StoreFault, StoreHealth};
use metrics::Shared;
use queue::Job;

/// The Redis store. Dropping it ends its task and its connection.
#[derive(Debug)]
pub struct RedisStore {
    queue: mpsc::Sender<Job>,
    shared: Arc<Shared>,
    keys: batch::Keys,
    budget: Duration,
    task: JoinHandle<()>,
}

impl RedisStore {
    /// Starts the task that talks to Redis; it connects by itself and again whenever it must. To be called within a
    /// tokio runtime, of either flavour. For `rediss://` the process must have installed rustls's default provider.
    pub fn start(options: RedisOptions) -> Result<Self, OptionsError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| OptionsError::NoRuntime)?;
        let target = options.validate()?;
        let keys = batch::Keys { prefix: options.prefix.into(), partitions: options.partitions };
        let shared = Arc::new(Shared::default());
        let (queue, waiting) = mpsc::channel(queue::MAX_WAITING);
        let budget = options.latency_budget;
        let worker = worker::Worker::new(waiting, target, keys.clone(), budget, shared.clone());
        Ok(Self { queue, shared, keys, budget, task: runtime.spawn(worker.run()) })
    }

    /// Decides a check, within the latency budget.
    ///
    /// # Errors
    /// No answer: too late, too many waiting, or the store is failing. Nothing was consumed as far as the store could
    /// see to it.
    pub async fn check(&self, check: Check) -> Result<Answer, StoreError> {
        if let StoreHealth::Failing(fault) = self.health() {
            return Err(StoreError::Unavailable(fault));
        }
        let deadline = Instant::now() + self.budget;
        let (answer, answered) = oneshot::channel();
        self.queue.try_send(Job { check, deadline, answer }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => StoreError::Overloaded,
            mpsc::error::TrySendError::Closed(_) => StoreError::Unavailable(StoreFault::Unreachable),
        })?;
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            // The task ended, and with it its runtime.
            Ok(Err(_)) => Err(StoreError::Unavailable(StoreFault::Unreachable)),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// How the store is doing.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        self.shared.health()
    }

    /// What happened so far.
    #[must_use]
    pub fn metrics(&self) -> RedisMetrics {
        self.shared.metrics()
    }

    /// The key that holds a counter.
    #[must_use]
    pub fn key(&self, counter: &Counter) -> String {
        self.keys.name(counter)
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.task.abort();
    }
}
