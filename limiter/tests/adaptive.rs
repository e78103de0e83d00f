//! Properties of adaptive limits for any samples.

use proptest::prelude::*;
use sluice_limiter::adaptive::{
    Adaptive, AdaptiveAlgorithm, Aimd, Bounds, Gradient2, InvalidParameter, SampleOutcome, Vegas,
};

fn algorithms() -> [AdaptiveAlgorithm; 3] {
    [
        AdaptiveAlgorithm::Aimd(Aimd::default()),
        AdaptiveAlgorithm::Vegas(Vegas::default()),
        AdaptiveAlgorithm::Gradient2(Gradient2::default()),
    ]
}

fn any_microseconds() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0..10_000_u64, any::<u64>()]
}

fn any_outcome() -> impl Strategy<Value = SampleOutcome> {
    use SampleOutcome::{Dropped, Ignored, Success};
    prop_oneof![4 => Just(Success), 1 => Just(Dropped), 1 => Just(Ignored)]
}

fn any_sample() -> impl Strategy<Value = (u64, u64, u32, SampleOutcome)> {
    let in_flight = prop_oneof![Just(0), Just(u32::MAX), 0..200_u32];
    (any_microseconds(), any_microseconds(), in_flight, any_outcome())
}

proptest! {
    #[test]
    fn the_limit_stays_within_its_bounds_under_hostile_samples(
        algorithm in 0..3_usize,
        bounds in (1..50_u32, 0..50_u32, 0..50_u32),
        samples in prop::collection::vec((any_sample(), 1..100_u32, any::<bool>()), 1..200),
        client: u64,
    ) {
        let (minimum, up, more) = bounds;
        let (initial, maximum) = (minimum + up, minimum + up + more);
        let bounds = Bounds { minimum, maximum, initial };
        let mut adaptive = Adaptive::new(algorithms()[algorithm], bounds).unwrap();
        let mut clock = 0_u64;
        for ((now, round_trip, in_flight, outcome), times, hostile_clock) in samples {
            for _ in 0..times {
                clock = clock.saturating_add(round_trip.min(10_000));
                let now = if hostile_clock { now } else { clock };
                adaptive.sample(now, round_trip, in_flight, outcome, client);
                prop_assert!((minimum..=maximum).contains(&adaptive.limit()), "{adaptive:?}");
                // NaN is the only value that is not equal to itself.
                #[allow(clippy::eq_op)]
                { prop_assert!(adaptive == adaptive, "{adaptive:?}"); }
                prop_assert!(adaptive.baseline_us() != Some(0));
            }
        }
    }

    #[test]
    fn the_limit_does_not_grow_while_little_of_it_is_used(
        algorithm in 0..3_usize,
        samples in prop::collection::vec((1_000..20_000_u64, 0..50_u32), 2_000..4_000),
    ) {
        let bounds = Bounds { minimum: 1, maximum: 1000, initial: 100 };
        let mut adaptive = Adaptive::new(algorithms()[algorithm], bounds).unwrap();
        for (i, (round_trip, in_flight)) in samples.into_iter().enumerate() {
            adaptive.sample(i as u64 * 500, round_trip, in_flight, SampleOutcome::Success, 0);
            prop_assert!(adaptive.limit() <= 100, "{adaptive:?}");
        }
    }
}

/// Returns the limit after `samples` requests to a server that always answers in 10 ms, with the whole limit
/// in use.
fn steady(algorithm: AdaptiveAlgorithm, samples: u64, outcome: impl Fn(u64) -> SampleOutcome) -> u32 {
    let bounds = Bounds { minimum: 1, maximum: 1000, initial: 100 };
    let mut adaptive = Adaptive::new(algorithm, bounds).unwrap_or_else(|error| panic!("{error}"));
    for i in 0..samples {
        adaptive.sample(i * 100, 10_000, adaptive.limit(), outcome(i), i);
    }
    adaptive.limit()
}

#[test]
fn the_limit_grows_to_the_maximum_while_no_queue_forms() {
    for algorithm in algorithms() {
        // The maximum is 1000, or half of it during a probe.
        assert!(steady(algorithm, 100_000, |_| SampleOutcome::Success) > 450, "{algorithm:?}");
    }
}

#[test]
fn the_limit_shrinks_while_requests_are_dropped() {
    for algorithm in algorithms() {
        assert!(
            steady(algorithm, 20_000, |i| if i % 10 == 9 {
                SampleOutcome::Dropped
            } else {
                SampleOutcome::Success
            }) < 20
        );
        assert_eq!(
            steady(algorithm, 100_000, |_| SampleOutcome::Dropped),
            1,
            "{algorithm:?}: from the first"
        );
        assert_eq!(
            steady(algorithm, 100_000, |i| if i < 1_000 {
                SampleOutcome::Success
            } else {
                SampleOutcome::Dropped
            }),
            1
        );
    }
}

/// Returns the highest and the lowest limit of a server of 100 workers, one in `every` of whose requests is dropped. `client` returns
/// the client of that request.
fn with_drops(algorithm: AdaptiveAlgorithm, every: u64, client: impl Fn(u64) -> u64) -> (u32, u32) {
    let bounds = Bounds { minimum: 1, maximum: 100, initial: 100 };
    let mut adaptive = Adaptive::new(algorithm, bounds).expect("valid bounds");
    let (mut highest, mut lowest) = (0, u32::MAX);
    for i in 0..200_000 {
        let (outcome, client) = if i % every == 0 {
            (SampleOutcome::Dropped, client(i))
        } else {
            (SampleOutcome::Success, i << 32 | i)
        };
        adaptive.sample(i * 100, 10_000, adaptive.limit(), outcome, client);
        // A probe lowers the limit for a moment in any case.
        if !adaptive.probing() {
            highest = highest.max(adaptive.limit());
            lowest = lowest.min(adaptive.limit());
        }
    }
    (highest, lowest)
}

#[test]
fn one_client_that_provokes_drops_does_not_lower_the_limit_for_everybody() {
    for algorithm in algorithms() {
        let without = with_drops(algorithm, u64::MAX, |_| 0);
        for every in [3, 20, 50] {
            // It may have an IPv4 and an IPv6 address.
            let hostile = with_drops(algorithm, every, |i| i / every % 2);
            assert!(
                hostile.1 * 100 >= without.1 * 95,
                "{algorithm:?}, one in {every}: {without:?}, {hostile:?}"
            );
        }
        let many = with_drops(algorithm, 20, |i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20);
        assert!(many.1 * 100 < without.1 * 50, "{algorithm:?}: {many:?}");
        let most = with_drops(algorithm, 1, |_| 7);
        assert_eq!(most.1, 1, "{algorithm:?}: all requests of the only client");
    }
}

#[test]
fn aimd_counts_a_late_response_as_dropped() {
    let algorithm = AdaptiveAlgorithm::Aimd(Aimd { timeout_us: 9_999, ..Aimd::default() });
    assert!(steady(algorithm, 1_000, |_| SampleOutcome::Success) <= 100);
    let algorithm = AdaptiveAlgorithm::Aimd(Aimd { timeout_us: 10_000, ..Aimd::default() });
    assert!(steady(algorithm, 1_000, |_| SampleOutcome::Success) > 100);
}

#[test]
fn an_ignored_sample_changes_nothing() {
    for algorithm in algorithms() {
        let mut adaptive = Adaptive::new(algorithm, Bounds::default()).unwrap();
        let before = adaptive.clone();
        (0..10_000).for_each(|i| adaptive.sample(i * 1000, i, 20, SampleOutcome::Ignored, i));
        assert_eq!(adaptive, before);
    }
}

#[test]
fn a_probe_does_not_go_below_the_minimum() {
    for algorithm in algorithms() {
        let bounds = Bounds { minimum: 30, maximum: 40, initial: 40 };
        let mut adaptive = Adaptive::new(algorithm, bounds).unwrap();
        let mut probed = false;
        for i in 0..10_000 {
            adaptive.sample(i * 250, 10_000, adaptive.limit(), SampleOutcome::Success, i);
            probed |= adaptive.probing() && adaptive.limit() == 30;
        }
        assert!(probed, "{algorithm:?}");
    }
}

#[test]
fn an_invalid_parameter_is_reported_with_its_name_and_range() {
    let result =
        |algorithm, bounds| Adaptive::new(algorithm, bounds).map(drop).map_err(|error| error.to_string());
    let [aimd, ..] = algorithms();
    let bounds = Bounds::default();
    let error = |message: &str| Err(message.to_owned());
    assert_eq!(result(aimd, bounds), Ok(()));
    assert_eq!(
        result(aimd, Bounds { minimum: 0, ..bounds }),
        error("minimum is 0: 1 to 1000000 are allowed")
    );
    assert_eq!(
        result(aimd, Bounds { minimum: 30, ..bounds }),
        error("initial is 20: 30 to 1000 are allowed")
    );
    assert_eq!(
        result(aimd, Bounds { maximum: 0, ..bounds }),
        error("maximum is 0: 1 to 1000000 are allowed")
    );
    let algorithm = AdaptiveAlgorithm::Aimd(Aimd { backoff: 1.0, ..Aimd::default() });
    assert_eq!(result(algorithm, bounds), error("backoff is 1: 0.5 to 0.99 are allowed"));
    let algorithm = AdaptiveAlgorithm::Vegas(Vegas { alpha: 0.2, ..Vegas::default() });
    assert_eq!(result(algorithm, bounds), error("alpha is 0.2: 0 to 0.1 are allowed"));
    let algorithm = AdaptiveAlgorithm::Gradient2(Gradient2 { smoothing: f64::NAN, ..Gradient2::default() });
    let Err(InvalidParameter { name: "smoothing", .. }) = Adaptive::new(algorithm, bounds) else {
        panic!("NaN is allowed")
    };
}

#[test]
fn the_state_of_a_limit_is_small() {
    assert!(size_of::<Adaptive>() <= 320, "{}", size_of::<Adaptive>());
}
