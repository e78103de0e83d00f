//! One operation on the store, and where its result goes.

use sluice_limiter::{Reserved, SlotsFound};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::check::{CheckRequest, CheckResponse, Counter, Grant, Lookup, Settlement, Taking};
use crate::failure::StoreError;

/// Maximum number of waiting operations. The server cannot run more than a few batches within the latency
/// budget anyway.
pub(crate) const MAX_WAITING: usize = 4096;

/// The channel to an operation's caller.
pub(crate) type Responder<T> = oneshot::Sender<Result<T, StoreError>>;

/// An operation that waits for its result.
#[derive(Debug)]
pub(crate) struct PendingOperation {
    pub(crate) operation: Operation,
    /// Time at which the caller gives up.
    pub(crate) deadline: Instant,
}

/// An operation on the store.
#[derive(Debug)]
pub(crate) enum Operation {
    /// Decides a check.
    Check(CheckRequest, Responder<CheckResponse>),
    /// Charges a counter's cost up to this many times, as far as there is room.
    Acquire(Counter, u64, Responder<Grant>),
    /// Refunds a part of a charge.
    Settle(Settlement, Responder<SlotsFound>),
    /// Charges a counter, whether or not there is room.
    Charge(Counter, Responder<()>),
    /// Removes a counter, and returns the time. Its cost has no meaning.
    Reset(Counter, Responder<u64>),
    /// Looks at a reservation.
    Find(Lookup, Responder<Option<Reserved>>),
    /// Settles a reservation. If more was used, the counter is charged the rest.
    Take(Taking, Option<Counter>, Responder<bool>),
}

impl PendingOperation {
    /// Reports whether the caller has given up already. A correction or a reset is sent all the same.
    pub(crate) fn is_abandoned(&self) -> bool {
        match &self.operation {
            Operation::Check(_, caller) => caller.is_closed(),
            Operation::Acquire(.., caller) => caller.is_closed(),
            Operation::Find(_, caller) => caller.is_closed(),
            Operation::Settle(..) | Operation::Charge(..) | Operation::Reset(..) | Operation::Take(..) => {
                false
            }
        }
    }
}

impl Operation {
    /// Returns an error to the caller, if it still waits.
    pub(crate) fn fail(self, error: StoreError) {
        match self {
            Self::Check(_, caller) => drop(caller.send(Err(error))),
            Self::Acquire(.., caller) => drop(caller.send(Err(error))),
            Self::Settle(_, caller) => drop(caller.send(Err(error))),
            Self::Charge(_, caller) => drop(caller.send(Err(error))),
            Self::Reset(_, caller) => drop(caller.send(Err(error))),
            Self::Find(_, caller) => drop(caller.send(Err(error))),
            Self::Take(.., caller) => drop(caller.send(Err(error))),
        }
    }
}
