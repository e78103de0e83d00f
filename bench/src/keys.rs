//! Clients at random, the same in each run, and their keys as a limit would hash them.

use std::sync::Arc;

use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::{Check, Counter, KeyHash, LimitSpec};
use tokio::time::Duration;

/// The period of all rates: long enough that nothing comes back while it is measured.
pub(crate) const PERIOD: Duration = Duration::from_secs(86_400);

/// Random numbers: xorshift64, Marsaglia 2003.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

impl Random {
    /// A sequence of its own for each seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// The key of a client: spread over all bits, as a hash is.
pub(crate) fn key(client: u64) -> u128 {
    (u128::from(client) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// So many requests in [`PERIOD`], by a sliding window.
pub(crate) fn limit(scope: &str, requests: u64) -> anyhow::Result<Arc<LimitSpec>> {
    let rate = Rate {
        requests: Requests::new(requests)?,
        period: Period::from_millis(PERIOD.as_millis() as u64)?,
        algorithm: Algorithm::SLIDING_WINDOW,
    };
    Ok(Arc::new(LimitSpec::new(scope.to_owned(), vec![rate])))
}

/// The check of one request of a client, with all that has to be done anew for each.
pub(crate) fn check(limit: &Arc<LimitSpec>, key: u128) -> Check {
    Check::from_iter([Counter { limit: limit.clone(), key: KeyHash(key), cost: 1 }])
}
