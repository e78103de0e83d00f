//! Every algorithm, by the name that a policy gives it.

use std::time::Duration;

use sluice_limiter::{
    Algorithm, Alignment, Bound, Burst, Decision, MaxWait, Period, Rate, Record, Requests, SubWindows, WarmUp,
};

/// A rate with its name.
pub(super) struct NamedRate {
    pub(super) name: &'static str,
    pub(super) rate: Rate,
    pub(super) kind: Kind,
    /// Whether any interval of one period admits at most the rate's requests.
    pub(super) is_strict: bool,
}

/// How an algorithm counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Window,
    Bucket,
}

/// Returns all algorithms with the same rate.
pub(super) fn all(requests: u64, period: Duration) -> anyhow::Result<Vec<NamedRate>> {
    use Kind::{Bucket, Window};
    let millis = period.as_millis() as u64;
    let sub_windows = SubWindows::new(10)?;
    let sliding = |bound| Algorithm::SlidingWindowCounter { sub_windows, bound };
    let named = |name, algorithm, kind, is_strict| {
        let rate = Rate::new(Requests::new(requests)?, Period::from_millis(millis)?, algorithm)?;
        anyhow::Ok(NamedRate { name, rate, kind, is_strict })
    };
    let log = Algorithm::SlidingWindowLog { min_interval: 0 };
    let token_bucket = Algorithm::TokenBucket { burst: Burst::new(requests)? };
    let gcra = Algorithm::Gcra { burst: Burst::new(requests / 10)? };
    let leaky_bucket = Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(millis / 2)? };
    let warm_up = Algorithm::WarmUp(WarmUp::new(millis / 2, 3)?);
    [
        named("fixedWindow", Algorithm::FixedWindow(Alignment::Clock), Window, false),
        named("fixedWindow, FirstRequest", Algorithm::FixedWindow(Alignment::FirstRequest), Window, false),
        named("slidingWindowCounter", Algorithm::SLIDING_WINDOW, Window, false),
        named("slidingWindowCounter, 10 sub-windows", sliding(Bound::Estimate), Window, false),
        named("slidingWindowCounter, 10 sub-windows, Guaranteed", sliding(Bound::Guaranteed), Window, true),
        named("slidingWindowLog", log, Window, true),
        named("tokenBucket, burst as large as the rate", token_bucket, Bucket, false),
        named("gcra, burst of a tenth", gcra, Bucket, false),
        named("leakyBucket, waits up to half a period", leaky_bucket, Bucket, false),
        named("tokenBucket, warms up for half a period", warm_up, Bucket, false),
    ]
    .into_iter()
    .collect()
}

/// Checks one request at `now`, in microseconds, like a store.
#[inline]
pub(super) fn check(rate: &Rate, stored: &mut Option<Record>, now: u64) -> Decision {
    let (record, at) = rate.roll(stored.take(), now);
    let room = rate.has_room(&record, at, 1);
    let record = if room { rate.charge(record, at, 1) } else { rate.charge_denied(record, at, 1) };
    let decision = rate.decision(&record, at, 1, room, room);
    *stored = Some(record);
    decision
}
