//! A server as the rest of the store sees it: what waits for it, and whether its circuit is open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::batch::Batch;
use super::connect::Way;
use super::metrics::Circuit;
use super::queue::{Ask, Job, MAX_WAITING};
use super::worker::{Setting, Worker};
use crate::check::{KeyHash, LimitSpec};
use crate::failure::{StoreError, StoreFault};

/// What may share a script call: in a cluster the keys of one slot, and while that slot moves only equal keys. Ordered
/// by slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lane(u64);

impl Lane {
    /// Everything, where there are no slots.
    pub(super) const ALL: Self = Self(0);

    /// All keys of a slot.
    pub(super) fn of_slot(slot: u16) -> Self {
        Self(u64::from(slot) << 48)
    }

    /// One key of a slot; another one may by chance have the same.
    pub(super) fn of_key(slot: u16, limit: &LimitSpec, key: KeyHash) -> Self {
        let scope = limit
            .scope
            .bytes()
            .fold(key.0 as u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        Self(u64::from(slot) << 48 | scope >> 16)
    }

    pub(super) fn slot(self) -> u16 {
        (self.0 >> 48) as u16
    }
}

/// Where an answer goes.
pub(super) type Caller<T> = oneshot::Sender<Result<T, StoreError>>;

/// What waits for a server.
#[derive(Debug)]
pub(super) enum Item {
    /// A question.
    Job(Lane, Job),
    /// Questions that another server, or this one before, did not answer.
    Again(Box<Again>),
}

/// Questions that are to be sent again.
#[derive(Debug)]
pub(super) struct Again {
    pub(super) lane: Lane,
    pub(super) batch: Batch,
    pub(super) asking: bool,
    pub(super) tries: u32,
}

impl Item {
    /// Answers without asking the store.
    pub(super) fn refuse(self, error: &StoreError) {
        match self {
            Self::Job(_, job) => job.refuse(error.clone()),
            Self::Again(again) => again.batch.refuse(error),
        }
    }
}

/// Tells the worker that enough waits for a second call.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Whether exactly one call is on its way.
    pub(super) alone: AtomicBool,
    pub(super) enough: Notify,
    /// How many are enough, as the worker takes it.
    pub(super) enough_at: AtomicUsize,
}

/// A server. When the last of its owners lets go of it, its task answers what waits and ends.
#[derive(Debug)]
pub(super) struct Node {
    queue: mpsc::Sender<Item>,
    pub(super) circuit: Arc<Circuit>,
    flow: Arc<Flow>,
}

impl Node {
    /// Starts its task.
    pub(super) fn start(runtime: &Handle, way: Way, setting: Setting) -> Self {
        let (queue, waiting) = mpsc::channel(MAX_WAITING);
        let (circuit, flow) = (Arc::<Circuit>::default(), Arc::<Flow>::default());
        let worker = Worker::new(waiting, setting, circuit.clone(), flow.clone());
        runtime.spawn(worker.run(way));
        Self { queue, circuit, flow }
    }

    /// Asks, and waits for the answer until the deadline.
    pub(super) async fn ask<T>(
        &self,
        lane: Lane,
        deadline: Instant,
        ask: impl FnOnce(Caller<T>) -> Ask,
    ) -> Result<T, StoreError> {
        let (caller, answered) = oneshot::channel();
        self.push(Item::Job(lane, Job { ask: ask(caller), deadline }));
        match timeout_at(deadline, answered).await {
            Ok(Ok(answer)) => answer,
            // The task ended, and with it its runtime.
            Ok(Err(_)) => Err(StoreError::Unavailable(StoreFault::Unreachable)),
            Err(_) => Err(StoreError::Timeout),
        }
    }

    /// Lets something wait for the server, or answers it at once.
    pub(super) fn push(&self, item: Item) {
        if let Some(fault) = self.circuit.fault() {
            return item.refuse(&StoreError::Unavailable(fault));
        }
        match self.queue.try_send(item) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(item)) => return item.refuse(&StoreError::Overloaded),
            // The task ended, and with it its runtime: whoever waits is told so by the item's end.
            Err(mpsc::error::TrySendError::Closed(_)) => return,
        }
        if self.flow.alone.load(Relaxed)
            && MAX_WAITING - self.queue.capacity() >= self.flow.enough_at.load(Relaxed)
            && self.flow.alone.swap(false, Relaxed)
        {
            self.flow.enough.notify_one();
        }
    }
}
