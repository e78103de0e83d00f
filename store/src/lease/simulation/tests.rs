use std::sync::Arc;

use proptest::prelude::*;
use sluice_limiter::{Algorithm, Alignment, Burst, Period, Rate, Requests};

use super::world::{Load, World};
use crate::check::LimitSpec;

fn spec(requests: u64, millis: u64, algorithm: Algorithm) -> Arc<LimitSpec> {
    let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap());
    Arc::new(LimitSpec::new("n/p/l", vec![Rate::new(requests, period, algorithm).unwrap()]))
}

/// A constant load, equal for all holders, in multiples of the limit.
fn even_load(times: f64, number: u64, millis: u64, holders: usize) -> Load {
    let each = times * number as f64 * 1000.0 / millis as f64 / holders as f64;
    Box::new(move |_, _| each)
}

/// Eight seconds of a constant load against a limit per second.
fn world(algorithm: Algorithm, number: u64, times: f64, holders: usize) -> World {
    World {
        spec: spec(number, 1000, algorithm),
        load: even_load(times, number, 1000, holders),
        holders,
        seconds: 8.0,
        latency: 300,
        seed: 7,
        assumed_holders: 1,
        strict: false,
    }
}

fn windows() -> [Algorithm; 3] {
    [Alignment::Clock, Alignment::Spread, Alignment::FirstRequest].map(Algorithm::FixedWindow)
}

/// With at least 50 requests per holder and window.
#[test]
fn leases_of_windows_need_few_calls_admit_nearly_all_and_never_exceed_the_limit() {
    for algorithm in windows() {
        for (number, times, calls, utilization) in [
            (1000, 0.9, 0.1, 0.98),
            (1000, 1.5, 0.1, 0.98),
            (1000, 10.0, 0.03, 0.98),
            (4000, 0.9, 0.06, 0.98),
            (4000, 1.1, 0.06, 0.98),
            (4000, 10.0, 0.02, 0.98),
            (20_000, 10.0, 0.005, 0.98),
        ] {
            for assumed_holders in [1, 20] {
                let name = format!("{algorithm:?} {number} x{times}, {assumed_holders} holders assumed");
                let world = World { assumed_holders, ..world(algorithm, number, times, 20) };
                let report = world.run_and_print(&name);
                assert!(report.calls_per_request() <= calls, "{name}: too many calls");
                assert!(report.utilization(number) >= utilization, "{name}: too little admitted");
                // Windows that begin with the first request are not aligned.
                if algorithm != Algorithm::FixedWindow(Alignment::FirstRequest) {
                    assert!(report.most_in_a_period() <= number, "{name}: too much admitted");
                }
            }
        }
    }
}

/// Sliding windows cost more calls when they are full, and requests that wait for a call are not admitted
/// meanwhile.
#[test]
fn leases_of_sliding_windows_lose_a_few_percent() {
    for (number, times, calls, utilization) in
        [(1000, 0.9, 0.25, 0.93), (1000, 10.0, 0.06, 0.96), (4000, 0.9, 0.1, 0.97), (4000, 10.0, 0.03, 0.95)]
    {
        let strict = World { strict: true, ..world(Algorithm::SLIDING_WINDOW, number, times, 20) };
        let strict = strict.run_and_print(&format!("strict {number} x{times}"));
        let leased = world(Algorithm::SLIDING_WINDOW, number, times, 20);
        let leased = leased.run_and_print(&format!("leased {number} x{times}"));
        assert!(leased.calls_per_request() <= calls, "too many calls");
        assert!(leased.utilization(number) >= utilization, "too little admitted");
        assert!(leased.most_in_a_period() <= number);
        let without_leases = strict.most_in_any(1_000_000).max(number);
        let with_leases = leased.most_in_any(1_000_000);
        assert!(
            with_leases as f64 <= without_leases as f64 * 1.1,
            "{with_leases} in some trailing second, {without_leases} without leases"
        );
    }
}

#[test]
fn leases_of_buckets_exceed_them_by_a_few_percent_at_most() {
    let bucket = Algorithm::TokenBucket { burst: Burst::new(2000).unwrap() };
    for times in [0.9, 2.0, 10.0] {
        let spec = spec(20_000, 10_000, bucket);
        let load = even_load(times, 20_000, 10_000, 20);
        let report = World { spec, load, seconds: 20.0, ..world(bucket, 1, 1.0, 20) }
            .run_and_print(&format!("bucket x{times}"));
        assert!(report.calls_per_request() <= 0.15);
        for seconds in [1u64, 3, 10] {
            let most = report.most_in_any(seconds * 1_000_000);
            let bound = 2_000 + 2_000 * seconds;
            assert!(most as f64 <= bound as f64 + 1_000.0, "{most} in {seconds} s, {bound} by the bucket");
        }
        assert!(report.admitted as f64 >= 0.95 * (20.0 * 2_000.0 * times.min(1.0)));
    }
}

#[test]
fn leases_of_long_windows_need_few_calls() {
    for (number, millis, times, calls) in [
        (1_000, 3_600_000, 0.9, 0.1),
        // A holder has a request every seven seconds, and probes the store once a minute.
        (1_000, 3_600_000, 10.0, 0.15),
        (4_000, 3_600_000, 0.9, 0.08),
        (1_000, 60_000, 0.9, 0.1),
        (100_000, 60_000, 1.1, 0.06),
    ] {
        let spec = spec(number, millis, Algorithm::FIXED_WINDOW);
        let load = even_load(times, number, millis, 20);
        let seconds = 4.0 * millis as f64 / 1000.0;
        let name = format!("{number} in {millis} ms x{times}");
        let report =
            World { spec, load, seconds, ..world(Algorithm::FIXED_WINDOW, 1, 1.0, 20) }.run_and_print(&name);
        assert!(report.calls_per_request() <= calls, "{name}: too many calls");
        assert!(report.utilization(number) >= 0.98, "{name}: too little admitted");
        assert!(report.most_in_a_period() <= number);
    }
}

#[test]
fn idle_holders_return_their_blocks_before_a_long_window_ends() {
    let spec = spec(10_000, 60_000, Algorithm::FIXED_WINDOW);
    // All are busy for three seconds, then only one.
    let load: Load = Box::new(|holder, now| match now {
        0..3_000_000 => 50.0,
        _ if holder == 0 => 1_000.0,
        _ => 0.0,
    });
    let report = World { spec, load, seconds: 55.0, ..world(Algorithm::FIXED_WINDOW, 1, 1.0, 20) }
        .run_and_print("one continues");
    assert!(report.admitted >= 9_750, "the blocks of idle holders came back");
}

/// One holder acquires what it needs and becomes idle. A second one can then use the rest of the limit.
#[test]
fn quota_of_an_idle_holder_is_available_within_a_minute() {
    for number in [50, 300, 5_000] {
        let (spec, third) = (spec(number, 3_600_000, Algorithm::SLIDING_WINDOW), number as f64 / 3.0);
        // The first holder uses a third within two seconds. From the tenth second on, the second one uses the
        // rest, slowly.
        let load: Load = Box::new(move |holder, now| match (holder, now) {
            (0, 0..2_000_000) => third / 2.0,
            (1, 10_000_000..) => number as f64 / 60.0,
            _ => 0.0,
        });
        let name = format!("one after another, {number}");
        let report = World {
            spec,
            load,
            holders: 2,
            seconds: 200.0,
            assumed_holders: 2,
            ..world(Algorithm::SLIDING_WINDOW, 1, 1.0, 2)
        }
        .run_and_print(&name);
        assert_eq!(report.admitted, number, "{name}: all of it is used");
    }
}

/// A holder with a small share of the limit costs no more calls than without leases.
#[test]
fn small_shares_are_not_leased() {
    let report = world(Algorithm::FIXED_WINDOW, 200, 0.9, 20).run_and_print("small");
    assert!(report.calls_per_request() <= 1.05);
    assert!(report.utilization(200) >= 0.95);
}

#[test]
fn busy_holders_receive_nearly_all_quota() {
    for busy in [1, 3] {
        let load: Load = Box::new(move |holder, _| if holder < busy { 4_000.0 } else { 5.0 });
        let name = format!("{busy} of 20 holders are busy");
        let report = World { load, ..world(Algorithm::FIXED_WINDOW, 1000, 1.0, 20) }.run_and_print(&name);
        assert!(report.utilization(1000) >= 0.97, "{name}");
        assert!(report.most_in_a_period() <= 1000);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// For any changing load, latency and assumed number of holders.
    #[test]
    fn leases_never_exceed_an_aligned_window(
        which in 0usize..2, number in 1u64..3_000, millis in 60u64..1_500, holders in 1usize..25,
        latency in 1u64..40_000, times in 0.1f64..12.0, wave in 10_000u64..2_000_000, seed: u64,
        assumed_holders in 1u64..50,
    ) {
        let each = times * number as f64 * 1000.0 / millis as f64 / holders as f64;
        let each = each.min(3_000.0);
        // Every second holder is idle half of the time, each at a time of its own.
        let load: Load = Box::new(move |holder, now| {
            let phase = (now + holder as u64 * 77_777) / wave;
            if holder.is_multiple_of(2) || phase.is_multiple_of(2) { each } else { 0.0 }
        });
        let spec = spec(number, millis, windows()[which]);
        let world = World { spec, load, holders, seconds: 4.0, latency, seed, assumed_holders, strict: false };
        let report = world.run();
        prop_assert!(report.most_in_a_period() <= number, "{} of {number}", report.most_in_a_period());
    }
}
