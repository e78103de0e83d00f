//! One operation on the store, and where its result goes. Equal checks are one operation.

use std::sync::Arc;

use sluice_limiter::{Rate, Reserved, SlotsFound};
use smallvec::{SmallVec, smallvec};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, Settlement, Taking,
};
use crate::failure::StoreError;

/// Maximum number of waiting operations. The server cannot run more than a few batches within the latency
/// budget anyway.
pub(crate) const MAX_WAITING: usize = 4096;

/// The channel to an operation's caller.
pub(crate) type Responder<T> = oneshot::Sender<Result<T, StoreError>>;

/// The callers of equal checks.
pub(crate) type Callers = SmallVec<[Responder<CheckResponse>; 1]>;

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
    /// Decides equal checks, one for each caller, in the order of their arrival.
    Check(CheckRequest, Callers),
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

impl Operation {
    /// One check.
    pub(crate) fn check(check: CheckRequest, caller: Responder<CheckResponse>) -> Self {
        Self::Check(check, smallvec![caller])
    }

    /// Reports whether all callers have given up already. A correction or a reset is sent all the same.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Check(_, callers) => callers.iter().all(Responder::is_closed),
            Self::Acquire(.., caller) => caller.is_closed(),
            Self::Find(_, caller) => caller.is_closed(),
            Self::Settle(..) | Self::Charge(..) | Self::Reset(..) | Self::Take(..) => false,
        }
    }

    /// Returns the counters to decide on; a correction or a reset has none.
    pub(crate) fn counters(&self) -> &[Counter] {
        match self {
            Self::Check(check, _) => check,
            Self::Acquire(counter, ..) => std::slice::from_ref(counter),
            Self::Settle(..) | Self::Charge(..) | Self::Reset(..) | Self::Find(..) | Self::Take(..) => &[],
        }
    }

    /// Returns the limit and the key of each counter that the operation reads or may change.
    pub(super) fn keys(&self) -> impl Iterator<Item = (&Arc<LimitSpec>, KeyHash)> {
        let [ledger, settled] = match self {
            Self::Settle(settlement, _) => [None, Some((&settlement.limit, settlement.key))],
            Self::Charge(counter, _) | Self::Reset(counter, _) => [None, Some((&counter.limit, counter.key))],
            Self::Find(lookup, _) => [Some((&lookup.ledger, lookup.key)), None],
            Self::Take(Taking { ledger, correction, .. }, ..) => {
                [Some((ledger, correction.key)), Some((&correction.limit, correction.key))]
            }
            Self::Check(..) | Self::Acquire(..) => [None, None],
        };
        let counters = self.counters().iter().map(|counter| (&counter.limit, counter.key));
        counters.chain(ledger).chain(settled)
    }

    /// Returns the weighted number of records that the operation touches.
    pub(super) fn records(&self) -> usize {
        // A record of the default algorithm has the weight 1.
        self.keys().flat_map(|(limit, _)| &limit.rates).map(Rate::script_weight).sum()
    }

    /// Returns the number of times that the cost is charged at most.
    pub(crate) fn times(&self) -> u64 {
        match self {
            Self::Check(_, callers) => callers.len() as u64,
            Self::Acquire(_, wanted, _) => *wanted,
            Self::Settle(..) | Self::Charge(..) | Self::Reset(..) | Self::Find(..) | Self::Take(..) => 0,
        }
    }

    /// Returns the number of callers.
    pub(super) fn callers(&self) -> usize {
        if let Self::Check(_, callers) = self { callers.len() } else { 1 }
    }

    /// Returns an error to the callers that still wait.
    pub(crate) fn fail(self, error: StoreError) {
        match self {
            Self::Check(_, callers) => {
                callers.into_iter().for_each(|caller| drop(caller.send(Err(error.clone()))));
            }
            Self::Acquire(.., caller) => drop(caller.send(Err(error))),
            Self::Settle(_, caller) => drop(caller.send(Err(error))),
            Self::Charge(_, caller) => drop(caller.send(Err(error))),
            Self::Reset(_, caller) => drop(caller.send(Err(error))),
            Self::Find(_, caller) => drop(caller.send(Err(error))),
            Self::Take(.., caller) => drop(caller.send(Err(error))),
        }
    }
}
