//! What is asked of the store, and who waits for it.

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::check::{CheckRequest, CheckResponse, Counter, Grant, Settlement};
use crate::failure::StoreError;

/// How many may wait. More than a few batches cannot be answered within the latency budget anyway.
pub(super) const MAX_WAITING: usize = 4096;

/// One question that waits.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ask: Ask,
    /// When its caller gives up.
    pub(super) deadline: Instant,
}

/// What is asked, and where the answer goes.
#[derive(Debug)]
pub(super) enum Ask {
    /// Decide a check.
    Check(CheckRequest, Caller),
    /// Take so many times a counter's cost, or as much of it as there is.
    Take(Counter, u64, oneshot::Sender<Result<Grant, StoreError>>),
    /// Correct a charge.
    Settle(Settlement, oneshot::Sender<Result<(), StoreError>>),
}

/// Where the answer to a check goes.
pub(super) type Caller = oneshot::Sender<Result<CheckResponse, StoreError>>;

impl Job {
    /// Whether nobody waits any more. A settlement is sent all the same.
    pub(super) fn is_gone(&self) -> bool {
        match &self.ask {
            Ask::Check(_, caller) => caller.is_closed(),
            Ask::Take(.., caller) => caller.is_closed(),
            Ask::Settle(..) => false,
        }
    }

    /// Answers without asking the store. A caller who has gone does not mind.
    pub(super) fn refuse(self, error: StoreError) {
        self.ask.refuse(error);
    }
}

impl Ask {
    pub(super) fn refuse(self, error: StoreError) {
        match self {
            Self::Check(_, caller) => drop(caller.send(Err(error))),
            Self::Take(.., caller) => drop(caller.send(Err(error))),
            Self::Settle(_, caller) => drop(caller.send(Err(error))),
        }
    }
}
