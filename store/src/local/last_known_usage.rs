//! The usage of counters in the last response of the store. Local counting starts from it when the store
//! fails. A counter that has been evicted from this table starts with nothing used, and its local share is
//! the full share of the limit.

use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_limiter::{Algorithm, Alignment, Decision, Rate};

use crate::usage::used;

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
            *to = used(rate, decision);
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

/// Returns the least of the usage at `at` that must still count at `now`, unless the store has lost it.
/// `phase` is that of the rate for the key. Quota comes back no faster than this assumes.
pub(crate) fn least_still_used(rate: &Rate, phase: u64, used: u64, at: u64, now: u64) -> u64 {
    let passed = now.saturating_sub(at);
    let period = rate.period.micros();
    match rate.algorithm {
        Algorithm::FixedWindow(Alignment::FirstRequest) => 0,
        Algorithm::FixedWindow(_) if (at + phase) / period == (now + phase) / period => used,
        Algorithm::FixedWindow(_) => 0,
        // The oldest window holds at most the whole number, which slides out within the window's length.
        Algorithm::SlidingWindowCounter { .. } => {
            remaining_usage(rate, used, passed, rate.tag().window_millis() * 1000)
        }
        Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => remaining_usage(rate, used, passed, period),
        _ => 0,
    }
}

/// Returns the usage that is left if the whole number comes back evenly in `refill_time` microseconds.
fn remaining_usage(rate: &Rate, used: u64, passed: u64, refill_time: u64) -> u64 {
    let back = u128::from(rate.requests.get()) * u128::from(passed) / u128::from(refill_time.max(1));
    used.saturating_sub(u64::try_from(back).unwrap_or(u64::MAX).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use sluice_limiter::{Burst, Period, Requests};

    use super::*;
    use crate::check::{Counter, KeyHash, LimitSpec, Records, decide};

    const START: u64 = 1_700_000_000_000_000;

    proptest! {
        /// For any earlier requests and any time since then.
        #[test]
        fn the_least_usage_is_never_above_the_true_usage(
            requests in 1u64..50, period in 20u64..2_000, which in 0usize..5, key: u128,
            steps in proptest::collection::vec((0u64..300_000, 1u64..5), 1..60), later in 0u64..3_000_000,
        ) {
            let algorithm = [
                Algorithm::SLIDING_WINDOW,
                Algorithm::FIXED_WINDOW,
                Algorithm::FixedWindow(Alignment::Spread),
                Algorithm::TokenBucket { burst: Burst::new(requests).unwrap() },
                Algorithm::FixedWindow(Alignment::FirstRequest),
            ][which];
            let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(period).unwrap());
            let rate = Rate::new(requests, period, algorithm).unwrap();
            let limit = Arc::new(LimitSpec::new("n/p/l", vec![rate]));
            let counter = |cost| Counter { limit: limit.clone(), key: KeyHash(key), cost };
            let mut stored = vec![Records::new()];
            let (mut now, mut known) = (START, 0);
            for (step, cost) in steps {
                now += step;
                let response = decide(&[counter(cost)], &mut stored, now);
                known = used(&rate, &response.decisions[0]);
            }
            let least = least_still_used(&rate, rate.phase(key), known, now, now + later);
            let peek = decide(&[counter(0)], &mut stored, now + later);
            let truth = used(&rate, &peek.decisions[0]);
            prop_assert!(least <= truth, "{least} of {truth}");
        }
    }

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
