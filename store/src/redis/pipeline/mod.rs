//! The pipeline to one server. Operations go in through a [`Node`]; its worker gathers them into batches,
//! calls the script and responds to the callers. While one call is in flight, the next batch gathers.
//!
//! - [`intake`]: the queue between the node and its worker, and the batches that are formed of it.
//! - [`write`](mod@write): script calls in flight, and the values that all workers of a store share.
//! - [`worker`]: the task that connects, calls the script and responds.
//! - [`circuit`]: the health of one server, and which of its failures are logged.
//! - [`metrics`]: counts and durations of the whole store.

mod circuit;
mod intake;
mod metrics;
mod worker;
mod write;

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use self::circuit::Circuit;
use self::intake::{Intake, SecondCallSignal};
pub(crate) use self::intake::{QueueItem, RepeatedBatch};
pub(crate) use self::metrics::MetricsRecorder;
pub use self::metrics::{LATENCY_BOUNDS_US, RedisMetrics};
use self::worker::Worker;
pub(crate) use self::write::{PipelineSettings, RedirectHandler, ScriptCall};
use super::batch::{BatchGroup, MAX_WAITING, Operation, PendingOperation, Responder};
use super::connect::Connector;
use crate::eviction::Eviction;
use crate::failure::{StoreError, StoreFault, StoreHealth};
use crate::fault_cause::FaultCause;

/// The handle of a server. When the last one is dropped, the worker fails the waiting operations and ends.
#[derive(Debug)]
pub(crate) struct Node {
    queue: mpsc::Sender<QueueItem>,
    circuit: Arc<Circuit>,
    signal: Arc<SecondCallSignal>,
}

impl Node {
    /// Starts the worker of a server.
    pub(crate) fn start(runtime: &Handle, connector: Connector, settings: PipelineSettings) -> Self {
        let (queue, waiting) = mpsc::channel(MAX_WAITING);
        let (circuit, signal) = (Arc::<Circuit>::default(), Arc::<SecondCallSignal>::default());
        let worker = Worker::new(Intake::new(waiting, signal.clone()), settings, circuit.clone());
        runtime.spawn(worker.run(connector));
        Self { queue, circuit, signal }
    }

    /// Sends an operation and waits for its result until the deadline.
    pub(crate) async fn send<T>(
        &self,
        group: BatchGroup,
        deadline: Instant,
        operation: impl FnOnce(Responder<T>) -> Operation,
    ) -> Result<T, StoreError> {
        let (caller, result) = oneshot::channel();
        let operation = operation(caller);
        self.push(QueueItem::New(group, PendingOperation { operation, deadline }));
        match timeout_at(deadline, result).await {
            Ok(Ok(result)) => result,
            // The worker has ended together with its runtime.
            Ok(Err(_)) => Err(StoreError::Unavailable(StoreFault::Unreachable)),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Queues an item for the worker. Fails it if the circuit is open or the queue is full.
    pub(crate) fn push(&self, item: QueueItem) {
        if let Some(fault) = self.circuit.fault() {
            return item.fail(&StoreError::Unavailable(fault));
        }
        match self.queue.try_send(item) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(item)) => return item.fail(&StoreError::Overloaded),
            // The worker has ended together with its runtime. Dropping the item notifies its callers.
            Err(mpsc::error::TrySendError::Closed(_)) => return,
        }
        self.signal.notify_if_reached(|| MAX_WAITING - self.queue.capacity());
    }

    pub(crate) fn health(&self) -> StoreHealth {
        self.circuit.health()
    }

    /// Returns whether the server evicts counters.
    pub(crate) fn eviction(&self) -> Eviction {
        self.circuit.eviction()
    }

    /// Returns the cause of the fault, while the circuit is open.
    pub(crate) fn cause(&self) -> Option<FaultCause> {
        self.circuit.cause()
    }
}
