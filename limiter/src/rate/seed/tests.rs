use proptest::prelude::*;

use crate::testing::{rate, sliding};
use crate::{Algorithm, Alignment, Bound, Rate, Record};

const START: u64 = 1_700_000_000_000_000;
const MINUTE: u64 = 60_000;

fn algorithms() -> impl Strategy<Value = Algorithm> {
    prop_oneof![
        Just(Algorithm::FixedWindow(Alignment::Clock)),
        prop_oneof![Just(1u64), Just(6), Just(60)].prop_map(|windows| sliding(windows, Bound::Estimate)),
    ]
}

fn periods() -> impl Strategy<Value = u64> {
    prop_oneof![Just(MINUTE), Just(10 * MINUTE), Just(60 * MINUTE), (1u64..1_000).prop_map(|n| n * 420)]
}

/// Returns the record of a rate that has counted a request at each of these instants.
fn counted(rate: &Rate, instants: &[u64], now: u64) -> Record {
    let mut record = None;
    for &at in instants {
        let (rolled, at) = rate.roll(record, at);
        record = Some(rate.charge(rolled, at, 1));
    }
    rate.roll(record, now).0
}

proptest! {
    #[test]
    fn a_seeded_record_never_holds_more_than_the_rate_would_have_counted(
        (one, other, target) in (algorithms(), algorithms(), algorithms()),
        lengths in (periods(), periods(), periods()),
        steps in proptest::collection::vec(0u64..400_000_000, 0..60), rest in 0u64..100_000_000,
    ) {
        let (one, other) = (rate(1 << 30, lengths.0, one), rate(1 << 30, lengths.1, other));
        let target = rate(1 << 30, lengths.2, target);
        let mut now = START;
        let instants: Vec<u64> = steps.iter().map(|step| { now += step; now }).collect();
        let now = now + rest;
        let others = [counted(&one, &instants, now), counted(&other, &instants, now)];
        let truth = counted(&target, &instants, now);
        if let Some(seeded) = target.seeded(&others, now) {
            prop_assert_eq!((seeded.window, seeded.tail.len()), (truth.window, truth.tail.len()));
            prop_assert!(seeded.current <= truth.current && seeded.previous <= truth.previous);
            prop_assert!(seeded.tail.iter().zip(&truth.tail).all(|(seeded, truth)| seeded <= truth));
            prop_assert_eq!(target.roll(Some(seeded.clone()), now), (seeded, now));
        }
    }
}

#[test]
fn minutes_prove_an_hour_but_an_hour_proves_no_minute() {
    let minutes = rate(1000, 60 * MINUTE, sliding(60, Bound::Estimate));
    let hour = rate(1000, 60 * MINUTE, sliding(1, Bound::Estimate));
    let minute = rate(10, MINUTE, Algorithm::FixedWindow(Alignment::Clock));
    // One request a minute from the beginning of an hour.
    let begin = START / (3600 * 1_000_000) * (3600 * 1_000_000);
    let instants: Vec<u64> = (0..30).map(|n| begin + n * MINUTE * 1000).collect();
    let now = begin + 29 * MINUTE * 1000 + 1;
    let known = counted(&minutes, &instants, now);
    let seeded = hour.seeded(std::slice::from_ref(&known), now).unwrap();
    assert_eq!((seeded.current, seeded.previous), (30, 0));
    assert_eq!(minute.seeded(std::slice::from_ref(&known), now).unwrap().current, 1);
    assert_eq!(minute.seeded(&[seeded], now), None);
    assert_eq!(hour.seeded(&[Record { window: known.window + 1, ..known }], now), None, "ahead");
}

#[test]
fn algorithms_without_clock_windows_prove_nothing() {
    let hour = rate(1000, 60 * MINUTE, sliding(1, Bound::Estimate));
    for algorithm in [
        Algorithm::FixedWindow(Alignment::FirstRequest),
        Algorithm::FixedWindow(Alignment::Spread),
        Algorithm::SlidingWindowLog { min_interval: 0 },
    ] {
        let other = rate(1000, MINUTE, algorithm);
        let known = counted(&other, &[START], START);
        assert_eq!(hour.seeded(std::slice::from_ref(&known), START), None);
        assert_eq!(other.seeded(&[counted(&hour, &[START], START)], START), None);
    }
}
