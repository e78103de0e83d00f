//! Limits and clients' keys, as a policy would make them.

use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::{Algorithm, Burst, Period, Rate, Requests};
use sluice_store::{CheckRequest, Counter, KeyHash, LimitSpec};

/// The period of most rates: long enough that nothing comes back while it is measured.
pub(crate) const PERIOD: Duration = Duration::from_secs(86_400);

/// More requests than anybody sends.
pub(crate) const MANY: u64 = 1_000_000_000;

/// The key of a client: spread over all bits, as a hash is.
pub(crate) fn key(client: u64) -> u128 {
    (u128::from(client) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// So many requests in a period, by a sliding window.
fn rate(requests: u64, period: Duration) -> anyhow::Result<Rate> {
    let period = Period::from_millis(period.as_millis() as u64)?;
    Ok(Rate::new(Requests::new(requests)?, period, Algorithm::SLIDING_WINDOW)?)
}

/// So many requests in [`PERIOD`], by a sliding window.
pub(crate) fn limit(scope: &str, requests: u64) -> anyhow::Result<Arc<LimitSpec>> {
    limit_of(scope, requests, &[PERIOD])
}

/// So many requests in [`PERIOD`], by the generic cell rate algorithm, all of them at once.
pub(crate) fn gcra(scope: &str, requests: u64) -> anyhow::Result<Arc<LimitSpec>> {
    let algorithm = Algorithm::Gcra { burst: Burst::new(requests)? };
    let period = Period::from_millis(PERIOD.as_millis() as u64)?;
    let rate = Rate::new(Requests::new(requests)?, period, algorithm)?;
    Ok(Arc::new(LimitSpec::new(scope, vec![rate])))
}

/// So many requests in each period, by sliding windows.
pub(crate) fn limit_of(scope: &str, requests: u64, periods: &[Duration]) -> anyhow::Result<Arc<LimitSpec>> {
    let rates = periods.iter().map(|&period| rate(requests, period));
    Ok(Arc::new(LimitSpec::new(scope.to_owned(), rates.collect::<anyhow::Result<_>>()?)))
}

/// One request against a limit.
pub(crate) fn counter(limit: &Arc<LimitSpec>, key: u128) -> Counter {
    Counter { limit: limit.clone(), key: KeyHash(key), cost: 1 }
}

/// The check of one request of a client, with all that has to be done anew for each.
pub(crate) fn check(limit: &Arc<LimitSpec>, key: u128) -> CheckRequest {
    CheckRequest::from_iter([counter(limit, key)])
}
