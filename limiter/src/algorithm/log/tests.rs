use crate::Algorithm;
use crate::testing::{Random, check, most_in_any_period, rate, worst_case_in_units};

/// A request is admitted if and only if the trailing period has room, in whole milliseconds. The test keeps
/// every request that was ever recorded.
#[test]
fn a_log_is_exact_in_every_trailing_period() {
    let mut random = Random(31);
    let (mut yes, mut no) = (0, 0);
    for _ in 0..400 {
        let (requests, period) = (1 + random.below(30), 1 + random.below(2000));
        let min_interval = if random.below(2) == 0 { 0 } else { random.below(period + 1) };
        let count_denied = random.below(3) == 0;
        let log = rate(requests, period, Algorithm::SlidingWindowLog { min_interval });
        let rate = if count_denied { log.counting_denied().unwrap() } else { log };
        let (mut now, mut stored) = (10_000_000_000, None);
        let (mut recorded, mut admitted) = (Vec::<(u64, u64)>::new(), vec![]);
        for _ in 0..300 {
            now += match random.below(5) {
                0 => 0,
                1 => period * 1000 - 1 + random.below(3),
                2 if min_interval > 0 => min_interval * 1000 - 1 + random.below(3),
                _ => random.below(period * 100),
            };
            let (millis, cost) = (now / 1000, 1 + random.below(3));
            let inside: u64 =
                recorded.iter().filter(|(at, _)| at + period > millis).map(|(_, cost)| cost).sum();
            let quiet = recorded.last().is_none_or(|(at, _)| at + min_interval <= millis);
            let (record, decision) = check(&rate, stored, now, cost);
            stored = Some(record);
            let expected = inside + cost <= requests && quiet;
            assert_eq!(decision.admitted, expected, "{inside} at {now} of {rate:?}");
            if decision.admitted {
                admitted.push((millis, cost));
            }
            if decision.admitted || count_denied {
                recorded.push((millis, cost));
            }
            *if decision.admitted { &mut yes } else { &mut no } += 1;
        }
        assert!(most_in_any_period(&admitted, period) <= requests);
    }
    assert!(yes > 10_000 && no > 10_000, "{yes} admitted, {no} denied");
}

#[test]
fn no_adversary_exceeds_the_number_of_a_log() {
    let log = Algorithm::SlidingWindowLog { min_interval: 0 };
    for requests in [1, 10, 1000] {
        assert_eq!(worst_case_in_units(&rate(requests, 60_000, log), 3000, 5, 1000), requests);
    }
}

const START: u64 = 1_126_000_020_000_000;

#[test]
fn a_minimum_interval_keeps_requests_apart() {
    let apart = rate(10, 60_000, Algorithm::SlidingWindowLog { min_interval: 500 });
    let (record, first) = check(&apart, None, START, 1);
    let (record, second) = check(&apart, Some(record), START + 499_999, 1);
    assert!(first.admitted && !second.admitted);
    let wait = second.retry_after.unwrap();
    assert!(check(&apart, Some(record), START + 499_999 + wait, 1).1.admitted);
}

#[test]
fn a_client_that_keeps_sending_stays_denied_if_denials_count() {
    let quiet = rate(1, 1000, Algorithm::SlidingWindowLog { min_interval: 0 }).counting_denied().unwrap();
    let mut stored = None;
    let admitted = (0..50u64).filter(|n| {
        let (record, decision) = check(&quiet, stored.take(), START + n * 900_000, 1);
        stored = Some(record);
        decision.admitted
    });
    assert_eq!(admitted.count(), 1);
    assert!(check(&quiet, stored, START + 49 * 900_000 + 1_000_000, 1).1.admitted);
}
