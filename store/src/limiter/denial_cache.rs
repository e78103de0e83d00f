//! Remembered denials: a check that the store denied is denied again without a call, until the store's own
//! retry-after.
//!
//! Denials are remembered only for limits in which nothing but time makes room (see
//! [`LimitPlan::new`](crate::plan::LimitPlan::new)), and only for an identical check: the same
//! limits with the same rates, keys and costs. A denial is kept until the first of its denying rates may have
//! room, counted from the time at which the check was sent, and for [`LONGEST`] at most, so that the deletion
//! of a counter by hand soon takes effect.
//!
//! A hit allocates nothing, unless the response has more than two decisions.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_limiter::Decision;
use smallvec::SmallVec;

use crate::check::CheckResponse;

/// Longest time that a denial is remembered, in microseconds.
const LONGEST: u64 = 1_000_000;

/// Responses with more decisions are not remembered.
const MAX_DECISIONS: usize = 8;

const WAYS: usize = 4;
const SHARDS: usize = 16;

type DenialSet = [Option<Denial>; WAYS];

/// A set-associative table of fixed size. A new denial replaces the one of its set that ends first.
pub(super) struct DenialCache {
    /// A shard is allocated when it is first written.
    shards: [Mutex<Box<[DenialSet]>>; SHARDS],
    sets_per_shard: usize,
    hits: AtomicU64,
}

#[derive(Clone, Copy)]
struct Denial {
    check: u128,
    /// Time until which the check is denied, by this process's clock.
    until: u64,
    /// Time at which the response was received.
    received: u64,
    len: u8,
    decisions: [Decision; MAX_DECISIONS],
}

const NO_DECISION: Decision =
    Decision { admitted: true, limit: 0, period: 0, remaining: 0, reset: 0, retry_after: None, delay: 0 };

impl DenialCache {
    /// Creates a cache of about this many denials.
    pub(super) fn new(denials: usize) -> Self {
        let sets_per_shard = denials.div_ceil(WAYS * SHARDS).max(1);
        Self { shards: std::array::from_fn(|_| Mutex::default()), sets_per_shard, hits: AtomicU64::new(0) }
    }

    /// Returns a response to this check, if a denial is remembered at `now`. `at` is the store's time.
    pub(super) fn get(&self, check: u128, now: u64, at: u64) -> Option<CheckResponse> {
        let mut shard = self.lock(check);
        let set = set_of(&mut shard, check)?;
        let denial = set.iter().flatten().find(|denial| denial.check == check && now < denial.until)?;
        let passed = now.saturating_sub(denial.received);
        let updated = |decision: &Decision| Decision {
            reset: decision.reset.saturating_sub(passed),
            retry_after: decision.retry_after.map(|wait| wait.saturating_sub(passed).max(1)),
            ..*decision
        };
        let decisions: SmallVec<[Decision; 2]> =
            denial.decisions.iter().take(usize::from(denial.len)).map(updated).collect();
        self.hits.fetch_add(1, Relaxed);
        Some(CheckResponse::new(false, at, decisions))
    }

    /// Remembers a response to a check that was sent at `sent` and received at `now`, if it is a denial.
    pub(super) fn put(&self, check: u128, response: &CheckResponse, sent: u64, now: u64) {
        if response.admitted || response.decisions.len() > MAX_DECISIONS {
            return;
        }
        let denying = response.decisions.iter().filter(|decision| !decision.admitted);
        // A denial without a retry-after does not end by waiting.
        let Some(wait) = denying.map(|decision| decision.retry_after.unwrap_or(LONGEST)).min() else {
            return;
        };
        let until = sent + wait.min(LONGEST);
        if until <= now {
            return;
        }
        let mut decisions = [NO_DECISION; MAX_DECISIONS];
        decisions.iter_mut().zip(&response.decisions).for_each(|(to, from)| *to = *from);
        let len = response.decisions.len() as u8;
        let denial = Denial { check, until, received: now, len, decisions };
        let mut shard = self.lock(check);
        if shard.is_empty() {
            *shard = vec![[None; WAYS]; self.sets_per_shard].into_boxed_slice();
        }
        let Some(set) = set_of(&mut shard, check) else { return };
        let same = set.iter().position(|entry| entry.is_some_and(|denial| denial.check == check));
        let way = same.or_else(|| (0..WAYS).min_by_key(|&n| set[n].map_or(0, |denial| denial.until)));
        if let Some(way) = way {
            set[way] = Some(denial);
        }
    }

    /// Forgets all denials.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).fill([None; WAYS]);
        }
    }

    /// Returns the number of checks that were denied without a call.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    fn lock(&self, check: u128) -> MutexGuard<'_, Box<[DenialSet]>> {
        self.shards[(check >> 124) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set_of(shard: &mut [DenialSet], check: u128) -> Option<&mut DenialSet> {
    let sets = shard.len().max(1);
    shard.get_mut(check as u64 as usize % sets)
}

impl std::fmt::Debug for DenialCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DenialCache").field("hits", &self.hits()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use proptest::prelude::*;
    use sluice_limiter::{Algorithm, Burst, MaxWait, Period, Rate, Requests};

    use super::*;
    use crate::check::{Counter, KeyHash, LimitSpec, Records, decide};
    use crate::plan::Replicas;
    use crate::plan::{Consistency, LimitPlan, OnStoreFailure, PlannedCounter, check_id};

    fn algorithms() -> impl Strategy<Value = Algorithm> {
        prop_oneof![
            Just(Algorithm::SLIDING_WINDOW),
            Just(Algorithm::FIXED_WINDOW),
            Just(Algorithm::TokenBucket { burst: Burst::new(3).unwrap() }),
            Just(Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(300).unwrap() }),
            Just(Algorithm::SlidingWindowLog { min_interval: 20 }),
        ]
    }

    fn plan(rates: &[(u64, u64, Algorithm)]) -> Arc<LimitPlan> {
        let rate = |&(requests, millis, algorithm)| {
            let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap());
            Rate::new(requests, period, algorithm).unwrap()
        };
        let spec = Arc::new(LimitSpec::new("n/p/l", rates.iter().map(rate).collect()));
        Arc::new(LimitPlan::new(spec, Consistency::Strict, OnStoreFailure::Share, false, Replicas::alone()))
    }

    fn denied(retry_after: u64) -> Decision {
        Decision { admitted: false, retry_after: Some(retry_after), ..NO_DECISION }
    }

    fn denial(decisions: impl IntoIterator<Item = Decision>) -> CheckResponse {
        let decisions = decisions.into_iter().collect();
        CheckResponse::new(false, 1, decisions)
    }

    proptest! {
        /// For any algorithms, keys, costs and latencies.
        #[test]
        fn the_cache_denies_only_what_the_store_would_deny(
            rates in proptest::collection::vec((0u64..6, 1u64..5, algorithms()), 1..3),
            steps in proptest::collection::vec((0u64..200_000, 0u64..3, 0u128..3, 0u64..3_000, 0u64..3_000), 1..300),
        ) {
            let rates: Vec<_> = rates.iter().enumerate().map(|(n, r)| (r.0, r.1 * 100 + n as u64 * 7, r.2)).collect();
            let plan = plan(&rates);
            let cache = DenialCache::new(8);
            let mut stored: HashMap<u128, Records> = HashMap::new();
            let mut now = 5_000_000;
            for (step, cost, key, there, back) in steps {
                now += step;
                let key = KeyHash(key + 1);
                let id = check_id(&[PlannedCounter { limit: plan.clone(), key, cost }]);
                let remembered = cache.get(id, now, now);
                let sent = now;
                // The store's clock has an origin of its own. A remembered denial is returned before a call
                // would have arrived.
                let latency = if remembered.is_some() { 0 } else { there };
                let at = now + latency + 1_700_000_000_000_000;
                let counter = Counter { limit: plan.spec.clone(), key, cost };
                let mut records = vec![stored.get(&key.0).cloned().unwrap_or_default()];
                let response = decide(&[counter], &mut records, at);
                if let Some(remembered) = remembered {
                    prop_assert!(!response.admitted, "denied by the cache, admitted by the store");
                    prop_assert!(remembered.decisions.iter().any(|decision| !decision.admitted));
                    continue;
                }
                stored.insert(key.0, records.remove(0));
                now += there + back;
                cache.put(id, &response, sent, now);
            }
        }
    }

    #[test]
    fn a_denial_counts_down_and_ends_with_its_first_retry_after() {
        let cache = DenialCache::new(64);
        let denied = |retry| Decision { limit: 5, period: 1000, reset: 900_000, ..denied(retry) };
        cache.put(1, &denial([denied(700_000), denied(400_000)]), 1_000_000, 1_010_000);
        let later = cache.get(1, 1_110_000, 42).unwrap();
        assert_eq!((later.at, later.decisions[0].retry_after), (42, Some(600_000)));
        assert_eq!(later.decisions[1].reset, 800_000);
        assert!(cache.get(1, 1_399_999, 0).is_some() && cache.get(1, 1_400_000, 0).is_none());
        assert!(cache.get(2, 1_100_000, 0).is_none());
        assert_eq!(cache.hits(), 2);
    }

    #[test]
    fn only_current_denials_with_few_decisions_are_remembered() {
        let cache = DenialCache::new(64);
        let denials = |n: usize| denial(std::iter::repeat_n(denied(1_000), n));
        cache.put(1, &CheckResponse { admitted: true, ..denials(1) }, 0, 1);
        cache.put(2, &denials(MAX_DECISIONS + 1), 0, 1);
        cache.put(3, &denials(1), 0, 1_000);
        cache.put(4, &denials(0), 0, 1);
        assert!((1..=4).all(|check| cache.get(check, 1, 0).is_none()));
    }

    #[test]
    fn a_flood_of_denials_does_not_grow_the_table() {
        let cache = DenialCache::new(64);
        for n in 0..10_000u64 {
            let check = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            cache.put(check, &denial([denied(500_000 + n)]), 0, 1);
        }
        let len: usize =
            cache.shards.iter().map(|shard| shard.lock().unwrap().iter().flatten().flatten().count()).sum();
        assert_eq!(len, 64);
    }
}
