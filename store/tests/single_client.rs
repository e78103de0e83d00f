//! The commands about a single client: a look at its counter, and a reset.
//!
//! - [`peek`]: a look changes nothing.
//! - [`reset`]: a reset client has its whole quota.

mod peek;
mod reset;

use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::{Algorithm, Burst, Period, Rate, Requests};
use sluice_store::{KeyHash, Limiter, LimiterOptions, RedisOptions, RedisStore};

use crate::support::Redis;

crate::servers::pass_with_other_servers!();

/// Generous, so that a loaded machine does not fail a test of something else.
const BUDGET: Duration = Duration::from_secs(10);
/// A key whose higher half differs from those of others, as that of a hash does.
const CLIENT: KeyHash = KeyHash(7 << 64);

fn period(minutes: u64) -> Period {
    Period::from_millis(minutes * 60_000).unwrap()
}

fn rate(requests: u64, algorithm: Algorithm) -> Rate {
    Rate::new(Requests::new(requests).unwrap(), period(600), algorithm).unwrap()
}

/// Returns limits of several kinds that admit two requests, with names.
fn limits() -> Vec<(&'static str, Vec<Rate>)> {
    let window = rate(2, Algorithm::FIXED_WINDOW);
    let block = Rate::block(Requests::new(3).unwrap(), period(600), period(700)).unwrap();
    vec![
        ("window", vec![window]),
        ("sliding", vec![rate(2, Algorithm::SLIDING_WINDOW)]),
        ("counts-denied", vec![Rate { count_denied: true, ..window }]),
        ("gcra", vec![rate(600, Algorithm::Gcra { burst: Burst::new(2).unwrap() })]),
        ("log", vec![rate(2, Algorithm::SlidingWindowLog { min_interval: 0 })]),
        ("blocks", vec![window, block]),
        ("two", vec![window, Rate { period: period(60), ..rate(9, Algorithm::FIXED_WINDOW) }]),
    ]
}

fn options(redis: &Redis) -> RedisOptions {
    RedisOptions { latency_budget: BUDGET, ..RedisOptions::from_url(&redis.url()).unwrap() }
}

fn in_redis(options: &RedisOptions) -> Limiter {
    let store = Arc::new(RedisStore::start(options.clone()).unwrap());
    Limiter::in_redis(store, &limiter_options(), None)
}

fn limiter_options() -> LimiterOptions {
    LimiterOptions { latency_budget: BUDGET, ..LimiterOptions::default() }
}
