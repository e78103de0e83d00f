use super::*;
use crate::Algorithm;
use crate::testing::{Random, check, most_in_any_period, rate, worst_case};

/// The beginning of an hour, in microseconds.
const START: u64 = 1_700_000_000_000_000 / 3_600_000_000 * 3_600_000_000;

#[test]
fn an_adversary_gets_twice_the_number_across_an_edge_and_no_more() {
    for alignment in [Alignment::Clock, Alignment::Spread, Alignment::FirstRequest] {
        let rate = rate(1000, 60_000, Algorithm::FixedWindow(alignment));
        assert_eq!(worst_case(&rate, 20_000, 3), 2000, "{alignment:?}");
    }
}

/// A window of `FirstRequest` ends one period after the first request in it.
#[test]
fn a_window_from_the_first_request_holds_no_more_than_its_number() {
    let mut random = Random(11);
    for _ in 0..300 {
        let (requests, period) = (1 + random.below(20), 1 + random.below(3000));
        let rate = rate(requests, period, Algorithm::FixedWindow(Alignment::FirstRequest));
        let (mut now, mut stored, mut opened, mut used) = (10_000_000_000, None, None::<u64>, 0);
        for _ in 0..200 {
            now += match random.below(4) {
                0 => 0,
                1 => period * 1000 - 1 + random.below(3),
                _ => random.below(period * 300),
            };
            let cost = 1 + random.below(3);
            // Windows use whole milliseconds.
            if opened.is_none_or(|opened| now / 1000 - opened >= period) {
                (opened, used) = (None, 0);
            }
            let (record, decision) = check(&rate, stored, now, cost);
            stored = Some(record);
            assert_eq!(decision.admitted, used + cost <= requests, "{used} of {rate:?} at {now}");
            if decision.admitted {
                opened = opened.or(Some(now / 1000));
                used += cost;
            }
        }
    }
}

/// Each key has windows of the full period. Over a thousand keys their beginnings are spread evenly.
#[test]
fn spread_windows_begin_at_all_times_and_each_holds_its_number() {
    let period = 60_000;
    let rate = rate(7, period, Algorithm::FixedWindow(Alignment::Spread));
    let mut random = Random(5);
    let mut begins = [0; 10];
    for _ in 0..1000 {
        let key = u128::from(random.below(1 << 53)) << 64 << 11;
        let (begin, mut stored, mut admitted) = (600_000_000_000, None, vec![]);
        for step in 0..4 * 60 {
            let now = begin + step * 1_000_000;
            for _ in 0..9 {
                let (record, decision) = check(&rate, stored, now + rate.phase(key), 1);
                stored = Some(record);
                admitted.extend(decision.admitted.then_some((now, 1)));
            }
        }
        // Seven at the beginning and seven at each edge, where the edges are a period apart.
        let edges: Vec<u64> = admitted.iter().step_by(7).map(|&(now, _)| now).collect();
        assert!(edges.windows(2).skip(1).all(|edge| edge[1] - edge[0] == period * 1000), "{edges:?}");
        assert!(most_in_any_period(&admitted, period * 1000) <= 14);
        begins[((edges[1] - begin) / 6_000_001) as usize] += 1;
    }
    assert!(begins.iter().all(|n| (60..140).contains(n)), "{begins:?}");
}

#[test]
fn denied_requests_that_count_stay_in_their_window() {
    for alignment in [Alignment::Clock, Alignment::FirstRequest, Alignment::Spread] {
        let rate = rate(2, 1_000, Algorithm::FixedWindow(alignment)).counting_denied().unwrap();
        let mut stored = None;
        let mut check = |now| {
            let (record, decision) = check(&rate, stored.take(), now, 1);
            let used = rate.used(&record, now);
            stored = Some(record);
            (decision.admitted, used, decision.retry_after)
        };
        let admitted: Vec<_> = (0..5).map(|_| check(START).0).collect();
        assert_eq!(admitted, [true, true, false, false, false]);
        let (is_admitted, used, wait) = check(START);
        assert_eq!((is_admitted, used), (false, 6));
        assert_eq!(check(START + wait.unwrap()).1, 1, "the next window is free");
    }
}
