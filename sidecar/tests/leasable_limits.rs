//! Which limits can be leased is decided in two crates: one validates policies, the other takes quota leases.

use std::sync::Arc;

use sluice_limiter::{
    Algorithm, Alignment, Bound, Burst, MaxWait, Period, Rate, Requests, Soft, SubWindows, WarmUp,
};
use sluice_store::LimitSpec;
use sluice_store::{Consistency, LimitPlan, OnStoreFailure, Replicas};

/// The longest period, in milliseconds.
const YEAR: u64 = 366 * 24 * 3_600_000;

#[test]
fn validation_and_the_store_agree_on_which_limits_can_be_leased() {
    let mut rates = Vec::new();
    for millis in [1, 40, 50, 60, 999, 1_000, 1_200, 3_000, 60_000, YEAR] {
        for requests in [0, 1, 7, 1_000] {
            let burst = |n| Burst::new(n).unwrap();
            let window = |sub_windows| Algorithm::SlidingWindowCounter {
                sub_windows: SubWindows::new(sub_windows).unwrap(),
                bound: Bound::Estimate,
            };
            for algorithm in [
                window(1),
                window(20),
                Algorithm::FixedWindow(Alignment::FirstRequest),
                Algorithm::FIXED_WINDOW,
                Algorithm::TokenBucket { burst: burst(1) },
                Algorithm::TokenBucket { burst: burst(1_000) },
                Algorithm::Gcra { burst: burst(20) },
                Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(1_000).unwrap() },
                Algorithm::SlidingWindowLog { min_interval: 0, count_denied: false },
                Algorithm::WarmUp(WarmUp::new(1_000, 3).unwrap()),
            ] {
                let (requests, period) =
                    (Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap());
                let rate = Rate::new(requests, period, algorithm);
                rates.extend(rate.ok());
                rates.extend(rate.ok().and_then(|rate| rate.with_soft(Soft::new(20, 1_000).unwrap()).ok()));
            }
        }
    }
    let (mut can, mut cannot) = (0, 0);
    for (n, rate) in rates.iter().enumerate() {
        for rates in [vec![*rate], vec![*rate, rates[(n * 7 + 3) % rates.len()]]] {
            let valid = sluice_config::lease::can_be_leased(&rates);
            let spec = Arc::new(LimitSpec::new("n/p/l", rates.clone()));
            let plan =
                LimitPlan::new(spec, Consistency::Leased, OnStoreFailure::Share, false, Replicas::alone());
            assert_eq!(valid, plan.is_leased(), "{rates:?}");
            *(if valid { &mut can } else { &mut cannot }) += 1;
        }
    }
    assert!(can > 100 && cannot > 100, "{can} {cannot}");
}
