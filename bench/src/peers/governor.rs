//! The `governor` crate: GCRA with one instant a key, in memory.

use std::num::NonZeroU32;

use anyhow::Context as _;
use governor::clock::DefaultClock;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};

use crate::support::keys::PERIOD;

/// The peer's name in the table.
pub(crate) const NAME: &str = "governor (DashMap, foldhash)";

/// `governor` with its default store, and with a hasher that is faster than its default.
pub(crate) type Governor = RateLimiter<u128, DefaultKeyedStateStore<u128, Hasher>, DefaultClock>;
type Hasher = foldhash::fast::RandomState;

/// Builds a limiter of `requests` in [`PERIOD`], with a burst of all of them.
pub(crate) fn governor(requests: u32) -> anyhow::Result<Governor> {
    let burst = NonZeroU32::new(requests).context("a rate needs at least one request")?;
    let quota = Quota::with_period(PERIOD / requests).context("the rate is too fast for governor")?;
    Ok(RateLimiter::dashmap_with_hasher(quota.allow_burst(burst), Hasher::default()))
}
