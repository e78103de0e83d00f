//! What a record can begin with. When a limit's period is edited, or its number of sub-windows, nothing has been counted yet
//! in the way that it counts from now on. But the records from before have counted the same requests, and where their
//! windows lie within those of the new record, that is proof of what it would say at least. Sliding-window counters and
//! fixed windows by the clock prove things of each other; other algorithms know of no windows.

use crate::algorithm::Kind;
use crate::record::Counts;
use crate::{MAX_COUNT, Rate, Record, Tag, sliding_window_counter};

/// Whether records of this tag count by windows of the clock.
fn has_slots(tag: Tag) -> bool {
    matches!(tag.kind(), Some(Kind::Sliding | Kind::Clock))
}

impl Rate {
    /// A record of this rate with what the others prove at `now` (microseconds), if that is anything: of each window the
    /// largest count that one of them shows. Several show the same requests.
    #[must_use]
    pub fn seeded(&self, others: &[Record], now: u64) -> Option<Record> {
        let tag = self.tag();
        if !has_slots(tag) {
            return None;
        }
        let now = now / 1000;
        let (length, windows) = (tag.window_millis(), tag.previous_windows());
        let newest = now / length;
        let mut proven = [0; 61];
        for other in others.iter().filter(|other| has_slots(other.tag) && other.tag != tag) {
            // One that is far ahead proves what it will once it is rebased; one that is a little ahead, or of the first
            // instants there are, nothing.
            let (own, previous) = (other.tag.window_millis(), other.tag.previous_windows());
            let rolled =
                (other.window > now / own).then(|| sliding_window_counter::roll(other.clone(), now * 1000).0);
            let other = rolled.as_ref().unwrap_or(other);
            if other.window > now / own || other.window < previous {
                continue;
            }
            let mut sums = [0u64; 61];
            for n in 0..=previous {
                let count = Counts(other).get(n).min(MAX_COUNT);
                let begin = (other.window - n) * own;
                let Some(at) = newest.checked_sub(begin / length) else { continue };
                // The newest window goes on, but nothing has been counted in what is still to come.
                let within = at == 0 || begin + own <= (newest - at + 1) * length;
                if at <= windows && within {
                    sums[at as usize] += count;
                }
            }
            proven.iter_mut().zip(sums).for_each(|(most, sum)| *most = sum.min(MAX_COUNT).max(*most));
        }
        if proven.iter().all(|&count| count == 0) {
            return None;
        }
        let mut record = Record::empty(tag, now * 1000);
        (record.current, record.previous) = (proven[0], proven[1]);
        record.tail.iter_mut().zip(&proven[2..]).for_each(|(to, &count)| *to = count);
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::testing::{rate, sliding};
    use crate::{Algorithm, Alignment, Bound, Rate, Record};

    const START: u64 = 1_700_000_000_000_000;
    const MINUTE: u64 = 60_000;

    fn kinds() -> impl Strategy<Value = Algorithm> {
        prop_oneof![
            Just(Algorithm::FixedWindow(Alignment::Clock)),
            prop_oneof![Just(1u64), Just(6), Just(60)].prop_map(|windows| sliding(windows, Bound::Estimate)),
        ]
    }

    fn periods() -> impl Strategy<Value = u64> {
        prop_oneof![Just(MINUTE), Just(10 * MINUTE), Just(60 * MINUTE), (1u64..1_000).prop_map(|n| n * 420)]
    }

    /// What a rate has counted of requests at these instants.
    fn counted(rate: &Rate, instants: &[u64], now: u64) -> Record {
        let mut record = None;
        for &at in instants {
            let (rolled, at) = rate.roll(record, at);
            record = Some(rate.charge(rolled, at, 1));
        }
        rate.roll(record, now).0
    }

    proptest! {
        /// Never more than what the rate itself would have counted, had it been there from the beginning.
        #[test]
        fn nothing_is_proven_that_was_not(
            (one, other, target) in (kinds(), kinds(), kinds()), lengths in (periods(), periods(), periods()),
            steps in proptest::collection::vec(0u64..400_000_000, 0..60), rest in 0u64..100_000_000,
        ) {
            let (one, other) = (rate(1 << 30, lengths.0, one), rate(1 << 30, lengths.1, other));
            let target = rate(1 << 30, lengths.2, target);
            let mut now = START;
            let instants: Vec<u64> = steps.iter().map(|step| { now += step; now }).collect();
            let now = now + rest;
            let others = [counted(&one, &instants, now), counted(&other, &instants, now)];
            let truth = counted(&target, &instants, now);
            if let Some(begun) = target.seeded(&others, now) {
                prop_assert_eq!((begun.window, begun.tail.len()), (truth.window, truth.tail.len()));
                prop_assert!(begun.current <= truth.current && begun.previous <= truth.previous);
                prop_assert!(begun.tail.iter().zip(&truth.tail).all(|(begun, truth)| begun <= truth));
                prop_assert_eq!(target.roll(Some(begun.clone()), now), (begun, now));
            }
        }
    }

    #[test]
    fn minutes_prove_an_hour_and_an_hour_proves_no_minute() {
        let minutes = rate(1000, 60 * MINUTE, sliding(60, Bound::Estimate));
        let hour = rate(1000, 60 * MINUTE, sliding(1, Bound::Estimate));
        let minute = rate(10, MINUTE, Algorithm::FixedWindow(Alignment::Clock));
        // The first minute of an hour; then one request a minute.
        let begin = START / (3600 * 1_000_000) * (3600 * 1_000_000);
        let instants: Vec<u64> = (0..30).map(|n| begin + n * MINUTE * 1000).collect();
        let now = begin + 29 * MINUTE * 1000 + 1;
        let known = counted(&minutes, &instants, now);
        let begun = hour.seeded(std::slice::from_ref(&known), now).unwrap();
        assert_eq!((begun.current, begun.previous), (30, 0));
        assert_eq!(minute.seeded(std::slice::from_ref(&known), now).unwrap().current, 1);
        assert_eq!(minute.seeded(&[begun], now), None);
        assert_eq!(hour.seeded(&[Record { window: known.window + 1, ..known }], now), None, "ahead");
    }

    #[test]
    fn what_counts_by_no_slots_proves_nothing() {
        let hour = rate(1000, 60 * MINUTE, sliding(1, Bound::Estimate));
        for algorithm in [
            Algorithm::FixedWindow(Alignment::FirstRequest),
            Algorithm::FixedWindow(Alignment::Spread),
            Algorithm::SlidingWindowLog { min_interval: 0, count_denied: false },
        ] {
            let other = rate(1000, MINUTE, algorithm);
            let known = counted(&other, &[START], START);
            assert_eq!(hour.seeded(std::slice::from_ref(&known), START), None);
            assert_eq!(other.seeded(&[counted(&hour, &[START], START)], START), None);
        }
    }
}
