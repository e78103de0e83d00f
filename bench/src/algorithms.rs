//! Every algorithm, by the name that a policy gives it.

use std::time::Duration;

use sluice_limiter::{
    Algorithm, Alignment, Bound, Burst, Decision, MaxWait, Period, Rate, Record, Requests, SubWindows, WarmUp,
};

/// A rate and its name.
pub(crate) struct Named {
    pub(crate) name: &'static str,
    pub(crate) rate: Rate,
    /// Whether it counts in windows; otherwise it is a bucket.
    pub(crate) window: bool,
    /// Whether no more than its number pass within any period, whenever they come.
    pub(crate) strict: bool,
}

/// All, each with so many requests in a period.
pub(crate) fn all(requests: u64, period: Duration) -> anyhow::Result<Vec<Named>> {
    let millis = period.as_millis() as u64;
    let slots = SubWindows::new(10)?;
    let sliding = |slots, bound| Algorithm::SlidingWindowCounter { sub_windows: slots, bound };
    let burst = |share: u64| Burst::new(requests / share);
    let named = |name, algorithm, window, strict| {
        let rate = Rate::new(Requests::new(requests)?, Period::from_millis(millis)?, algorithm)?;
        anyhow::Ok(Named { name, rate, window, strict })
    };
    [
        named("fixedWindow", Algorithm::FixedWindow(Alignment::Clock), true, false),
        named("fixedWindow, FirstRequest", Algorithm::FixedWindow(Alignment::FirstRequest), true, false),
        named("slidingWindowCounter", Algorithm::SLIDING_WINDOW, true, false),
        named("slidingWindowCounter, 10 sub-windows", sliding(slots, Bound::Estimate), true, false),
        named(
            "slidingWindowCounter, 10 sub-windows, Guaranteed",
            sliding(slots, Bound::Guaranteed),
            true,
            true,
        ),
        named(
            "slidingWindowLog",
            Algorithm::SlidingWindowLog { min_interval: 0, count_denied: false },
            true,
            true,
        ),
        named(
            "tokenBucket, burst as large as the rate",
            Algorithm::TokenBucket { burst: burst(1)? },
            false,
            false,
        ),
        named("gcra, burst of a tenth", Algorithm::Gcra { burst: burst(10)? }, false, false),
        named(
            "leakyBucket, waits up to half a period",
            Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(millis / 2)? },
            false,
            false,
        ),
        named(
            "tokenBucket, warms up for half a period",
            Algorithm::WarmUp(WarmUp::new(millis / 2, 3)?),
            false,
            false,
        ),
    ]
    .into_iter()
    .collect()
}

/// Checks one request at `now`, in microseconds, as a store does.
#[inline]
pub(crate) fn check(rate: &Rate, stored: &mut Option<Record>, now: u64) -> Decision {
    let (record, at) = rate.roll(stored.take(), now);
    let room = rate.has_room(&record, at, 1);
    let record = if room { rate.charge(record, at, 1) } else { rate.charge_denied(record, at, 1) };
    let decision = rate.decision(&record, at, 1, room, room);
    *stored = Some(record);
    decision
}
