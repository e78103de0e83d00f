use proptest::prelude::*;

use crate::testing::{any_rate, check, rate, sliding};
use crate::{
    Algorithm, Alignment, Bound, Burst, Holder, MAX_PERIOD_MS, MaxWait, PreviousPart, Rate, RateError, Shape,
    Soft, Unit, WarmUp,
};

const START: u64 = 1_700_000_000_000_000;
const MINUTE: u64 = 60_000;

fn token_bucket(burst: u64) -> Algorithm {
    Algorithm::TokenBucket { burst: Burst::new(burst).unwrap() }
}

fn gcra(burst: u64) -> Algorithm {
    Algorithm::Gcra { burst: Burst::new(burst).unwrap() }
}

fn leaky_bucket(millis: u64) -> Algorithm {
    Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(millis).unwrap() }
}

fn warm_up() -> Algorithm {
    Algorithm::WarmUp(WarmUp::new(1_000, 3).unwrap())
}

fn log(min_interval: u64) -> Algorithm {
    Algorithm::SlidingWindowLog { min_interval }
}

fn concurrency() -> Algorithm {
    Algorithm::Concurrency { holder: Holder::new(7).unwrap() }
}

fn soft(rate: Rate) -> Rate {
    rate.with_soft(Soft::new(50, 30_000).unwrap()).unwrap()
}

proptest! {
    /// For any earlier requests and any time since then.
    #[test]
    fn the_least_usage_is_never_above_the_true_usage(
        rate in any_rate(), key: u128, steps in proptest::collection::vec((0u64..300_000, 1u64..5), 1..60),
        later in prop_oneof![0u64..3_000_000, 0u64..MAX_PERIOD_MS * 1000],
    ) {
        let (mut stored, mut now, mut used) = (None, START + rate.phase(key), 0);
        for (step, cost) in steps {
            now += step;
            let (record, decision) = check(&rate, stored, now, cost);
            (stored, used) = (Some(record), rate.used_after(&decision));
        }
        let least = rate.least_still_used(used, now, now + later);
        let truth = rate.used_after(&check(&rate, stored, now + later, 0).1);
        prop_assert!(least <= truth, "{least} of {truth}");
    }

    #[test]
    fn a_share_of_a_rate_is_valid_and_at_most_the_rate(rate in any_rate(), of in 1u64..20) {
        let part = rate.scaled(|number| number / of);
        prop_assert_eq!(part.requests.get(), rate.requests.get() / of);
        prop_assert_eq!(part.tag(), rate.tag());
        prop_assert!(part.capacity() <= rate.capacity());
        if part.capacity() == 0 {
            prop_assert!(rate.capacity() < of);
        }
    }
}

#[test]
fn a_window_whose_count_is_guaranteed_leaves_at_once() {
    let rate = rate(3, 1_000, sliding(1, Bound::Guaranteed));
    let at = START + 900_000;
    let used = rate.used_after(&check(&rate, None, at, 2).1);
    assert_eq!(used, 2);
    for (later, least) in [(50_000, 2), (150_000, 0), (1_100_000, 0)] {
        assert_eq!(rate.least_still_used(used, at, at + later), least, "{later}");
    }
}

#[test]
fn a_lease_ends_with_its_window_and_is_a_small_part_of_a_bucket() {
    let clock = Algorithm::FIXED_WINDOW;
    for (algorithm, period, longest) in [
        (Algorithm::SLIDING_WINDOW, MINUTE, Some(60_000_000)),
        (sliding(60, Bound::Estimate), MINUTE, Some(1_000_000)),
        (sliding(20, Bound::Guaranteed), 1_000, Some(50_000)),
        (sliding(20, Bound::Guaranteed), 980, None),
        (clock, 50, Some(50_000)),
        (clock, 49, None),
        (Algorithm::FixedWindow(Alignment::FirstRequest), MINUTE, Some(60_000_000)),
        (token_bucket(1_000), MINUTE, Some(3_000_000)),
        (token_bucket(100), MINUTE, Some(1_500_000)),
        (gcra(1), MINUTE, None),
        (gcra(1_000), 999, None),
        (leaky_bucket(1_000), MINUTE, None),
        (log(0), MINUTE, None),
        (warm_up(), MINUTE, None),
        (concurrency(), MINUTE, None),
    ] {
        let rate = rate(1_000, period, algorithm);
        assert_eq!(rate.longest_lease(), longest, "{rate:?}");
    }
    assert_eq!(soft(rate(1_000, MINUTE, clock)).longest_lease(), None);
}

#[test]
fn the_rest_of_a_window_is_measured_in_the_time_of_the_key() {
    let rate = |algorithm| rate(9, MINUTE, algorithm);
    let key = 7_000 << 64;
    let left = |rate: Rate, at| rate.left_of_window(key, at, &check(&rate, None, at, 1).1);
    // START is 20 s into a minute.
    assert_eq!(left(rate(Algorithm::FIXED_WINDOW), START + 1), Some(39_999_999));
    assert_eq!(left(rate(sliding(60, Bound::Estimate)), START + 1), Some(999_999));
    assert_eq!(left(rate(Algorithm::FixedWindow(Alignment::Spread)), START), Some(33_000_000));
    assert_eq!(left(rate(Algorithm::FixedWindow(Alignment::FirstRequest)), START), Some(60_000_000));
    assert_eq!(left(rate(token_bucket(9)), START), None);
}

#[test]
fn quota_comes_back_at_the_end_of_a_fixed_window_and_evenly_elsewhere() {
    let rate = |algorithm| rate(60, MINUTE, algorithm);
    let freed = |rate: Rate, micros| rate.freed_after(&check(&rate, None, START, 30).1, micros);
    // START is 20 s into a minute.
    assert_eq!(freed(rate(Algorithm::FIXED_WINDOW), 39_999_999), 0.0);
    assert_eq!(freed(rate(Algorithm::FIXED_WINDOW), 40_000_000), 30.0);
    assert_eq!(freed(rate(Algorithm::SLIDING_WINDOW), 20_000_000), 10.0);
    assert_eq!(freed(rate(token_bucket(40)), 20_000_000), 20.0);
    assert_eq!(freed(rate(token_bucket(40)), 50_000_000), 30.0);
    assert!(rate(Algorithm::SLIDING_WINDOW).refills_gradually() && rate(gcra(1)).refills_gradually());
    assert!(!rate(Algorithm::FIXED_WINDOW).refills_gradually());
}

#[test]
fn only_hard_rates_without_further_parameters_have_a_shape() {
    for (algorithm, shape) in [
        (Algorithm::SLIDING_WINDOW, Some(Shape::Windows(PreviousPart::Overlap))),
        (sliding(1, Bound::Guaranteed), Some(Shape::Windows(PreviousPart::All))),
        (sliding(2, Bound::Estimate), None),
        (Algorithm::FIXED_WINDOW, Some(Shape::Windows(PreviousPart::None))),
        (Algorithm::FixedWindow(Alignment::Spread), None),
        (Algorithm::FixedWindow(Alignment::FirstRequest), None),
        (token_bucket(9), Some(Shape::Bucket(9))),
        (gcra(4), Some(Shape::Bucket(4))),
        (leaky_bucket(1_000), None),
        (warm_up(), None),
        (log(0), None),
    ] {
        assert_eq!(rate(5, MINUTE, algorithm).shape(), shape, "{algorithm:?}");
    }
    let window = rate(5, MINUTE, Algorithm::SLIDING_WINDOW);
    assert_eq!(soft(window).shape(), None);
    let counts_denied = window.counting_denied().unwrap();
    assert_eq!((counts_denied.shape(), counts_denied.longest_lease()), (None, None));
    assert!(counts_denied.script_arguments(1, 1).is_some());
    assert_eq!(rate(5, MINUTE, gcra(4)).counting_denied(), Err(RateError::CountDenied));
    assert_eq!((window.script_weight(), soft(window).script_weight()), (1, 3));
    assert_eq!(rate(5, MINUTE, sliding(60, Bound::Estimate)).script_weight(), 9);
    assert_eq!(rate(2_000, MINUTE, log(0)).script_weight(), 5);
}

#[test]
fn a_rate_is_described_without_the_names_of_algorithms_and_noted_with_them() {
    for (algorithm, description, notes) in [
        (Algorithm::SLIDING_WINDOW, "admits 5 requests per minute", ""),
        (sliding(2, Bound::Guaranteed), "admits 5 requests per minute", "Guaranteed"),
        (Algorithm::FIXED_WINDOW, "admits 5 requests per minute", "fixedWindow"),
        (Algorithm::FixedWindow(Alignment::Spread), "admits 5 requests per minute", "fixedWindow Spread"),
        (
            Algorithm::FixedWindow(Alignment::FirstRequest),
            "admits 5 requests per minute",
            "fixedWindow FirstRequest",
        ),
        (log(0), "admits 5 requests per minute", "slidingWindowLog"),
        (
            log(2_000),
            "admits 5 requests per minute, at least 2 seconds apart",
            "slidingWindowLog, minInterval 2s",
        ),
        (token_bucket(5), "admits 5 requests per minute", "tokenBucket"),
        (token_bucket(9), "admits 5 requests per minute, in bursts of up to 9", "tokenBucket burst 9"),
        (gcra(1), "admits 5 requests per minute, in bursts of up to 1", "gcra"),
        (gcra(5), "admits 5 requests per minute", "gcra burst 5"),
        (
            leaky_bucket(1_500),
            "forwards 5 requests per minute, with a delay of at most 1 second 500 milliseconds",
            "leakyBucket maxWait 1s500ms",
        ),
        (
            warm_up(),
            "admits 5 requests per minute, and fewer after an idle time",
            "tokenBucket warmUp 1s from 1/3",
        ),
        (concurrency(), "admits 5 concurrent requests", ""),
    ] {
        let rate = rate(5, MINUTE, algorithm);
        assert_eq!((rate.description().as_str(), rate.notes().join(", ").as_str()), (description, notes));
        assert_eq!(rate.delays(), description.starts_with("forwards"));
        assert_eq!(rate.unit() == Unit::Slots, description.ends_with("concurrent requests"));
    }
    let soft = soft(rate(5, MINUTE, Algorithm::FIXED_WINDOW));
    assert_eq!(soft.description(), "admits 5 requests per minute, or 7 for 30 seconds");
    assert_eq!(soft.notes(), ["fixedWindow", "soft +50% for 30s"]);
    let quiet = rate(5, MINUTE, log(2_000)).counting_denied().unwrap();
    let description = "admits 5 requests per minute, at least 2 seconds apart; denied requests count too";
    assert_eq!(quiet.description(), description);
    assert_eq!(quiet.notes(), ["slidingWindowLog", "minInterval 2s", "countDenied"]);
    assert_eq!(rate(0, MINUTE, token_bucket(1)).notes(), ["tokenBucket"]);
}
