//! Properties that all algorithms share.

use proptest::prelude::*;

use crate::testing::{any_algorithm, any_rate, check, rate, sliding};
use crate::{Algorithm, Alignment, Bound, Burst, MAX_COUNT, MAX_PERIOD_MS, Overrun, Rate, Record};

/// A whole number of milliseconds, of seconds and of minutes.
const START: u64 = 1_126_000_020_000_000;

/// Returns the record after a sequence of checks, and the time of the last one.
fn history(rate: &Rate, steps: &[(u64, u64)]) -> (Option<Record>, u64) {
    let (mut stored, mut now) = (None, START);
    for &(step, cost) in steps {
        now += step;
        let (record, _) = check(rate, stored, now, cost);
        stored = Some(record);
    }
    (stored, now)
}

/// Generates checks: the time since the previous one, and the cost.
fn steps() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let step = prop_oneof![Just(0u64), 0u64..2_000, 0u64..90_000_000];
    proptest::collection::vec((step, prop_oneof![3 => 0u64..4, 1 => 0u64..2000]), 0..60)
}

/// Checks that `wait` admits and one microsecond less does not. `stored` is the record after the denied
/// check, so a rate that counts denials has to wait from that check on.
fn waits_exactly(rate: &Rate, stored: &Record, now: u64, wait: u64, cost: u64) -> Result<(), TestCaseError> {
    prop_assert!(wait >= 1);
    prop_assert!(check(rate, Some(stored.clone()), now + wait, cost).1.admitted, "after {wait}");
    prop_assert!(!check(rate, Some(stored.clone()), now + wait - 1, cost).1.admitted, "before {wait}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Waiting exactly retry-after admits, and one microsecond less does not. Without a retry-after no wait
    /// helps.
    #[test]
    fn retry_after_is_exact(
        rate in any_rate(), steps in steps(), cost in prop_oneof![0u64..6, 0u64..3000],
    ) {
        let (stored, now) = history(&rate, &steps);
        let (record, decision) = check(&rate, stored, now, cost);
        if let Some(wait) = decision.retry_after {
            waits_exactly(&rate, &record, now, wait, cost)?;
        } else if !decision.admitted {
            let later = now + (MAX_PERIOD_MS * 1000) * 3;
            prop_assert!(!check(&rate, Some(record.clone()), later, cost).1.admitted);
        }
    }

    /// Clocks and edits can leave records with any numbers.
    #[test]
    fn retry_after_is_exact_for_any_window(
        rate in any_rate(), counts in proptest::collection::vec(0..=MAX_COUNT, 61), small: bool,
        into in 0u64..1 << 45, cost in 0u64..30, since in 0u64..1 << 30, lasted in 0u64..1 << 20,
    ) {
        if !matches!(rate.algorithm, Algorithm::SlidingWindowCounter { .. } | Algorithm::FixedWindow(_)) {
            return Ok(());
        }
        let now = START + into;
        let mut record = Record::empty(rate.tag(), now);
        let count = |n: usize| if small { counts[n] % (rate.requests.get() / 8 + 2) } else { counts[n] };
        record.current = count(0);
        if record.tag.previous_windows() > 0 {
            record.previous = count(1);
        }
        (0..record.tail.len()).for_each(|n| record.tail[n] = count(n + 2));
        if rate.soft.is_some() && since > 1 << 20 {
            let since = now / 1000 - since % (4 * rate.period.millis()).max(1 << 20);
            record.overrun = Overrun { since, last: (since + lasted).min(now / 1000) };
        }
        let (record, decision) = check(&rate, Some(record), now, cost);
        if let Some(wait) = decision.retry_after {
            waits_exactly(&rate, &record, now, wait, cost)?;
        } else {
            prop_assert!(decision.admitted || cost.max(1) > rate.ceiling());
        }
    }

    /// After the reset time, if nothing else happens, nothing is used and a leaky bucket is empty.
    #[test]
    fn nothing_is_used_after_the_reset(rate in any_rate(), steps in steps()) {
        let (stored, now) = history(&rate, &steps);
        let (record, decision) = check(&rate, stored, now, 0);
        let (rolled, at) = rate.roll(Some(record), now + decision.reset);
        prop_assert_eq!(rate.used(&rolled, at), 0);
    }

    #[test]
    fn an_aligned_window_admits_no_more_than_its_number(
        sub_windows in 1u64..12, requests in 0u64..50, unit in 1u64..2_000, fixed: bool, guaranteed: bool,
        steps in proptest::collection::vec((0u64..900_000, 1u64..4), 1..200),
    ) {
        let period = unit * sub_windows;
        let bound = if guaranteed { Bound::Guaranteed } else { Bound::Estimate };
        let algorithm = if fixed { Algorithm::FIXED_WINDOW } else { sliding(sub_windows, bound) };
        let rate = rate(requests, period, algorithm);
        let (mut now, mut stored) = (START, None);
        let mut admitted = std::collections::BTreeMap::<u64, u64>::new();
        for (step, cost) in steps {
            now += step;
            let (record, decision) = check(&rate, stored, now, cost);
            if decision.admitted {
                *admitted.entry(now / 1000 / period).or_default() += cost;
            }
            stored = Some(record);
        }
        prop_assert!(admitted.values().all(|&n| n <= requests));
    }

    /// In any trailing period a log and a guaranteed counter admit at most N, a bucket and a window from the
    /// first request at most 2N.
    #[test]
    fn no_trailing_period_exceeds_the_bound_of_its_algorithm(
        requests in 1u64..30, unit in 1u64..1_000, sub_windows in 1u64..12, which in 0..4,
        steps in proptest::collection::vec((prop_oneof![Just(0u64), 0u64..500_000], 1u64..4), 1..300),
    ) {
        let period = unit * sub_windows;
        let burst = Burst::new(requests).unwrap();
        let algorithm = match which {
            0 => sliding(sub_windows, Bound::Guaranteed),
            1 => Algorithm::SlidingWindowLog { min_interval: 0 },
            2 => Algorithm::TokenBucket { burst },
            _ => Algorithm::FixedWindow(Alignment::FirstRequest),
        };
        let rate = rate(requests, period, algorithm);
        let (mut now, mut stored, mut admitted) = (START, None, Vec::<(u64, u64)>::new());
        for (step, cost) in steps {
            now += step;
            let (record, decision) = check(&rate, stored, now, cost);
            if decision.admitted {
                admitted.push((now / 1000, cost));
            }
            stored = Some(record);
        }
        let bound = match which { 0 | 1 => requests, _ => 2 * requests };
        for &(end, _) in &admitted {
            let inside = |&&(at, _): &&(u64, u64)| at <= end && at + period > end;
            let sum: u64 = admitted.iter().filter(inside).map(|&(_, cost)| cost).sum();
            prop_assert!(sum <= bound, "{sum} of {bound}");
        }
    }

    #[test]
    fn a_clock_that_steps_back_frees_nothing(
        algorithm in any_algorithm(), requests in 1u64..20, back in 0u64..20_000_000_000,
    ) {
        let period = 60_000 * 60;
        let sub_windows = match algorithm {
            Algorithm::SlidingWindowCounter { sub_windows, .. } => u64::from(sub_windows.get()),
            _ => 1,
        };
        let rate = rate(requests, period / sub_windows * sub_windows, algorithm);
        let mut stored = None;
        let mut admitted = true;
        for _ in 0..5000 {
            let (record, decision) = check(&rate, stored, START, 1);
            stored = Some(record);
            admitted = decision.admitted;
            if !admitted {
                break;
            }
        }
        prop_assume!(!admitted);
        prop_assert!(!check(&rate, stored, START - back, 1).1.admitted);
    }

    #[test]
    fn a_full_refund_frees_what_was_charged(
        rate in any_rate(), steps in steps(), cost in 1u64..6, later in 0u64..1000,
    ) {
        if matches!(rate.algorithm, Algorithm::WarmUp(_)) || rate.soft.is_some() {
            return Ok(());
        }
        let (stored, now) = history(&rate, &steps);
        let (before, at) = rate.roll(stored, now);
        if !rate.has_room(&before, at, cost) {
            return Ok(());
        }
        let charged = rate.charge(before.clone(), at, cost);
        let leaves = at + rate.decision(&charged, at, cost, true, true).delay;
        let (rolled, at_later) = rate.roll(Some(charged), at + later);
        let settled = rate.settle(rolled, at_later, leaves, -(cost as i64));
        let (without, _) = rate.roll(Some(before), at + later);
        prop_assert_eq!(rate.used(&settled, at_later), rate.used(&without, at_later));
        let more = rate.settle(settled.clone(), at_later, at, cost as i64);
        prop_assert!(rate.used(&more, at_later) >= rate.used(&settled, at_later));
        // Any correction leaves a record that can be decided.
        for delta in [i64::MIN, -7, 0, 9, i64::MAX] {
            let corrected = rate.settle(settled.clone(), at_later, at, delta);
            let (record, at) = rate.roll(Some(corrected), at + later);
            let _ = rate.decision(&record, at, cost, rate.has_room(&record, at, cost), false);
        }
    }

    #[test]
    fn damaged_records_are_decided_without_a_panic(
        rate in any_rate(), window in 0u64..1 << 48, numbers in proptest::collection::vec(0u64..1 << 48, 61),
        now in 0u64..1 << 53, cost: u64,
    ) {
        let (current, previous) = (numbers[0], numbers[1]);
        let mut record = Record { window, current, previous, ..Record::empty(rate.tag(), now) };
        if record.tag.is_log() {
            record.tail = numbers;
            record.tail.sort_by(|a, b| b.cmp(a));
            record.window = record.tail[0];
        } else {
            record.tail.iter_mut().zip(&numbers[2..]).for_each(|(to, from)| *to = *from);
        }
        record.overrun = Overrun { since: window / 2, last: window };
        let _ = check(&rate, Some(record), now, cost);
    }
}

#[test]
fn a_record_of_another_period_does_not_count() {
    let (short, long) = (rate(1, 1000, Algorithm::FIXED_WINDOW), rate(1, 2000, Algorithm::FIXED_WINDOW));
    let (record, _) = check(&short, None, 5_000_000, 1);
    assert!(check(&long, Some(record.clone()), 5_000_000, 1).1.admitted);
    assert!(!check(&short, Some(record), 5_000_000, 1).1.admitted);
}

#[test]
fn a_rate_survives_serialization() {
    for (json, unchanged) in [
        (
            r#"{"requests":5,"periodMillis":60000,"algorithm":{"slidingWindowCounter":{"subWindows":6,"bound":"Guaranteed"}}}"#,
            true,
        ),
        (
            r#"{"requests":5,"periodMillis":60000,"algorithm":{"fixedWindow":"Spread"},"soft":{"overPercent":20,"forMillis":1000}}"#,
            true,
        ),
        (
            r#"{"requests":5,"periodMillis":60000,"algorithm":{"slidingWindowLog":{"minIntervalMillis":10}},"countDenied":true}"#,
            true,
        ),
        (r#"{"requests":5,"periodMillis":60000,"algorithm":{"gcra":{"burst":1}},"countDenied":true}"#, false),
        (
            r#"{"requests":5,"periodMillis":60000,"algorithm":{"warmUp":{"periodMillis":1000,"coldFactor":3}}}"#,
            true,
        ),
        (r#"{"requests":5,"periodMillis":60000,"algorithm":{"leakyBucket":{"maxWaitMillis":1000}}}"#, true),
        // Numbers that do not fit together, a number out of its range, unknown fields, an algorithm that is
        // never sent.
        (
            r#"{"requests":5,"periodMillis":7,"algorithm":{"slidingWindowCounter":{"subWindows":6,"bound":"Estimate"}}}"#,
            false,
        ),
        (r#"{"requests":5,"periodMillis":0,"algorithm":{"gcra":{"burst":1}}}"#, false),
        (r#"{"requests":5,"periodMillis":1000,"algorithm":{"gcra":{"burst":1,"x":1}}}"#, false),
        (r#"{"requests":5,"periodMillis":1000,"algorithm":{"gcra":{"burst":1}},"x":1}"#, false),
        (
            r#"{"requests":5,"periodMillis":1000,"algorithm":{"warmUp":{"periodMillis":1000,"coldFactor":3,"x":1}}}"#,
            false,
        ),
        (r#"{"requests":5,"periodMillis":1000,"algorithm":{"concurrency":{"holder":1}}}"#, false),
    ] {
        let rate = serde_json::from_str::<Rate>(json);
        assert_eq!(rate.is_ok(), unchanged, "{json}: {rate:?}");
        if let Ok(rate) = rate {
            assert_eq!(serde_json::to_string(&rate).unwrap(), json);
        }
    }
}
