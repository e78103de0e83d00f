//! Denials that are remembered: who was denied is denied again without asking, until the store's own retry-after.
//!
//! Only where nothing but time makes room (see [`super::LimitPlan::new`]): no settlements, no refunds, no foreign
//! leases, nothing soft or elastic, and not where a denial is itself counted. And only for the very same check: the same
//! limits with the same numbers, keys and costs. An answer is kept until the first of its denying rates may have room,
//! counted from when the question was sent, and for [`LONGEST`] at most, so that a counter which somebody deletes by hand
//! is soon seen to be gone.
//!
//! The table is of fixed size, four places a set; the one that ends first gives way. A hit allocates nothing, unless the
//! answer is about more than two rates.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use sluice_limiter::Decision;
use smallvec::SmallVec;

use crate::check::CheckResponse;

/// The longest that a denial is remembered, in microseconds.
const LONGEST: u64 = 1_000_000;

/// Answers about more rates are not remembered.
const MOST_RATES: usize = 4;

const PLACES: usize = 4;
const LOCKS: usize = 16;

type Set = [Option<Denial>; PLACES];

/// See the module.
pub(super) struct DenialCache {
    /// Sets side by side, cut into as many pieces as there are locks; each is made when it is first needed.
    pieces: [Mutex<Box<[Set]>>; LOCKS],
    /// Of a piece.
    sets: usize,
    hits: AtomicU64,
}

#[derive(Clone, Copy)]
struct Denial {
    check: u128,
    /// From when on the store is asked again.
    until: u64,
    /// When the answer was received.
    received: u64,
    rates: u8,
    decisions: [Decision; MOST_RATES],
}

const NOTHING: Decision =
    Decision { admitted: true, limit: 0, period: 0, remaining: 0, reset: 0, retry_after: None, delay: 0 };

impl DenialCache {
    /// Room for about so many.
    pub(super) fn new(denials: usize) -> Self {
        let sets = denials.div_ceil(PLACES * LOCKS).max(1);
        Self { pieces: std::array::from_fn(|_| Mutex::default()), sets, hits: AtomicU64::new(0) }
    }

    /// The answer to this check at `now`, if it is known to be a denial; `at`: the store's clock.
    pub(super) fn get(&self, check: u128, now: u64, at: u64) -> Option<CheckResponse> {
        let mut piece = self.piece(check);
        let set = set(&mut piece, check)?;
        let denial = set.iter().flatten().find(|denial| denial.check == check && now < denial.until)?;
        let passed = now.saturating_sub(denial.received);
        let later = |decision: &Decision| Decision {
            reset: decision.reset.saturating_sub(passed),
            retry_after: decision.retry_after.map(|wait| wait.saturating_sub(passed).max(1)),
            ..*decision
        };
        let decisions: SmallVec<[Decision; 2]> =
            denial.decisions.iter().take(usize::from(denial.rates)).map(later).collect();
        self.hits.fetch_add(1, Relaxed);
        Some(CheckResponse { admitted: false, at, decisions })
    }

    /// Remembers a denial that was asked for at `sent` and received at `now`.
    pub(super) fn put(&self, check: u128, answer: &CheckResponse, sent: u64, now: u64) {
        if answer.admitted || answer.decisions.len() > MOST_RATES {
            return;
        }
        let denying = answer.decisions.iter().filter(|decision| !decision.admitted);
        // Without a retry-after no wait helps.
        let Some(wait) = denying.map(|decision| decision.retry_after.unwrap_or(LONGEST)).min() else {
            return;
        };
        let until = sent + wait.min(LONGEST);
        if until <= now {
            return;
        }
        let mut decisions = [NOTHING; MOST_RATES];
        decisions.iter_mut().zip(&answer.decisions).for_each(|(to, from)| *to = *from);
        let rates = answer.decisions.len() as u8;
        let denial = Denial { check, until, received: now, rates, decisions };
        let mut piece = self.piece(check);
        if piece.is_empty() {
            *piece = vec![[None; PLACES]; self.sets].into_boxed_slice();
        }
        let Some(set) = set(&mut piece, check) else { return };
        let own = set.iter().position(|place| place.is_some_and(|denial| denial.check == check));
        let place = own.or_else(|| (0..PLACES).min_by_key(|&n| set[n].map_or(0, |denial| denial.until)));
        if let Some(place) = place {
            set[place] = Some(denial);
        }
    }

    /// How many were denied without asking.
    pub(super) fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    fn piece(&self, check: u128) -> std::sync::MutexGuard<'_, Box<[Set]>> {
        self.pieces[(check >> 124) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn set(piece: &mut [Set], check: u128) -> Option<&mut Set> {
    let sets = piece.len().max(1);
    piece.get_mut(check as u64 as usize % sets)
}

impl std::fmt::Debug for DenialCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DenialCache").field("hits", &self.hits()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use sluice_limiter::{Algorithm, Burst, MaxWait, Period, Rate, Requests};

    use super::*;
    use crate::check::{Counter, KeyHash, LimitSpec, Records, decide};
    use crate::limiter::plan::check_id;
    use crate::{Consistency, LimitPlan, OnStoreFailure, PlannedCounter, Replicas};

    fn algorithms() -> impl Strategy<Value = Algorithm> {
        prop_oneof![
            Just(Algorithm::SLIDING_WINDOW),
            Just(Algorithm::FIXED_WINDOW),
            Just(Algorithm::TokenBucket { burst: Burst::new(3).unwrap() }),
            Just(Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(300).unwrap() }),
            Just(Algorithm::SlidingWindowLog { min_interval: 20, count_denied: false }),
        ]
    }

    fn plan(rates: &[(u64, u64, Algorithm)]) -> Arc<LimitPlan> {
        let rate = |&(requests, millis, algorithm)| {
            Rate::new(Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap(), algorithm)
                .unwrap()
        };
        let spec = Arc::new(LimitSpec::new("n/p/l", rates.iter().map(rate).collect()));
        Arc::new(LimitPlan::new(spec, Consistency::Strict, OnStoreFailure::Share, false, Replicas::alone()))
    }

    proptest! {
        /// Whatever the cache denies, the store would have denied: for any algorithms, keys, costs and delays.
        #[test]
        fn it_denies_only_what_the_store_would_deny(
            rates in proptest::collection::vec((0u64..6, 1u64..5, algorithms()), 1..3),
            steps in proptest::collection::vec((0u64..200_000, 0u64..3, 0u128..3, 0u64..3_000, 0u64..3_000), 1..300),
        ) {
            let rates: Vec<_> = rates.iter().enumerate().map(|(n, r)| (r.0, r.1 * 100 + n as u64 * 7, r.2)).collect();
            let plan = plan(&rates);
            let cache = DenialCache::new(8);
            let mut stored: std::collections::HashMap<u128, Records> = Default::default();
            let mut now = 5_000_000;
            for (step, cost, key, there, back) in steps {
                now += step;
                let key = KeyHash(key + 1);
                let id = check_id(&[PlannedCounter { limit: plan.clone(), key, cost }]);
                let remembered = cache.get(id, now, now);
                let sent = now;
                // The store's clock has an origin of its own.
                let at = now + there + 1_700_000_000_000_000;
                let counter = Counter { limit: plan.spec.clone(), key, cost };
                let mut records = vec![stored.get(&key.0).cloned().unwrap_or_default()];
                // A remembered answer would be given before any call got there.
                let early = if remembered.is_some() { at - there } else { at };
                let answer = decide(&[counter], &mut records, early);
                if let Some(remembered) = remembered {
                    prop_assert!(!answer.admitted, "denied by the cache, admitted by the store");
                    prop_assert!(remembered.decisions.iter().any(|decision| !decision.admitted));
                    continue;
                }
                stored.insert(key.0, records.remove(0));
                now += there + back;
                cache.put(id, &answer, sent, now);
            }
        }
    }

    #[test]
    fn a_denial_ends_with_the_first_retry_after_and_counts_down() {
        let cache = DenialCache::new(64);
        let denied = |retry| Decision {
            admitted: false,
            limit: 5,
            period: 1000,
            reset: 900_000,
            retry_after: Some(retry),
            ..NOTHING
        };
        let answer =
            CheckResponse { admitted: false, at: 1, decisions: [denied(700_000), denied(400_000)].into() };
        cache.put(1, &answer, 1_000_000, 1_010_000);
        let later = cache.get(1, 1_110_000, 42).unwrap();
        assert_eq!((later.at, later.decisions[0].retry_after), (42, Some(600_000)));
        assert_eq!(later.decisions[1].reset, 800_000);
        assert!(cache.get(1, 1_399_999, 0).is_some() && cache.get(1, 1_400_000, 0).is_none());
        assert!(cache.get(2, 1_100_000, 0).is_none());
        assert_eq!(cache.hits(), 2);
    }

    #[test]
    fn what_cannot_be_remembered_is_not() {
        let cache = DenialCache::new(64);
        let denied = Decision { admitted: false, retry_after: Some(1_000), ..NOTHING };
        let answer = |admitted, n: usize| CheckResponse {
            admitted,
            at: 1,
            decisions: std::iter::repeat_n(denied, n).collect(),
        };
        cache.put(1, &answer(true, 1), 0, 1);
        cache.put(2, &answer(false, 5), 0, 1);
        cache.put(3, &answer(false, 1), 0, 1_000);
        cache.put(4, &answer(false, 0), 0, 1);
        assert!((1..=4).all(|check| cache.get(check, 1, 0).is_none()));
    }

    #[test]
    fn a_flood_of_denials_keeps_the_table_as_large_as_it_is() {
        let cache = DenialCache::new(64);
        let denied = |retry| Decision { admitted: false, retry_after: Some(retry), ..NOTHING };
        for n in 0..10_000u64 {
            let answer = CheckResponse {
                admitted: false,
                at: 1,
                decisions: [denied(500_000 + n)].into_iter().collect(),
            };
            cache.put(u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835), &answer, 0, 1);
        }
        let held: usize =
            cache.pieces.iter().map(|piece| piece.lock().unwrap().iter().flatten().flatten().count()).sum();
        assert_eq!(held, 64);
    }
}
