use super::*;
use crate::testing::{Random, check, rate, sliding, worst_case};
use crate::{Algorithm, Rate};

/// The beginning of an hour, in microseconds.
const START: u64 = 1_700_000_000_000_000 / 3_600_000_000 * 3_600_000_000;

/// Returns the bound that the documentation of the module derives.
fn bound(rate: &Rate) -> u64 {
    let (requests, length) = (rate.requests.get(), rate.tag().window_millis());
    requests + requests * (length - 1) / length
}

#[test]
fn an_adversary_gets_1999_of_1000_in_a_trailing_period_of_two_windows() {
    let rate = rate(1000, 60_000, Algorithm::SLIDING_WINDOW);
    assert_eq!((worst_case(&rate, 20_000, 1), bound(&rate)), (1999, 1999));
}

#[test]
fn sub_windows_do_not_help_against_an_adversary() {
    for (windows, expected) in [(2, 1999), (10, 1999), (60, 1999)] {
        let rate = rate(1000, 3_600_000, sliding(windows, Bound::Estimate));
        let found = worst_case(&rate, 40_000, windows);
        println!("estimate, m = {windows}: {found} of 1000 in a trailing period");
        assert_eq!((found, bound(&rate)), (expected, expected));
    }
    // In a window shorter than N milliseconds, one millisecond of the oldest window counts more than one
    // request.
    for (windows, length, expected) in [(1, 100, 1990), (10, 50, 1980), (60, 1, 1000), (60, 2, 1500)] {
        let rate = rate(1000, windows * length, sliding(windows, Bound::Estimate));
        assert_eq!((worst_case(&rate, 40_000, windows), bound(&rate)), (expected, expected));
    }
}

#[test]
fn no_adversary_exceeds_the_bound_of_the_estimate() {
    let mut random = Random(7);
    for windows in 1..=60 {
        let length = 1 + random.below(2000);
        let rate = rate(1 + random.below(3000), windows * length, sliding(windows, Bound::Estimate));
        let found = worst_case(&rate, 1500, windows);
        assert!(found <= bound(&rate), "{found} of {rate:?}");
    }
}

/// With the estimate, the same search exceeds the number.
#[test]
fn no_adversary_exceeds_the_number_when_it_is_guaranteed() {
    for windows in 1..=60 {
        let worst = |bound| worst_case(&rate(1000, windows * 1000, sliding(windows, bound)), 1500, windows);
        assert_eq!(worst(Bound::Guaranteed), 1000, "m = {windows}");
        assert!(worst(Bound::Estimate) > 1300, "m = {windows}");
    }
}

/// A client that sends each millisecond gets m / (m + 1) of the rate, averaged over whole rounds.
#[test]
fn a_guaranteed_counter_admits_its_share_of_the_rate() {
    for windows in [1, 2, 4, 20] {
        let rate = rate(60, 20 * 6 * windows, sliding(windows, Bound::Guaranteed));
        let (rounds, mut stored, mut total) = (50, None, 0);
        for millis in 0..rounds * (windows + 1) * 120 {
            let (record, at) = rate.roll(stored.take(), millis * 1000);
            let room = rate.requests.get() - rate.used(&record, at);
            total += room;
            stored = Some(rate.charge(record, at, room));
        }
        // A round is m + 1 windows, in which N requests pass.
        assert_eq!(total, rounds * 60, "m = {windows}");
    }
}

#[test]
fn a_client_that_keeps_sending_too_fast_stays_denied_if_denials_count() {
    let rate = rate(10, 1_000, Algorithm::SLIDING_WINDOW);
    let admitted = |rate: Rate| {
        let mut stored = None;
        let passes = |n: &u64| {
            let (record, decision) = check(&rate, stored.take(), START + n * 50_000, 1);
            stored = Some(record);
            decision.admitted
        };
        (0..200).filter(passes).count()
    };
    // 20 a second for 10 seconds.
    assert!((85..=110).contains(&admitted(rate)), "{}", admitted(rate));
    assert_eq!(admitted(rate.counting_denied().unwrap()), 10, "none after the first window");
}

#[test]
fn a_denied_client_is_admitted_after_exactly_the_time_that_it_is_told() {
    let rate = rate(5, 1_000, sliding(4, Bound::Estimate)).counting_denied().unwrap();
    let mut stored = None;
    let mut last = None;
    for _ in 0..20 {
        let (record, decision) = check(&rate, stored.take(), START, 1);
        (stored, last) = (Some(record), decision.retry_after);
    }
    let wait = last.unwrap();
    assert!(!check(&rate, stored.clone(), START + wait - 1, 1).1.admitted);
    assert!(check(&rate, stored, START + wait, 1).1.admitted);
}
