//! What holds for adaptive limits whatever the samples are.

use proptest::prelude::*;
use sluice_limiter::adaptive::{Adaptive, Aimd, Bounds, Gradient2, InvalidParameter, Kind, Outcome, Vegas};

fn kinds() -> [Kind; 3] {
    [Kind::Aimd(Aimd::default()), Kind::Vegas(Vegas::default()), Kind::Gradient2(Gradient2::default())]
}

fn any_microseconds() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), Just(1), Just(u64::MAX), 0..10_000_u64, any::<u64>()]
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![4 => Just(Outcome::Success), 1 => Just(Outcome::Dropped), 1 => Just(Outcome::Ignored)]
}

fn any_sample() -> impl Strategy<Value = (u64, u64, u32, Outcome)> {
    let in_flight = prop_oneof![Just(0), Just(u32::MAX), 0..200_u32];
    (any_microseconds(), any_microseconds(), in_flight, any_outcome())
}

proptest! {
    #[test]
    fn adaptive_stays_within_its_bounds_under_hostile_samples(
        kind in 0..3_usize,
        bounds in (1..50_u32, 0..50_u32, 0..50_u32),
        samples in prop::collection::vec((any_sample(), 1..100_u32, any::<bool>()), 1..200),
    ) {
        let (minimum, up, more) = bounds;
        let (initial, maximum) = (minimum + up, minimum + up + more);
        let mut adaptive = Adaptive::new(kinds()[kind], Bounds { minimum, maximum, initial }).unwrap();
        let mut clock = 0_u64;
        for ((now, round_trip, in_flight, outcome), times, hostile_clock) in samples {
            for _ in 0..times {
                clock = clock.saturating_add(round_trip.min(10_000));
                let now = if hostile_clock { now } else { clock };
                adaptive.sample(now, round_trip, in_flight, outcome);
                prop_assert!((minimum..=maximum).contains(&adaptive.limit()), "{adaptive:?}");
                // NaN is the only value that is not equal to itself.
                #[allow(clippy::eq_op)]
                { prop_assert!(adaptive == adaptive, "{adaptive:?}"); }
                prop_assert!(adaptive.baseline_us() != Some(0));
            }
        }
    }

    #[test]
    fn adaptive_does_not_grow_while_little_of_the_limit_is_used(
        kind in 0..3_usize,
        samples in prop::collection::vec((1_000..20_000_u64, 0..50_u32), 2_000..4_000),
    ) {
        let bounds = Bounds { minimum: 1, maximum: 1000, initial: 100 };
        let mut adaptive = Adaptive::new(kinds()[kind], bounds).unwrap();
        for (i, (round_trip, in_flight)) in samples.into_iter().enumerate() {
            adaptive.sample(i as u64 * 500, round_trip, in_flight, Outcome::Success);
            prop_assert!(adaptive.limit() <= 100, "{adaptive:?}");
        }
    }
}

/// A server that answers always in 10 ms, with the limit in use; the limit after `samples` ends.
fn steady(kind: Kind, samples: u64, outcome: impl Fn(u64) -> Outcome) -> u32 {
    let bounds = Bounds { minimum: 1, maximum: 1000, initial: 100 };
    let mut adaptive = Adaptive::new(kind, bounds).unwrap_or_else(|error| panic!("{error}"));
    for i in 0..samples {
        adaptive.sample(i * 100, 10_000, adaptive.limit(), outcome(i));
    }
    adaptive.limit()
}

#[test]
fn adaptive_grows_to_the_maximum_while_no_queue_forms() {
    for kind in kinds() {
        assert!(steady(kind, 100_000, |_| Outcome::Success) > 450, "{kind:?}"); // Half of it while probing.
    }
}

#[test]
fn adaptive_shrinks_while_requests_are_dropped() {
    for kind in kinds() {
        assert!(steady(kind, 20_000, |i| if i % 10 == 9 { Outcome::Dropped } else { Outcome::Success }) < 20);
        assert_eq!(steady(kind, 100_000, |_| Outcome::Dropped), 1, "{kind:?}: from the first");
        assert_eq!(steady(kind, 100_000, |i| if i < 1_000 { Outcome::Success } else { Outcome::Dropped }), 1);
    }
}

#[test]
fn adaptive_aimd_takes_a_late_answer_for_a_drop() {
    let kind = Kind::Aimd(Aimd { timeout_us: 9_999, ..Aimd::default() });
    assert!(steady(kind, 1_000, |_| Outcome::Success) <= 100);
    let kind = Kind::Aimd(Aimd { timeout_us: 10_000, ..Aimd::default() });
    assert!(steady(kind, 1_000, |_| Outcome::Success) > 100);
}

#[test]
fn adaptive_ignores_what_is_to_be_ignored() {
    for kind in kinds() {
        let mut adaptive = Adaptive::new(kind, Bounds::default()).unwrap();
        let before = adaptive.clone();
        (0..10_000).for_each(|i| adaptive.sample(i * 1000, i, 20, Outcome::Ignored));
        assert_eq!(adaptive, before);
    }
}

#[test]
fn adaptive_probes_go_no_lower_than_the_minimum() {
    for kind in kinds() {
        let bounds = Bounds { minimum: 30, maximum: 40, initial: 40 };
        let mut adaptive = Adaptive::new(kind, bounds).unwrap();
        let mut probed = false;
        for i in 0..10_000 {
            adaptive.sample(i * 250, 10_000, adaptive.limit(), Outcome::Success);
            probed |= adaptive.probing() && adaptive.limit() == 30;
        }
        assert!(probed, "{kind:?}");
    }
}

#[test]
fn adaptive_names_the_parameter_that_is_out_of_range_and_the_range() {
    let of = |kind, bounds| Adaptive::new(kind, bounds).map(drop).map_err(|error| error.to_string());
    let [aimd, ..] = kinds();
    let bounds = Bounds::default();
    let error = |message: &str| Err(message.to_owned());
    assert_eq!(of(aimd, bounds), Ok(()));
    assert_eq!(of(aimd, Bounds { minimum: 0, ..bounds }), error("minimum is 0: 1 to 1000000 are allowed"));
    assert_eq!(of(aimd, Bounds { minimum: 30, ..bounds }), error("initial is 20: 30 to 1000 are allowed"));
    assert_eq!(of(aimd, Bounds { maximum: 0, ..bounds }), error("maximum is 0: 1 to 1000000 are allowed"));
    let kind = Kind::Aimd(Aimd { backoff: 1.0, ..Aimd::default() });
    assert_eq!(of(kind, bounds), error("backoff is 1: 0.5 to 0.99 are allowed"));
    let kind = Kind::Vegas(Vegas { alpha: 0.2, ..Vegas::default() });
    assert_eq!(of(kind, bounds), error("alpha is 0.2: 0 to 0.1 are allowed"));
    let kind = Kind::Gradient2(Gradient2 { smoothing: f64::NAN, ..Gradient2::default() });
    let Err(InvalidParameter { name: "smoothing", .. }) = Adaptive::new(kind, bounds) else {
        panic!("NaN is allowed")
    };
}

#[test]
fn adaptive_state_is_small() {
    assert!(size_of::<Adaptive>() <= 256, "{}", size_of::<Adaptive>());
}
