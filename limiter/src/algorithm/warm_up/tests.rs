use super::published::Published;
use super::*;
use crate::testing::{Random, check, rate};
use crate::{Algorithm, Rate};

const START: u64 = 1_126_000_020_000_000;

fn limiter(requests: u64, period: u64, warm_up: u64, factor: u64) -> Rate {
    rate(requests, period, Algorithm::WarmUp(WarmUp::new(warm_up, factor).unwrap()))
}

/// Checks each cost as soon as the one before was admitted, as Guava's `acquire` does. Returns the wait of
/// each.
fn acquire(rate: &Rate, stored: &mut Option<Record>, now: &mut u64, costs: &[u64]) -> Vec<u64> {
    let mut waits = vec![];
    for &cost in costs {
        let (mut record, decision) = check(rate, stored.take(), *now, cost);
        let wait = decision.retry_after.unwrap_or(0);
        if wait > 0 {
            *now += wait;
            let again;
            (record, again) = check(rate, Some(record), *now, cost);
            assert!(again.admitted);
        }
        *stored = Some(record);
        waits.push(wait);
    }
    waits
}

fn hundredths(waits: &[u64]) -> Vec<u64> {
    waits.iter().map(|wait| (wait + 5000) / 10_000).collect()
}

/// From `testWarmUp` and `testWarmUpWithColdFactor` of Guava's `RateLimiterTest`.
#[test]
fn waits_match_the_sequences_in_guavas_own_tests() {
    for (per_second, factor, cold, warm, rest) in [
        (2, 3, [0, 138, 113, 88, 63, 50, 50, 50], [0, 50, 50, 50, 50, 50, 50, 50], 2_000_000),
        (5, 10, [0, 175, 126, 76, 30, 20, 20, 20], [0, 20, 20, 20, 20, 20, 20, 20], 1_000_000),
    ] {
        let rate = limiter(per_second, 1000, 4000, factor);
        let (mut stored, mut now, ones) = (None, START, [1; 8]);
        assert_eq!(hundredths(&acquire(&rate, &mut stored, &mut now, &ones)), cold);
        // Long enough to repay the last request and to get cold again.
        now += 1_000_000 / per_second + 4_000_000;
        assert_eq!(hundredths(&acquire(&rate, &mut stored, &mut now, &ones)), cold);
        // Long enough to repay the last request, but not to get cold.
        now += 1_000_000 / per_second + rest;
        assert_eq!(hundredths(&acquire(&rate, &mut stored, &mut now, &ones)), warm);
    }
}

/// From cold to the threshold takes the warm-up period, and from there to an empty store half of it: the
/// areas that define the curve. The size of the requests makes no difference.
#[test]
fn a_cold_start_takes_the_warm_up_period() {
    for (requests, period, warm_up, factor) in
        [(8, 4000, 4000, 3), (100, 1000, 60_000, 3), (1000, 60_000, 600_000, 9), (10, 1000, 3_600_000, 4)]
    {
        let rate = limiter(requests, period, warm_up, factor);
        let interval = rate.period.micros() / requests;
        let (threshold, expensive) =
            (warm_up * 1000 / 2 / interval, 2 * warm_up * 1000 / (interval * (1 + factor)));
        assert_eq!(2 * threshold * interval, warm_up * 1000, "whole permits");
        assert_eq!(expensive * interval * (1 + factor), 2 * warm_up * 1000, "whole permits");
        for (permits, expected) in [(expensive, warm_up * 1000), (expensive + threshold, warm_up * 1500)] {
            for step in [1, 4] {
                let (mut stored, mut now) = (None, START);
                let costs = vec![step; (permits / step) as usize];
                acquire(&rate, &mut stored, &mut now, &costs);
                let total = now + wait(&stored.unwrap(), now) - START;
                // Each request waits until a whole microsecond. The time by which it is late is stored, cold.
                let late = factor * costs.len() as u64;
                assert!((expected - 1..=expected + late).contains(&total), "{total} of {expected}");
            }
        }
    }
}

/// Over random schedules, both the time of the next request and the permits left match the published formulas
/// to a few units, starting each step from the stored state. Guava itself cuts three parts of each wait to
/// whole microseconds, and so is up to three microseconds earlier each time.
#[test]
fn each_wait_matches_the_published_formulas() {
    let (mut made, mut waited) = (0, 0);
    for seed in 1..=400 {
        let mut random = Random(seed);
        let (requests, period) = (1 + random.below(200), 1 + random.below(5000));
        let (warm_up, factor) = (1 + random.below(60_000), 2 + random.below(8));
        let rate = limiter(requests, period, warm_up, factor);
        let interval = rate.period.micros() as f64 / requests as f64;
        let (full, units) = ((warm_up * 1000) as f64, UNITS as f64);
        let published = |whole| Published::cold(interval, full, factor as f64, 0.0, whole);
        let (mut exact, mut guava) = (published(false), published(true));
        let (mut stored, mut now) = (None, START);
        for _ in 0..100 {
            now += match random.below(4) {
                0 => random.below(warm_up * 2000),
                1 => random.below(interval as u64 * 3 + 1),
                _ => 0,
            };
            let cost = 1 + random.below(requests.min(5));
            let sent = now;
            let wait = acquire(&rate, &mut stored, &mut now, &[cost])[0];
            let expected = exact.next_free.max((sent - START) as f64);
            let late = (now - START) as f64 - expected;
            assert!((0.0..=1.0).contains(&late), "at {now}, not {expected}, of {rate:?}");
            (guava.stored, guava.next_free) = (exact.stored, exact.next_free);
            exact.reserve(cost as f64, (now - START) as f64);
            guava.reserve(cost as f64, (now - START) as f64);
            let cut = exact.next_free - guava.next_free;
            assert!((-1e-3..3.0).contains(&cut), "Guava cuts {cut} of {rate:?}");
            // The record holds whole units.
            let record = stored.as_ref().unwrap();
            let free = (next_free(record) - START * UNITS) as f64 / units;
            assert!((exact.next_free - free).abs() < 0.01, "{free}, not {} of {rate:?}", exact.next_free);
            let permits = record.current as f64 / units * exact.maximum / full;
            assert!((exact.stored - permits) * full / exact.maximum < 0.01, "{permits} of {rate:?}");
            (exact.stored, exact.next_free) = (permits, free);
            made += 1;
            waited += u64::from(wait > 0);
        }
    }
    assert!(waited > made / 4, "{waited} of {made} waited");
}

/// The error of a hundred requests with pauses between them does not add up.
#[test]
fn a_hundred_requests_stay_within_a_microsecond_of_the_published_times() {
    for seed in 1..=100 {
        let mut random = Random(seed);
        let requests = 1 + random.below(200);
        let rate = limiter(requests, 1000, 10_000, 3);
        let mut exact = Published::cold(1e6 / requests as f64, 1e7, 3.0, 0.0, false);
        let (mut stored, mut now) = (None, START);
        for n in 0..100 {
            now += if random.below(20) == 0 { random.below(20_000_000) } else { 0 };
            let sent = (now - START) as f64;
            acquire(&rate, &mut stored, &mut now, &[1]);
            let (expected, at) = (exact.next_free.max(sent), (now - START) as f64);
            assert!(
                (-0.5..1.0).contains(&(at - expected)),
                "request {n} at {at}, not {expected}, of {rate:?}"
            );
            exact.reserve(1.0, at);
        }
    }
}
