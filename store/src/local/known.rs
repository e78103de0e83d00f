//! How counters stood when the store was last heard: a table of fixed size, from which local counting begins when the
//! store fails. What has fallen out of it begins with nothing used: then a share is the whole bound.

use std::sync::{Mutex, PoisonError};

use sluice_limiter::{Algorithm, Decision, Rate};

use crate::lease::used;

/// Further rates of a limit begin with nothing used.
pub(crate) const RATES: usize = 4;

const PLACES: usize = 4;
const LOCKS: usize = 16;

/// How a counter stood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stood {
    /// When, by the store's clock, in microseconds.
    pub(crate) at: u64,
    /// What was used of each rate.
    pub(crate) used: [u64; RATES],
}

type Set = [Option<(u128, Stood)>; PLACES];

/// See the module.
pub(crate) struct Known {
    /// Each is made when it is first needed.
    pieces: [Mutex<Box<[Set]>>; LOCKS],
    /// Of a piece.
    sets: usize,
}

impl Known {
    /// Room for about so many counters, 80 bytes each.
    pub(crate) fn new(counters: usize) -> Self {
        let sets = counters.div_ceil(PLACES * LOCKS).max(1);
        Self { pieces: std::array::from_fn(|_| Mutex::default()), sets }
    }

    /// The store said this at `at` of its clock.
    pub(crate) fn heard(&self, id: u128, rates: &[Rate], decisions: &[Decision], at: u64) {
        let mut stood = Stood { at, used: [0; RATES] };
        for ((to, rate), decision) in stood.used.iter_mut().zip(rates).zip(decisions) {
            *to = used(rate, decision);
        }
        let mut piece = self.pieces[(id >> 124) as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if piece.is_empty() {
            *piece = vec![[None; PLACES]; self.sets].into_boxed_slice();
        }
        let sets = piece.len().max(1);
        let Some(set) = piece.get_mut(id as u64 as usize % sets) else { return };
        let own = set.iter().position(|place| place.is_some_and(|(known, _)| known == id));
        let place = own.or_else(|| (0..PLACES).min_by_key(|&n| set[n].map_or(0, |(_, stood)| stood.at)));
        if let Some(place) = place {
            set[place] = Some((id, stood));
        }
    }

    pub(crate) fn get(&self, id: u128) -> Option<Stood> {
        let piece = self.pieces[(id >> 124) as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let set = piece.get(id as u64 as usize % piece.len().max(1))?;
        set.iter().flatten().find(|(known, _)| *known == id).map(|&(_, stood)| stood)
    }
}

/// The least that must still be used of what was used at `at`, unless the store has lost it: nothing can come back
/// faster than this.
pub(crate) fn least_used(rate: &Rate, phase: u64, used: u64, at: u64, now: u64) -> u64 {
    let passed = now.saturating_sub(at);
    let period = rate.period.micros();
    match rate.algorithm {
        Algorithm::FixedWindow(sluice_limiter::Alignment::FirstRequest) => 0,
        Algorithm::FixedWindow(_) if (at + phase) / period == (now + phase) / period => used,
        Algorithm::FixedWindow(_) => 0,
        // A whole number in a slot was the most that can slide out within its length.
        Algorithm::SlidingWindowCounter { .. } => {
            falling(rate, used, passed, rate.tag().window_millis() * 1000)
        }
        Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } => falling(rate, used, passed, period),
        _ => 0,
    }
}

fn falling(rate: &Rate, used: u64, passed: u64, time: u64) -> u64 {
    let back = u128::from(rate.requests.get()) * u128::from(passed) / u128::from(time.max(1));
    used.saturating_sub(u64::try_from(back).unwrap_or(u64::MAX).saturating_add(1))
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Known").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use sluice_limiter::{Alignment, Burst, Period, Requests};

    use super::*;
    use crate::check::{Counter, KeyHash, LimitSpec, Records, decide};

    const START: u64 = 1_700_000_000_000_000;

    proptest! {
        /// The bound never says more than is used, whatever was admitted before and however long ago.
        #[test]
        fn the_least_used_is_no_more_than_what_is(
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
            let rate = Rate::new(Requests::new(requests).unwrap(), Period::from_millis(period).unwrap(), algorithm).unwrap();
            let limit = Arc::new(LimitSpec::new("n/p/l", vec![rate]));
            let mut stored = vec![Records::new()];
            let (mut now, mut stood) = (START, 0);
            for (step, cost) in steps {
                now += step;
                let answer = decide(&[Counter { limit: limit.clone(), key: KeyHash(key), cost }], &mut stored, now);
                stood = used(&rate, &answer.decisions[0]);
            }
            let least = least_used(&rate, rate.phase(key), stood, now, now + later);
            let peek = decide(&[Counter { limit, key: KeyHash(key), cost: 0 }], &mut stored, now + later);
            let truly = used(&rate, &peek.decisions[0]);
            prop_assert!(least <= truly, "{least} of {truly}");
        }
    }

    #[test]
    fn the_last_word_counts_and_the_oldest_gives_way() {
        let rate = Rate::new(
            Requests::new(10).unwrap(),
            Period::from_millis(1000).unwrap(),
            Algorithm::SLIDING_WINDOW,
        );
        let rate = rate.unwrap();
        let decision = |remaining| Decision {
            admitted: true,
            limit: 10,
            period: 1000,
            remaining,
            reset: 0,
            retry_after: None,
            delay: 0,
        };
        let known = Known::new(64);
        known.heard(1, &[rate], &[decision(7)], 5);
        known.heard(1, &[rate], &[decision(4)], 6);
        assert_eq!(known.get(1), Some(Stood { at: 6, used: [6, 0, 0, 0] }));
        for id in 2..6 {
            known.heard(id, &[rate], &[decision(0)], 7);
        }
        assert_eq!(known.get(1), None);
        assert_eq!(known.get(5).map(|stood| stood.used[0]), Some(10));
    }
}
