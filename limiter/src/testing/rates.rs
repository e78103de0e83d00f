//! Rates for tests.

use proptest::prelude::*;

use crate::{
    Algorithm, Alignment, Bound, Burst, Decision, MAX_COUNT, MAX_PERIOD_MS, MaxWait, Period, Rate, Record,
    Requests, Soft, SubWindows, WarmUp,
};

/// Returns a hard rate.
pub(crate) fn rate(requests: u64, period: u64, algorithm: Algorithm) -> Rate {
    Rate::new(Requests::new(requests).unwrap(), Period::from_millis(period).unwrap(), algorithm).unwrap()
}

/// Returns a sliding-window counter.
pub(crate) fn sliding(sub_windows: u64, bound: Bound) -> Algorithm {
    Algorithm::SlidingWindowCounter { sub_windows: SubWindows::new(sub_windows).unwrap(), bound }
}

/// Generates every algorithm except concurrency.
pub(crate) fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let bound = prop_oneof![Just(Bound::Estimate), Just(Bound::Guaranteed)];
    let burst = prop_oneof![1u64..30, 1u64..2000].prop_map(|burst| Burst::new(burst).unwrap());
    prop_oneof![
        (prop_oneof![Just(1u64), 1u64..=60], bound)
            .prop_map(|(sub_windows, bound)| sliding(sub_windows, bound)),
        Just(Algorithm::FixedWindow(Alignment::Clock)),
        Just(Algorithm::FixedWindow(Alignment::FirstRequest)),
        Just(Algorithm::FixedWindow(Alignment::Spread)),
        prop_oneof![Just(0u64), 0u64..60_000]
            .prop_map(|min_interval| Algorithm::SlidingWindowLog { min_interval }),
        burst.clone().prop_map(|burst| Algorithm::TokenBucket { burst }),
        burst.prop_map(|burst| Algorithm::Gcra { burst }),
        (0u64..100_000)
            .prop_map(|wait| Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(wait).unwrap() }),
        (1u64..100_000, 2u64..10)
            .prop_map(|(millis, factor)| Algorithm::WarmUp(WarmUp::new(millis, factor).unwrap())),
    ]
}

/// Generates rates of every algorithm, with small and with extreme numbers. Numbers that do not fit together
/// are adapted.
pub(crate) fn any_rate() -> impl Strategy<Value = Rate> {
    let requests = prop_oneof![3 => 0u64..20, 1 => 0..=MAX_COUNT, 1 => Just(MAX_COUNT)];
    let period = prop_oneof![1u64..50, 1..=MAX_PERIOD_MS, Just(1000), Just(60_000), Just(MAX_PERIOD_MS)];
    let soft = proptest::option::weighted(0.3, (1u64..200, 1u64..100_000));
    let numbers = (requests, period, any_algorithm());
    (numbers, soft, proptest::bool::weighted(0.3)).prop_map(
        |((mut requests, mut period, mut algorithm), soft, counts)| {
            match &mut algorithm {
                Algorithm::SlidingWindowCounter { sub_windows, .. } => {
                    let sub_windows = u64::from(sub_windows.get());
                    period = (period / sub_windows).max(1) * sub_windows;
                    period = period.min(MAX_PERIOD_MS / sub_windows * sub_windows);
                }
                Algorithm::SlidingWindowLog { min_interval } => {
                    requests %= 200;
                    *min_interval %= period + 1;
                }
                Algorithm::TokenBucket { burst } | Algorithm::Gcra { burst } => {
                    let most = u128::from(requests.max(1)) * u128::from(MAX_PERIOD_MS) / u128::from(period);
                    *burst = Burst::new(burst.get().min(most as u64).max(1)).unwrap();
                }
                Algorithm::WarmUp(warm_up) => period = period.min(MAX_PERIOD_MS / warm_up.cold_factor()),
                _ => {}
            }
            let rate = rate(requests, period, algorithm);
            let soft = soft.map(|(percent, millis)| Soft::new(percent, millis).unwrap());
            let rate = soft.and_then(|soft| rate.with_soft(soft).ok()).unwrap_or(rate);
            if counts { rate.counting_denied().unwrap_or(rate) } else { rate }
        },
    )
}

/// Makes one check of one rate, as a store does.
pub(crate) fn check(rate: &Rate, stored: Option<Record>, now: u64, cost: u64) -> (Record, Decision) {
    let (record, at) = rate.roll(stored, now);
    let room = rate.has_room(&record, at, cost);
    let record = if room { rate.charge(record, at, cost) } else { rate.charge_denied(record, at, cost) };
    let decision = rate.decision(&record, at, cost, room, room);
    (record, decision)
}
