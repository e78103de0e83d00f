//! Runs: checks of one shape, which the script decides together at a fraction of the cost of single checks.
//! Nearly all checks have such a shape: one counter of the client, and possibly a few that all clients share.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::entry::BatchEntry;
use crate::check::{Counter, LimitSpec};

/// Consecutive checks of one shape in a script call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// Number of checks.
    pub(crate) checks: usize,
    /// Index of the counter that is a check's own: no other entry of the call names it. The other counters
    /// are shared by all checks of the run.
    pub(crate) own: usize,
}

/// Returns the number of checks in all runs.
pub(crate) fn checks_in(runs: &[Run]) -> usize {
    runs.iter().map(|run| run.checks).sum()
}

/// The properties that the checks of a run have in common.
#[derive(PartialEq)]
struct Shape {
    own: usize,
    limit: *const LimitSpec,
    shared: SmallVec<[(u128, *const LimitSpec); 2]>,
    /// Index of the entry if it has several callers, which makes it a run of its own.
    single: Option<usize>,
}

/// Sorts the entries: first those outside of all runs, then run after run.
pub(super) fn arrange(entries: &mut Vec<BatchEntry>) -> Vec<Run> {
    let mut shapes: Vec<Shape> = Vec::new();
    let mut runs: Vec<Run> = Vec::new();
    // The run of each entry, counted from 1; 0 for none.
    let mut run_of = Vec::with_capacity(entries.len());
    let uses = CounterUses::count(entries);
    for (n, entry) in entries.iter().enumerate() {
        let Some(own) = own_counter(entry, &uses) else {
            run_of.push(0);
            continue;
        };
        let counters = entry.counters();
        let shared = counters.iter().enumerate().filter(|&(at, _)| at != own);
        let shape = Shape {
            own,
            limit: &*counters[own].limit,
            shared: shared.map(|(_, counter)| (counter.key.0, &*counter.limit as *const _)).collect(),
            single: (entry.times() > 1).then_some(n),
        };
        // Nearly always the shape of the entry before.
        let at = shapes.iter().rposition(|known| *known == shape).unwrap_or_else(|| {
            shapes.push(shape);
            runs.push(Run { checks: 0, own });
            runs.len() - 1
        });
        runs[at].checks += 1;
        run_of.push(at + 1);
    }
    drop(uses);
    if !run_of.is_sorted() {
        let mut tagged: Vec<_> = run_of.into_iter().zip(entries.drain(..)).collect();
        tagged.sort_by_key(|&(run, _)| run);
        entries.extend(tagged.into_iter().map(|(_, entry)| entry));
    }
    runs
}

/// Returns the index of the entry's own counter, or `None` if the entry cannot be part of a run.
fn own_counter(entry: &BatchEntry, uses: &CounterUses<'_>) -> Option<usize> {
    let counters = entry.counters();
    if entry.times() == 0 || counters.iter().any(|counter| counter.cost != 1 || !is_plain(&counter.limit)) {
        return None;
    }
    let own = counters.iter().position(|counter| uses.of(counter) == 1)?;
    let shared = || counters.iter().enumerate().filter(|&(at, _)| at != own);
    let fits = counters.len() == 1
        || entry.times() == 1 && shared().all(|(_, counter)| counter.limit.rates.len() == 1);
    fits.then_some(own)
}

/// Reports whether no rate of a limit needs script arguments.
fn is_plain(limit: &LimitSpec) -> bool {
    limit.rates.iter().all(|rate| rate.script_arguments(0, 1).is_none())
}

/// The number of entries that name each counter.
struct CounterUses<'a>(HashMap<u128, SmallVec<[(&'a str, u32); 2]>, foldhash::fast::RandomState>);

impl<'a> CounterUses<'a> {
    fn count(entries: &'a [BatchEntry]) -> Self {
        let mut all =
            HashMap::with_capacity_and_hasher(entries.len(), foldhash::fast::RandomState::default());
        for (scope, key) in entries.iter().flat_map(BatchEntry::names) {
            let scopes: &mut SmallVec<[(&str, u32); 2]> = all.entry(key.0).or_default();
            match scopes.iter_mut().find(|(known, _)| *known == scope) {
                Some((_, uses)) => *uses += 1,
                None => scopes.push((scope, 1)),
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
    use std::sync::Arc;

    use sluice_limiter::{Algorithm, Period, Rate, Requests};
    use tokio::sync::oneshot;

    use super::*;
    use crate::check::{CheckRequest, KeyHash};
    use crate::redis::batch::operation::Operation;

    fn limit(scope: &str, periods: &[u64]) -> Arc<LimitSpec> {
        let rate = |&period| {
            let (requests, period) = (Requests::new(5).unwrap(), Period::from_millis(period).unwrap());
            Rate::new(requests, period, Algorithm::SLIDING_WINDOW).unwrap()
        };
        Arc::new(LimitSpec::new(scope, periods.iter().map(rate).collect()))
    }

    fn entry(counters: &[(&Arc<LimitSpec>, u128, u64)], callers: usize) -> BatchEntry {
        let counter = |&(limit, key, cost): &(&Arc<LimitSpec>, _, _)| Counter {
            limit: Arc::clone(limit),
            key: KeyHash(key),
            cost,
        };
        let check: CheckRequest = counters.iter().map(counter).collect();
        match callers {
            1 => BatchEntry::Single(Operation::Check(check, oneshot::channel().0)),
            _ => BatchEntry::Merged(check, (0..callers).map(|_| oneshot::channel().0).collect()),
        }
    }

    fn keys(entries: &[BatchEntry]) -> Vec<u128> {
        entries.iter().map(|entry| entry.counters()[0].key.0).collect()
    }

    #[test]
    fn checks_of_one_shape_form_a_run_after_all_other_entries() {
        let (own, many, all) = (limit("own", &[1000]), limit("many", &[1000, 2000]), limit("all", &[1000]));
        let mut entries = vec![
            entry(&[(&own, 1, 1)], 1),
            entry(&[(&own, 2, 1), (&all, 0, 1)], 1),
            entry(&[(&own, 3, 2)], 1),
            entry(&[(&many, 4, 1)], 1),
            entry(&[(&own, 5, 1)], 1),
            entry(&[(&own, 6, 1)], 9),
            entry(&[(&own, 7, 1), (&all, 0, 1)], 1),
        ];
        let runs = arrange(&mut entries);
        assert_eq!(keys(&entries), [3, 1, 5, 2, 7, 4, 6]);
        let sizes: Vec<_> = runs.iter().map(|run| (run.checks, run.own)).collect();
        assert_eq!(sizes, [(2, 0), (2, 0), (1, 0), (1, 0)]);
        assert_eq!(
            arrange(&mut entries),
            runs,
            "arranging again, for a call that is sent again, changes nothing"
        );
    }

    #[test]
    fn a_counter_that_two_entries_name_is_not_their_own() {
        let (own, other) = (limit("own", &[1000]), limit("other", &[1000]));
        let mut entries = vec![entry(&[(&own, 1, 1)], 1), entry(&[(&own, 1, 2)], 1)];
        assert_eq!(arrange(&mut entries), []);
        // One client has a counter in each limit.
        let mut entries = vec![entry(&[(&own, 1, 1), (&other, 1, 1)], 1), entry(&[(&own, 1, 1)], 1)];
        assert_eq!(arrange(&mut entries), [Run { checks: 1, own: 1 }]);
        assert_eq!(entries[0].counters().len(), 1);
    }

    #[test]
    fn a_shared_counter_with_several_rates_prevents_a_run() {
        let (own, many) = (limit("own", &[1000]), limit("many", &[1000, 2000]));
        assert_eq!(arrange(&mut vec![entry(&[(&own, 1, 1), (&many, 1, 1)], 1)]), []);
        assert_eq!(arrange(&mut vec![entry(&[(&many, 1, 1), (&own, 1, 1)], 1)]).len(), 1);
    }
}
