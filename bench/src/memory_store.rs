//! The memory store against keyed `governor`: one thread, the same clients in the same order, the same rate. Both
//! are given keys that are hashed already, as the sidecar does; both read a clock for each check.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use governor::clock::DefaultClock;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};
use sluice_store::{Clock, MemoryStore};

use crate::keys::{PERIOD, Random, check, key, limit};
use crate::row::{Checks, Row};

const ROUNDS: usize = 7;
const CHECKS: usize = 1_000_000;
const NAME: &str = "governor (DashMap, foldhash)";

/// `governor` with its default store, and with the hasher of the memory store, which is faster than its default.
type Governor = RateLimiter<u128, DefaultKeyedStateStore<u128, Hasher>, DefaultClock>;
type Hasher = foldhash::fast::RandomState;

struct Case {
    what: &'static str,
    clients: u64,
    requests: u32,
    /// How many of [`CHECKS`] on fresh counters are to be admitted.
    admitted: u64,
}

const CASES: [Case; 4] = [
    Case { what: "one hot key, admitted", clients: 1, requests: MANY, admitted: CHECKS as u64 },
    Case { what: "one hot key, denied", clients: 1, requests: 1_000, admitted: 1_000 },
    Case { what: "100k keys, admitted", clients: 100_000, requests: MANY, admitted: CHECKS as u64 },
    Case { what: "1M keys, admitted", clients: 1_000_000, requests: MANY, admitted: CHECKS as u64 },
];
const MANY: u32 = 1_000_000_000;

/// Measures all cases.
pub(crate) fn measure() -> anyhow::Result<Vec<Row>> {
    CASES.iter().map(one).collect()
}

fn one(case: &Case) -> anyhow::Result<Row> {
    let Case { what, clients, requests, admitted } = *case;
    let number = NonZeroU32::new(requests).context("a rate of nothing")?;
    let quota = Quota::with_period(PERIOD / requests).context("a rate too fast")?.allow_burst(number);
    let governor: Governor = RateLimiter::dashmap_with_hasher(quota, Hasher::default());
    let store = MemoryStore::new(2 * clients as usize + 1_000, Clock::system());
    let limit = limit("bench/policy/limit", u64::from(requests))?;

    let ours = |keys: &[u128]| count(keys, |key| store.check(&check(&limit, key)).admitted);
    let peers = |keys: &[u128]| count(keys, |key| governor.check_key(&key).is_ok());

    // First on fresh counters, where the right number is known; then every client is known.
    let mut random = Random::new(1);
    let keys: Vec<u128> = (0..CHECKS).map(|_| key(random.below(clients))).collect();
    let mut checks = Checks::default();
    checks.both(&format!("admitted of {CHECKS} on fresh counters"), ours(&keys).1, peers(&keys).1, admitted);
    let all: Vec<u128> = (0..clients).map(key).collect();
    ours(&all);
    peers(&all);

    let mut rounds = Vec::new();
    let mut admitted_later = (0, 0);
    for round in 0..ROUNDS {
        // Who goes first alternates.
        let (mine, theirs) = if round % 2 == 0 {
            let mine = ours(&keys);
            (mine, peers(&keys))
        } else {
            let theirs = peers(&keys);
            (ours(&keys), theirs)
        };
        let nanos = |time: Duration| time.as_nanos() as f64 / CHECKS as f64;
        rounds.push((nanos(mine.0), nanos(theirs.0)));
        admitted_later = (admitted_later.0 + mine.1, admitted_later.1 + theirs.1);
    }
    let expected = if requests == MANY { (ROUNDS * CHECKS) as u64 } else { 0 };
    checks.both("admitted while measured", admitted_later.0, admitted_later.1, expected);
    Ok(Row::compared(format!("memory store: {what}"), "ns/check", &rounds, NAME, &checks))
}

/// How long it took to ask for all, and how many were admitted.
fn count(keys: &[u128], mut admit: impl FnMut(u128) -> bool) -> (Duration, u64) {
    let start = Instant::now();
    let admitted = keys.iter().filter(|&&key| black_box(admit(black_box(key)))).count();
    (start.elapsed(), admitted as u64)
}
