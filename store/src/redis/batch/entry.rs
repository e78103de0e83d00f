//! An operation inside a batch.

use sluice_limiter::Rate;

use super::operation::{Operation, Responder};
use crate::check::{CheckRequest, CheckResponse, Counter, KeyHash, LimitSpec, Taking};
use crate::failure::StoreError;

/// An operation inside a batch, with its callers.
#[derive(Debug)]
pub(crate) enum BatchEntry {
    /// Equal checks and their callers, in the order of their arrival.
    Merged(CheckRequest, Vec<Responder<CheckResponse>>),
    /// Any other operation, which has one caller.
    Single(Operation),
}

impl BatchEntry {
    /// Returns the counters to decide on; a correction or a reset has none.
    pub(crate) fn counters(&self) -> &[Counter] {
        match self {
            Self::Merged(check, _) => check,
            Self::Single(operation) => operation.counters(),
        }
    }

    /// Returns the scope and the key of each counter that the entry reads or may change.
    pub(super) fn names(&self) -> impl Iterator<Item = (&str, KeyHash)> {
        let [ledger, settled] = match self {
            Self::Single(Operation::Settle(settlement, _)) => {
                [None, Some((&settlement.limit, settlement.key))]
            }
            Self::Single(Operation::Charge(counter, _) | Operation::Reset(counter, _)) => {
                [None, Some((&counter.limit, counter.key))]
            }
            Self::Single(Operation::Find(lookup, _)) => [Some((&lookup.ledger, lookup.key)), None],
            Self::Single(Operation::Take(Taking { ledger, correction, .. }, ..)) => {
                [Some((ledger, correction.key)), Some((&correction.limit, correction.key))]
            }
            Self::Single(Operation::Check(..) | Operation::Acquire(..)) | Self::Merged(..) => [None, None],
        };
        let counters = self.counters().iter().map(|counter| (&counter.limit, counter.key));
        counters.chain(ledger).chain(settled).map(|(limit, key)| (&*limit.scope, key))
    }

    /// Returns the number of times that the cost is charged at most.
    pub(crate) fn times(&self) -> u64 {
        match self {
            Self::Merged(_, callers) => callers.len() as u64,
            Self::Single(Operation::Check(..)) => 1,
            Self::Single(Operation::Acquire(_, wanted, _)) => *wanted,
            Self::Single(
                Operation::Settle(..)
                | Operation::Charge(..)
                | Operation::Reset(..)
                | Operation::Find(..)
                | Operation::Take(..),
            ) => 0,
        }
    }

    pub(super) fn callers(&self) -> usize {
        match self {
            Self::Merged(_, callers) => callers.len(),
            Self::Single(_) => 1,
        }
    }

    pub(super) fn records(&self) -> usize {
        match self {
            Self::Merged(check, _) => records_of(check),
            Self::Single(operation) => operation.records(),
        }
    }

    /// Returns an error to the callers that still wait.
    pub(crate) fn fail(self, error: &StoreError) {
        match self {
            Self::Merged(_, callers) => {
                callers.into_iter().for_each(|caller| drop(caller.send(Err(error.clone()))));
            }
            Self::Single(operation) => operation.fail(error.clone()),
        }
    }
}

impl Operation {
    /// Returns the counters to decide on; a correction or a reset has none.
    pub(crate) fn counters(&self) -> &[Counter] {
        match self {
            Self::Check(check, _) => check,
            Self::Acquire(counter, ..) => std::slice::from_ref(counter),
            Self::Settle(..) | Self::Charge(..) | Self::Reset(..) | Self::Find(..) | Self::Take(..) => &[],
        }
    }

    /// Returns the weighted number of records that the operation touches.
    pub(super) fn records(&self) -> usize {
        match self {
            Self::Check(check, _) => records_of(check),
            Self::Acquire(counter, ..) => weight(&counter.limit),
            Self::Settle(settlement, _) => weight(&settlement.limit),
            Self::Charge(counter, _) | Self::Reset(counter, _) => weight(&counter.limit),
            Self::Find(lookup, _) => weight(&lookup.ledger),
            Self::Take(taking, ..) => weight(&taking.ledger) + weight(&taking.correction.limit),
        }
    }
}

fn records_of(check: &CheckRequest) -> usize {
    check.iter().map(|counter| weight(&counter.limit)).sum()
}

/// Returns the cost of a limit's records in the script, as a multiple of a record of the default algorithm.
fn weight(limit: &LimitSpec) -> usize {
    limit.rates.iter().map(Rate::script_weight).sum()
}
