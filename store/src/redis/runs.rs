//! Runs: checks of one shape, which the script decides together at a fraction of what they cost alone. Nearly all checks
//! are of such a shape: a counter of the client's, and maybe a few that all clients share.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::batch::Entry;
use crate::check::{Counter, LimitSpec};

/// Checks that stand one after another in a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    /// How many.
    pub(super) checks: usize,
    /// Which of a check's counters is its own: no other question of the call is about it. The others are the same ones
    /// in all checks of the run.
    pub(super) own: usize,
}

/// What checks of a run have in common.
#[derive(PartialEq)]
struct Shape {
    own: usize,
    limit: *const LimitSpec,
    besides: SmallVec<[(u128, *const LimitSpec); 2]>,
    /// One that several ask is a run by itself.
    alone: Option<usize>,
}

/// Puts what is no run's first, and the runs behind it.
pub(super) fn arrange(entries: &mut Vec<Entry>) -> Vec<Run> {
    let mut shapes: Vec<Shape> = Vec::new();
    let mut runs: Vec<Run> = Vec::new();
    // Of each entry its run, counted from 1.
    let mut which = Vec::with_capacity(entries.len());
    let uses = Uses::of(entries);
    for (n, entry) in entries.iter().enumerate() {
        let Some(own) = own_of(entry, &uses) else {
            which.push(0);
            continue;
        };
        let counters = entry.counters();
        let besides = counters.iter().enumerate().filter(|&(at, _)| at != own);
        let shape = Shape {
            own,
            limit: &*counters[own].limit,
            besides: besides.map(|(_, one)| (one.key.0, &*one.limit as *const _)).collect(),
            alone: (entry.asked() > 1).then_some(n),
        };
        // Nearly always it is the one before.
        let at = shapes.iter().rposition(|known| *known == shape).unwrap_or_else(|| {
            shapes.push(shape);
            runs.push(Run { checks: 0, own });
            runs.len() - 1
        });
        runs[at].checks += 1;
        which.push(at + 1);
    }
    drop(uses);
    if !which.is_sorted() {
        let mut tagged: Vec<_> = which.into_iter().zip(entries.drain(..)).collect();
        tagged.sort_by_key(|&(run, _)| run);
        entries.extend(tagged.into_iter().map(|(_, entry)| entry));
    }
    runs
}

/// Which of its counters is an entry's own; `None`: it cannot be part of a run.
fn own_of(entry: &Entry, uses: &Uses<'_>) -> Option<usize> {
    let counters = entry.counters();
    if entry.asked() == 0 || counters.iter().any(|one| one.cost != 1 || !is_plain(&one.limit)) {
        return None;
    }
    let own = counters.iter().position(|one| uses.count(one) == 1)?;
    let besides = || counters.iter().enumerate().filter(|&(at, _)| at != own);
    let fits =
        counters.len() == 1 || entry.asked() == 1 && besides().all(|(_, one)| one.limit.rates.len() == 1);
    fits.then_some(own)
}

/// Whether no rate of a limit has parameters.
fn is_plain(limit: &LimitSpec) -> bool {
    limit.rates.iter().all(|rate| rate.script_arguments(0, 1).is_none())
}

/// How many questions are about each counter.
struct Uses<'a>(HashMap<u128, SmallVec<[(&'a str, u32); 2]>, foldhash::fast::RandomState>);

impl<'a> Uses<'a> {
    fn of(entries: &'a [Entry]) -> Self {
        let mut all =
            HashMap::with_capacity_and_hasher(entries.len(), foldhash::fast::RandomState::default());
        for (scope, key) in entries.iter().flat_map(Entry::names) {
            let scopes: &mut SmallVec<[(&str, u32); 2]> = all.entry(key.0).or_default();
            match scopes.iter_mut().find(|(known, _)| *known == scope) {
                Some((_, uses)) => *uses += 1,
                None => scopes.push((scope, 1)),
            }
        }
        Self(all)
    }

    fn count(&self, counter: &Counter) -> u32 {
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
    use crate::redis::queue::Ask;

    fn limit(scope: &str, periods: &[u64]) -> Arc<LimitSpec> {
        let rate = |&period| {
            let (requests, period) = (Requests::new(5).unwrap(), Period::from_millis(period).unwrap());
            Rate::new(requests, period, Algorithm::SLIDING_WINDOW).unwrap()
        };
        Arc::new(LimitSpec::new(scope, periods.iter().map(rate).collect()))
    }

    fn entry(counters: &[(&Arc<LimitSpec>, u128, u64)], callers: usize) -> Entry {
        let counter = |&(limit, key, cost): &(&Arc<LimitSpec>, _, _)| Counter {
            limit: Arc::clone(limit),
            key: KeyHash(key),
            cost,
        };
        let check: CheckRequest = counters.iter().map(counter).collect();
        match callers {
            1 => Entry::One(Ask::Check(check, oneshot::channel().0)),
            _ => Entry::Check(check, (0..callers).map(|_| oneshot::channel().0).collect()),
        }
    }

    fn keys(entries: &[Entry]) -> Vec<u128> {
        entries.iter().map(|entry| entry.counters()[0].key.0).collect()
    }

    #[test]
    fn checks_of_one_shape_are_a_run_and_all_else_comes_first() {
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
        assert_eq!(arrange(&mut entries), runs, "again, when a call is sent again");
    }

    #[test]
    fn a_key_that_two_questions_are_about_is_nobodys_own() {
        let (own, other) = (limit("own", &[1000]), limit("other", &[1000]));
        let mut entries = vec![entry(&[(&own, 1, 1)], 1), entry(&[(&own, 1, 2)], 1)];
        assert_eq!(arrange(&mut entries), []);
        // The same client in two limits is two counters.
        let mut entries = vec![entry(&[(&own, 1, 1), (&other, 1, 1)], 1), entry(&[(&own, 1, 1)], 1)];
        assert_eq!(arrange(&mut entries), [Run { checks: 1, own: 1 }]);
        assert_eq!(entries[0].counters().len(), 1);
    }

    #[test]
    fn several_rates_beside_another_counter_are_no_run() {
        let (own, many) = (limit("own", &[1000]), limit("many", &[1000, 2000]));
        assert_eq!(arrange(&mut vec![entry(&[(&own, 1, 1), (&many, 1, 1)], 1)]), []);
        assert_eq!(arrange(&mut vec![entry(&[(&many, 1, 1), (&own, 1, 1)], 1)]).len(), 1);
    }
}
