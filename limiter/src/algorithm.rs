//! One door to all algorithms: roll a record to now, ask for room, charge, look ahead.

use crate::{Decision, MAX_COUNT, Rate, Record, fixed_window, sliding_window_counter};

/// How a rate counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// The current window plus the share of the previous one that still overlaps: [`sliding_window_counter`].
    SlidingWindowCounter,
    /// Windows aligned to the clock: [`fixed_window`].
    FixedWindow,
}

impl Algorithm {
    /// The default: two windows, the previous one by its share.
    pub const SLIDING_WINDOW: Self = Self::SlidingWindowCounter;
    /// Fixed windows aligned to the clock.
    pub const FIXED_WINDOW: Self = Self::FixedWindow;

    /// The number that stands for it in a record's tag; never reused.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::SlidingWindowCounter => 1,
            Self::FixedWindow => 2,
        }
    }

    /// The algorithm of a tag.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::SlidingWindowCounter),
            2 => Some(Self::FixedWindow),
            _ => None,
        }
    }

    /// How many slots before the newest its records keep.
    #[must_use]
    pub fn previous_slots(self) -> u8 {
        match self {
            Self::SlidingWindowCounter => 1,
            Self::FixedWindow => 0,
        }
    }
}

impl Rate {
    /// The record of this rate at `now`, and the instant that counts: never before the newest slot stored, so that
    /// time does not run backwards for a counter. A record of more than one slot ahead (a clock was wrong by more
    /// than a period) is rebased: all of its usage counts in the current slot, which denies for two periods at
    /// most and never forgets.
    #[must_use]
    pub fn roll(&self, stored: Option<Record>, now: u64) -> (Record, u64) {
        let tag = self.tag();
        let width = tag.slot_millis();
        let mut fresh = Record::empty(tag, now);
        let Some(stored) = stored.filter(|record| record.tag == tag) else { return (fresh, now) };
        if stored.slot <= fresh.slot {
            match fresh.slot - stored.slot {
                0 => return (stored, now),
                1 if tag.previous_slots() > 0 => fresh.previous = stored.current,
                _ => {}
            }
            (fresh, now)
        } else if stored.slot == fresh.slot + 1 {
            (stored, stored.slot * width)
        } else {
            fresh.current = (stored.current + stored.previous).min(MAX_COUNT);
            (fresh, now)
        }
    }

    /// How much the rolled record has used at `now`, in requests.
    #[must_use]
    pub fn used(&self, record: &Record, now: u64) -> u64 {
        match self.algorithm {
            Algorithm::SlidingWindowCounter => sliding_window_counter::used(record, now),
            Algorithm::FixedWindow => fixed_window::used(record),
        }
    }

    /// Whether the rolled record has room for `cost` more. A cost of 0 is a peek: it needs one left.
    #[must_use]
    pub fn has_room(&self, record: &Record, now: u64, cost: u64) -> bool {
        self.used(record, now).saturating_add(cost.max(1)) <= self.requests.get()
    }

    /// The rolled record after `cost` was admitted. Counts saturate at [`MAX_COUNT`].
    #[must_use]
    pub fn charge(&self, mut record: Record, cost: u64) -> Record {
        record.current = record.current.saturating_add(cost).min(MAX_COUNT);
        record
    }

    /// The answer of this rate about a check of `cost`. `record` and `now` come from [`Rate::roll`], with the cost
    /// already charged if the whole check was admitted; `has_room` is this rate's own answer before that.
    #[must_use]
    pub fn decision(&self, record: &Record, now: u64, cost: u64, has_room: bool) -> Decision {
        let limit = self.requests.get();
        Decision {
            admitted: has_room,
            limit,
            period: self.period.millis(),
            remaining: limit.saturating_sub(self.used(record, now)),
            reset: match self.algorithm {
                Algorithm::SlidingWindowCounter => sliding_window_counter::reset(record, now),
                Algorithm::FixedWindow => fixed_window::reset(record, now),
            },
            retry_after: if has_room || cost.max(1) > limit {
                None
            } else {
                let spare = limit - cost.max(1);
                Some(match self.algorithm {
                    Algorithm::SlidingWindowCounter => {
                        sliding_window_counter::retry_after(record, now, spare)
                    }
                    Algorithm::FixedWindow => fixed_window::reset(record, now),
                })
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_PERIOD_MS, Period, Requests};
    use proptest::prelude::*;

    fn any_rate() -> impl Strategy<Value = Rate> {
        let requests = prop_oneof![0u64..20, 0..=MAX_COUNT, Just(MAX_COUNT)];
        let period = prop_oneof![1u64..50, 1..=MAX_PERIOD_MS, Just(60_000), Just(MAX_PERIOD_MS)];
        (requests, period, any::<bool>()).prop_map(|(requests, period, fixed)| Rate {
            requests: Requests::new(requests).unwrap(),
            period: Period::from_millis(period).unwrap(),
            algorithm: if fixed { Algorithm::FixedWindow } else { Algorithm::SlidingWindowCounter },
        })
    }

    fn check(rate: &Rate, stored: Option<Record>, now: u64, cost: u64) -> (Record, Decision) {
        let (record, at) = rate.roll(stored, now);
        let room = rate.has_room(&record, at, cost);
        let record = if room { rate.charge(record, cost) } else { record };
        (record, rate.decision(&record, at, cost, room))
    }

    proptest! {
        /// Waiting exactly retry-after admits; one millisecond less does not.
        #[test]
        fn retry_after_is_exact(
            rate in any_rate(), now in 1u64 << 40..1 << 41, current in 0..=MAX_COUNT, previous in 0..=MAX_COUNT, cost in 0u64..30, small: bool,
        ) {
            let (current, previous) = if small { (current % 40, previous % 40) } else { (current, previous) };
            let previous = if rate.algorithm == Algorithm::FixedWindow { 0 } else { previous };
            let stored = Record { current, previous, ..Record::empty(rate.tag(), now) };
            let (record, decision) = check(&rate, Some(stored), now, cost);
            if let Some(wait) = decision.retry_after {
                prop_assert!(check(&rate, Some(record), now + wait, cost).1.admitted);
                prop_assert!(wait >= 1 && !check(&rate, Some(record), now + wait - 1, cost).1.admitted);
            } else {
                prop_assert!(decision.admitted || cost.max(1) > rate.requests.get());
            }
            let (rolled, at) = rate.roll(Some(record), now + decision.reset);
            prop_assert_eq!(rate.used(&rolled, at), 0);
        }

        /// In every aligned window no more than N pass, whatever the instants.
        #[test]
        fn an_aligned_window_admits_no_more_than_its_number(
            requests in 0u64..50, period in 1u64..5_000, fixed: bool, steps in proptest::collection::vec((0u64..900, 1u64..4), 1..200),
        ) {
            let rate = Rate {
                requests: Requests::new(requests).unwrap(),
                period: Period::from_millis(period).unwrap(),
                algorithm: if fixed { Algorithm::FixedWindow } else { Algorithm::SlidingWindowCounter },
            };
            let (mut now, mut stored) = (1u64 << 40, None);
            let mut admitted = std::collections::BTreeMap::<u64, u64>::new();
            for (step, cost) in steps {
                now += step;
                let (record, decision) = check(&rate, stored, now, cost);
                if decision.admitted {
                    *admitted.entry(now / period).or_default() += cost;
                }
                stored = Some(record);
            }
            prop_assert!(admitted.values().all(|&n| n <= requests));
        }

        /// A clock that steps back never gives quota back.
        #[test]
        fn time_never_runs_backwards_for_a_counter(
            requests in 1u64..50, period in 2u64..5_000, back in 0u64..20_000, fixed: bool,
        ) {
            let rate = Rate {
                requests: Requests::new(requests).unwrap(),
                period: Period::from_millis(period).unwrap(),
                algorithm: if fixed { Algorithm::FixedWindow } else { Algorithm::SlidingWindowCounter },
            };
            let now = 1u64 << 40;
            let full = Record { current: requests, ..Record::empty(rate.tag(), now) };
            prop_assert!(!check(&rate, Some(full), now - back, 1).1.admitted);
        }
    }

    #[test]
    fn a_record_of_another_period_is_not_this_rates() {
        let rate = |period| Rate {
            requests: Requests::new(1).unwrap(),
            period: Period::from_millis(period).unwrap(),
            algorithm: Algorithm::FixedWindow,
        };
        let (record, _) = check(&rate(1000), None, 5_000, 1);
        assert!(check(&rate(2000), Some(record), 5_000, 1).1.admitted);
        assert!(!check(&rate(1000), Some(record), 5_000, 1).1.admitted);
    }
}
