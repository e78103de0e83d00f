//! One operation on the store, and where its result goes. Equal checks are one operation.
//!
//! Runs are checks of one shape, which a script of their own decides together at a fraction of the cost of single
//! checks: one counter of the client, and possibly a few that all clients share.

use std::collections::HashMap;
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

/// Consecutive checks of one shape in a script call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// Number of checks.
    pub(crate) checks: usize,
    /// Index of the counter that is a check's own: no other entry of the call names it. The other counters
    /// are shared by all checks of the run.
    pub(crate) own: usize,
}

/// The properties that the checks of a run have in common.
#[derive(PartialEq)]
struct RunShape {
    own: usize,
    limit: *const LimitSpec,
    shared: SmallVec<[(u128, *const LimitSpec); 2]>,
    callers: u64,
}

/// Sorts the entries by run. Splits off those that no run can take.
pub(super) fn arrange(entries: &mut Vec<Operation>) -> (Vec<Run>, Vec<Operation>) {
    let mut shapes: Vec<RunShape> = Vec::new();
    let mut runs: Vec<Run> = Vec::new();
    let mut run_of = Vec::with_capacity(entries.len());
    let uses = CounterUses::count(entries);
    for entry in &*entries {
        let counters = entry.counters();
        let Some(own) = own_counter(counters, &uses) else {
            run_of.push(usize::MAX);
            continue;
        };
        let shape = RunShape {
            own,
            limit: &*counters[own].limit,
            shared: others(counters, own)
                .map(|counter| (counter.key.0, &*counter.limit as *const _))
                .collect(),
            callers: entry.times(),
        };
        // Nearly always the shape of the entry before.
        let at = shapes.iter().rposition(|known| *known == shape).unwrap_or_else(|| {
            shapes.push(shape);
            runs.push(Run { checks: 0, own });
            runs.len() - 1
        });
        runs[at].checks += 1;
        run_of.push(at);
    }
    drop(uses);
    if !run_of.is_sorted() {
        let mut tagged: Vec<_> = run_of.into_iter().zip(entries.drain(..)).collect();
        tagged.sort_by_key(|&(run, _)| run);
        entries.extend(tagged.into_iter().map(|(_, entry)| entry));
    }
    let taken = runs.iter().map(|run| run.checks).sum();
    (runs, entries.split_off(taken))
}

/// Returns the counters of a check other than its own.
pub(crate) fn others(counters: &[Counter], own: usize) -> impl Iterator<Item = &Counter> {
    counters.iter().enumerate().filter(move |&(at, _)| at != own).map(|(_, counter)| counter)
}

/// Returns the index of a check's own counter, or `None` if the check cannot be part of a run.
fn own_counter(counters: &[Counter], uses: &CounterUses<'_>) -> Option<usize> {
    let fits = |&own: &usize| {
        uses.of(&counters[own]) == 1 && others(counters, own).all(|counter| counter.limit.rates.len() == 1)
    };
    (0..counters.len()).find(fits)
}

/// The number of entries that name each counter.
struct CounterUses<'a>(HashMap<u128, SmallVec<[(&'a str, u32); 2]>, foldhash::fast::RandomState>);

impl<'a> CounterUses<'a> {
    fn count(entries: &'a [Operation]) -> Self {
        let mut all =
            HashMap::with_capacity_and_hasher(entries.len(), foldhash::fast::RandomState::default());
        for (limit, key) in entries.iter().flat_map(Operation::keys) {
            let scopes: &mut SmallVec<[(&str, u32); 2]> = all.entry(key.0).or_default();
            match scopes.iter_mut().find(|(known, _)| *known == limit.scope) {
                Some((_, uses)) => *uses += 1,
                None => scopes.push((&limit.scope, 1)),
            }
        }
        Self(all)
    }

    fn of(&self, counter: &Counter) -> u32 {
        let scopes = self.0.get(&counter.key.0).map_or(&[][..], |scopes| scopes);
        scopes.iter().find(|(scope, _)| **scope == *counter.limit.scope).map_or(0, |&(_, uses)| uses)
    }
}

#[cfg(test)]
mod tests {
    use sluice_limiter::{Algorithm, Period, Requests};

    use super::*;

    fn limit(scope: &str, periods: &[u64]) -> Arc<LimitSpec> {
        let rate = |&period| {
            let (requests, period) = (Requests::new(5).unwrap(), Period::from_millis(period).unwrap());
            Rate::new(requests, period, Algorithm::SLIDING_WINDOW).unwrap()
        };
        Arc::new(LimitSpec::new(scope, periods.iter().map(rate).collect()))
    }

    fn entry(counters: &[(&Arc<LimitSpec>, u128, u64)], callers: usize) -> Operation {
        let counter = |&(limit, key, cost): &(&Arc<LimitSpec>, _, _)| Counter {
            limit: Arc::clone(limit),
            key: KeyHash(key),
            cost,
        };
        let check: CheckRequest = counters.iter().map(counter).collect();
        Operation::Check(check, (0..callers).map(|_| oneshot::channel().0).collect())
    }

    fn keys(entries: &[Operation]) -> Vec<u128> {
        entries.iter().map(|entry| entry.counters()[0].key.0).collect()
    }

    /// Returns the runs, and the first keys of the entries that they do not take.
    fn arranged(entries: &mut Vec<Operation>) -> (Vec<(usize, usize)>, Vec<u128>) {
        let (runs, rest) = arrange(entries);
        (runs.iter().map(|run| (run.checks, run.own)).collect(), keys(&rest))
    }

    #[test]
    fn checks_of_one_shape_form_a_run() {
        let (own, many, all) = (limit("own", &[1000]), limit("many", &[1000, 2000]), limit("all", &[1000]));
        let mut entries = vec![
            entry(&[(&own, 1, 1), (&own, 3, 1)], 1),
            entry(&[(&own, 2, 1), (&all, 0, 1)], 1),
            entry(&[(&own, 3, 1), (&own, 1, 1)], 1),
            entry(&[(&many, 4, 1)], 1),
            entry(&[(&many, 6, 1)], 9),
            entry(&[(&many, 5, 1)], 1),
            entry(&[(&own, 7, 1), (&all, 0, 1)], 1),
        ];
        let runs = vec![(2, 0), (2, 0), (1, 0)];
        assert_eq!(arranged(&mut entries), (runs.clone(), vec![1, 3]));
        assert_eq!(keys(&entries), [2, 7, 4, 5, 6]);
        assert_eq!(arranged(&mut entries), (runs, vec![]), "a call that is sent again is not changed");
    }

    #[test]
    fn a_counter_that_two_entries_name_is_not_their_own() {
        let (own, many, other) =
            (limit("own", &[1000]), limit("many", &[1000, 2000]), limit("other", &[1000]));
        let twice = || entry(&[(&many, 1, 1)], 1);
        assert_eq!(arranged(&mut vec![twice(), twice()]), (vec![], vec![1, 1]));
        // One client has a counter in each limit.
        let mut entries =
            vec![entry(&[(&own, 1, 1), (&other, 1, 1)], 1), entry(&[(&own, 1, 1), (&own, 2, 1)], 1)];
        assert_eq!(arranged(&mut entries), (vec![(1, 1), (1, 1)], vec![]));
        // A shared counter has one rate.
        let mut entries =
            vec![entry(&[(&own, 1, 1), (&many, 0, 1)], 1), entry(&[(&own, 2, 1), (&many, 0, 1)], 1)];
        assert_eq!(arranged(&mut entries), (vec![], vec![1, 2]));
    }
}
