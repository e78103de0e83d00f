//! The usage of counters in the last response of the store. Local counting starts from it when the store
//! fails. A counter that has been evicted from this table starts with nothing used, and its local share is
//! the full share of the limit.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_limiter::{Decision, Rate};

/// Number of rates whose usage is kept. Further rates of a limit start with nothing used.
pub(crate) const MAX_KNOWN_RATES: usize = 4;

const WAYS: usize = 4;
const SHARDS: usize = 16;

/// The usage of one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KnownUsage {
    /// Time of the response, in microseconds of the store's clock.
    pub(crate) at: u64,
    /// Usage of each rate.
    pub(crate) used: [u64; MAX_KNOWN_RATES],
}

type Set = [Option<(u128, KnownUsage)>; WAYS];

/// A set-associative table of fixed size. A new counter replaces the oldest of its set.
pub(crate) struct LastKnownUsage {
    /// A shard is allocated when it is first written.
    shards: [Mutex<Box<[Set]>>; SHARDS],
    sets_per_shard: usize,
}

impl LastKnownUsage {
    /// Creates a table of about this many counters, of 80 bytes each.
    pub(crate) fn new(counters: usize) -> Self {
        let sets_per_shard = counters.div_ceil(WAYS * SHARDS).max(1);
        Self { shards: std::array::from_fn(|_| Mutex::default()), sets_per_shard }
    }

    /// Stores the usage in a response that the store sent at `at` of its clock.
    pub(crate) fn record(&self, id: u128, rates: &[Rate], decisions: &[Decision], at: u64) {
        let mut usage = KnownUsage { at, used: [0; MAX_KNOWN_RATES] };
        for ((to, rate), decision) in usage.used.iter_mut().zip(rates).zip(decisions) {
            *to = rate.used_after(decision);
        }
        let mut shard = self.lock(id);
        if shard.is_empty() {
            *shard = vec![[None; WAYS]; self.sets_per_shard].into_boxed_slice();
        }
        let sets = shard.len().max(1);
        let Some(set) = shard.get_mut(id as u64 as usize % sets) else { return };
        let same = set.iter().position(|entry| entry.is_some_and(|(stored, _)| stored == id));
        let way = same.or_else(|| (0..WAYS).min_by_key(|&n| set[n].map_or(0, |(_, usage)| usage.at)));
        if let Some(way) = way {
            set[way] = Some((id, usage));
        }
    }

    pub(crate) fn forget(&self, id: u128) {
        let mut shard = self.lock(id);
        let sets = shard.len().max(1);
        let Some(set) = shard.get_mut(id as u64 as usize % sets) else { return };
        for entry in set.iter_mut().filter(|entry| entry.is_some_and(|(stored, _)| stored == id)) {
            *entry = None;
        }
    }

    pub(crate) fn get(&self, id: u128) -> Option<KnownUsage> {
        let shard = self.lock(id);
        let set = shard.get(id as u64 as usize % shard.len().max(1))?;
        set.iter().flatten().find(|(stored, _)| *stored == id).map(|&(_, usage)| usage)
    }

    fn lock(&self, id: u128) -> MutexGuard<'_, Box<[Set]>> {
        self.shards[(id >> 124) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for LastKnownUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastKnownUsage").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use sluice_limiter::{Algorithm, Period, Requests};

    use super::*;

    #[test]
    fn the_last_response_replaces_earlier_ones_and_the_oldest_counter_is_evicted() {
        let (requests, period) = (Requests::new(10).unwrap(), Period::from_millis(1000).unwrap());
        let rate = Rate::new(requests, period, Algorithm::SLIDING_WINDOW).unwrap();
        let decision = |remaining| Decision {
            admitted: true,
            limit: 10,
            period: 1000,
            remaining,
            reset: 0,
            retry_after: None,
            delay: 0,
        };
        let table = LastKnownUsage::new(64);
        table.record(1, &[rate], &[decision(7)], 5);
        table.record(1, &[rate], &[decision(4)], 6);
        assert_eq!(table.get(1), Some(KnownUsage { at: 6, used: [6, 0, 0, 0] }));
        for id in 2..6 {
            table.record(id, &[rate], &[decision(0)], 7);
        }
        assert_eq!(table.get(1), None);
        assert_eq!(table.get(5).map(|usage| usage.used[0]), Some(10));
    }
}
