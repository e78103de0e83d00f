use serde::Deserialize;

use super::CompiledRate;
use crate::policy::{Alignment, Bound, Capacity, Elastic, RateAlgorithm, Window};

/// The algorithms that the first release reads.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
enum FirstRelease {
    SlidingWindowCounter,
    FixedWindow,
}

/// Every algorithm with its JSON.
fn every() -> Vec<(RateAlgorithm, &'static str)> {
    let sub_windows = Window::SlidingWindowCounter { sub_windows: 60, bound: Bound::Guaranteed };
    let first = Window::FixedWindow { alignment: Alignment::FirstRequest };
    let elastic = Elastic {
        algorithm: RateAlgorithm::FixedWindow,
        requests: 9,
        below_percent: 70,
        capacity: Capacity::InFlight(100),
    };
    vec![
        (RateAlgorithm::SlidingWindowCounter, r#""slidingWindowCounter""#),
        (RateAlgorithm::FixedWindow, r#""fixedWindow""#),
        (
            RateAlgorithm::window(sub_windows),
            r#"{"window":{"slidingWindowCounter":{"subWindows":60,"bound":"Guaranteed"}}}"#,
        ),
        (RateAlgorithm::window(first), r#"{"window":{"fixedWindow":{"alignment":"FirstRequest"}}}"#),
        (
            RateAlgorithm::Soft { window: first, over_percent: 20, for_millis: 30_000 },
            r#"{"soft":{"window":{"fixedWindow":{"alignment":"FirstRequest"}},"overPercent":20,"forMillis":30000}}"#,
        ),
        (
            RateAlgorithm::SlidingWindowLog { min_interval_millis: 5, count_denied: true },
            r#"{"slidingWindowLog":{"minIntervalMillis":5,"countDenied":true}}"#,
        ),
        (RateAlgorithm::TokenBucket { burst: 4 }, r#"{"tokenBucket":{"burst":4}}"#),
        (
            RateAlgorithm::WarmUp { period_millis: 1000, cold_factor: 3 },
            r#"{"warmUp":{"periodMillis":1000,"coldFactor":3}}"#,
        ),
        (RateAlgorithm::Gcra { burst: 1 }, r#"{"gcra":{"burst":1}}"#),
        (RateAlgorithm::LeakyBucket { max_wait_millis: 2000 }, r#"{"leakyBucket":{"maxWaitMillis":2000}}"#),
        (
            RateAlgorithm::Elastic(Box::new(elastic)),
            r#"{"elastic":{"algorithm":"fixedWindow","requests":9,"belowPercent":70,"capacity":{"inFlight":100}}}"#,
        ),
    ]
}

#[test]
fn the_first_release_reads_its_own_algorithms_and_no_others() {
    for (algorithm, json) in every() {
        assert_eq!(serde_json::to_string(&algorithm).unwrap(), json);
        assert_eq!(serde_json::from_str::<RateAlgorithm>(json).unwrap(), algorithm);
        let known = matches!(algorithm, RateAlgorithm::SlidingWindowCounter | RateAlgorithm::FixedWindow);
        assert_eq!(serde_json::from_str::<FirstRelease>(json).is_ok(), known, "{json}");
    }
    assert_eq!(serde_json::from_str::<FirstRelease>(r#""fixedWindow""#).unwrap(), FirstRelease::FixedWindow);
}

#[test]
fn windows_of_the_first_release_keep_their_names() {
    let sub_windows =
        |sub_windows, bound| RateAlgorithm::window(Window::SlidingWindowCounter { sub_windows, bound });
    assert_eq!(sub_windows(1, Bound::Estimate), RateAlgorithm::SlidingWindowCounter);
    assert_ne!(sub_windows(1, Bound::Guaranteed), RateAlgorithm::SlidingWindowCounter);
    assert_ne!(sub_windows(2, Bound::Estimate), RateAlgorithm::SlidingWindowCounter);
    assert_eq!(
        RateAlgorithm::window(Window::FixedWindow { alignment: Alignment::Clock }),
        RateAlgorithm::FixedWindow
    );
}

#[test]
fn an_unknown_field_of_an_algorithm_is_an_error() {
    for (_, json) in every().into_iter().skip(2) {
        // A field at the end of the innermost object, and one at the beginning of the outer one.
        let inner = json.strip_suffix("}}").unwrap().to_owned();
        for later in [format!(r#"{inner},"later":1}}}}"#), json.replace(":{", r#":{"later":1,"#)] {
            assert!(serde_json::from_str::<RateAlgorithm>(&later).is_err(), "{later}");
        }
    }
}

#[test]
fn every_algorithm_gives_a_rate_of_the_limiter() {
    let rate = |algorithm| CompiledRate { requests: 6, period_millis: 60_000, algorithm };
    for (algorithm, json) in every() {
        let compiled = rate(algorithm);
        let rate = compiled.rate().unwrap();
        assert_eq!((rate.requests.get(), rate.period.millis()), (6, 60_000), "{json}");
        assert_eq!(rate.soft.is_some(), json.contains("soft"), "{json}");
        assert_eq!(compiled.boosted().unwrap().is_some(), json.contains("elastic"), "{json}");
    }
    let (boosted, _) =
        rate(every().pop().unwrap().0).boosted().unwrap().map(|(r, e)| (r, e.below_percent)).unwrap();
    assert_eq!(boosted.requests.get(), 9);
    assert_eq!(
        boosted.tag(),
        rate(RateAlgorithm::FixedWindow).rate().unwrap().tag(),
        "both rates count in the same record"
    );
}

#[test]
fn invalid_numbers_are_errors() {
    let soft_log = RateAlgorithm::SlidingWindowLog { min_interval_millis: 70_000, count_denied: false };
    let elastic = |algorithm| {
        let capacity = Capacity::InFlight(1);
        RateAlgorithm::Elastic(Box::new(Elastic { algorithm, requests: 9, below_percent: 1, capacity }))
    };
    for (algorithm, expected) in [
        (
            RateAlgorithm::Window(Window::SlidingWindowCounter { sub_windows: 7, bound: Bound::Estimate }),
            "7 sub-windows",
        ),
        (
            RateAlgorithm::Window(Window::SlidingWindowCounter { sub_windows: 61, bound: Bound::Estimate }),
            "out of range",
        ),
        (soft_log, "longer than the period"),
        (RateAlgorithm::TokenBucket { burst: 0 }, "out of range"),
        (RateAlgorithm::Gcra { burst: 1 << 40 }, "longer than 8784 hours"),
        (RateAlgorithm::WarmUp { period_millis: 3_600_001, cold_factor: 3 }, "out of range"),
        (elastic(elastic(RateAlgorithm::FixedWindow)), "another elastic rate"),
    ] {
        let error = CompiledRate { requests: 6, period_millis: 60_000, algorithm }.rate().unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}
