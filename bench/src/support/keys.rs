//! Limits and client keys, built as a policy would build them.

use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::{Algorithm, Burst, Period, Rate, Requests};
use sluice_store::{CheckRequest, Counter, KeyHash, LimitSpec};

/// The period of most rates: long enough that no quota returns during a measurement.
pub(crate) const PERIOD: Duration = Duration::from_secs(86_400);

/// More requests than any part sends.
pub(crate) const UNREACHABLE: u32 = 1_000_000_000;

/// The key of a client, spread over all bits like a hash.
pub(crate) fn key(client: u64) -> u128 {
    (u128::from(client) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// A limit of `requests` in [`PERIOD`], by a sliding window.
pub(crate) fn limit(scope: &str, requests: u32) -> anyhow::Result<Arc<LimitSpec>> {
    limit_of_periods(scope, requests, &[PERIOD])
}

/// A limit of `requests` in [`PERIOD`], by a sliding window, with a maximum number of keys.
pub(crate) fn limit_of_keys(scope: &str, requests: u32, max_keys: u64) -> anyhow::Result<Arc<LimitSpec>> {
    let rates = vec![rate(requests, PERIOD, Algorithm::SLIDING_WINDOW)?];
    Ok(Arc::new(LimitSpec::new(scope, rates).with_max_keys(max_keys)))
}

/// A limit of `requests` in each of the periods, by sliding windows.
pub(crate) fn limit_of_periods(
    scope: &str,
    requests: u32,
    periods: &[Duration],
) -> anyhow::Result<Arc<LimitSpec>> {
    let rates = periods.iter().map(|&period| rate(requests, period, Algorithm::SLIDING_WINDOW));
    Ok(Arc::new(LimitSpec::new(scope.to_owned(), rates.collect::<anyhow::Result<_>>()?)))
}

/// A limit of `requests` in [`PERIOD`] by GCRA, with a burst of all of them.
pub(crate) fn gcra_limit(scope: &str, requests: u32) -> anyhow::Result<Arc<LimitSpec>> {
    let algorithm = Algorithm::Gcra { burst: Burst::new(u64::from(requests))? };
    Ok(Arc::new(LimitSpec::new(scope, vec![rate(requests, PERIOD, algorithm)?])))
}

fn rate(requests: u32, period: Duration, algorithm: Algorithm) -> anyhow::Result<Rate> {
    let period = Period::from_millis(period.as_millis() as u64)?;
    Ok(Rate::new(Requests::new(u64::from(requests))?, period, algorithm)?)
}

/// The counter of a limit for one key, with a cost of 1.
pub(crate) fn counter(limit: &Arc<LimitSpec>, key: u128) -> Counter {
    Counter { limit: limit.clone(), key: KeyHash(key), cost: 1 }
}

/// A check of a single counter.
pub(crate) fn check(limit: &Arc<LimitSpec>, key: u128) -> CheckRequest {
    CheckRequest::from_iter([counter(limit, key)])
}
