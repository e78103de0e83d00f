//! The memory store against keyed `governor` and against `limitador`'s storage in memory: the same clients in the same
//! order, the same rate, in one thread and in two. Each is asked in the cheapest way that it has: keys that are hashed
//! already for `governor` and Sluice, counters that are ready for `limitador`. All read a clock for each check. Sluice counts
//! by its default algorithm, and in a case of its own by that of `governor`.

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use governor::clock::DefaultClock;
use governor::state::keyed::DefaultKeyedStateStore;
use governor::{Quota, RateLimiter};
use sluice_store::{Clock, KeyHash, LimitSpec, MemoryStore};

use crate::child::{Child, numbers};
use crate::keys::{PERIOD, counter, gcra, key, limit};
use crate::random::Random;
use crate::row::{Aim, Checks, Row};

const ROUNDS: u64 = 5;
const GOVERNOR: &str = "governor (DashMap, foldhash)";

/// `governor` with its default store, and with a hasher that is faster than its default.
type Governor = RateLimiter<u128, DefaultKeyedStateStore<u128, Hasher>, DefaultClock>;
type Hasher = foldhash::fast::RandomState;

struct Case {
    what: &'static str,
    /// What Sluice counts by.
    limit: fn(&str, u64) -> anyhow::Result<Arc<LimitSpec>>,
    clients: u64,
    requests: u32,
    threads: &'static [u64],
    /// How many are asked in each thread and round.
    checks: u64,
    /// Of `limitador`, by its storage alone and as a whole.
    limitador: [u64; 2],
}

const CASES: [Case; 4] = [
    Case {
        what: "one hot key",
        limit,
        clients: 1,
        requests: MANY,
        threads: &[1, 2],
        checks: 500_000,
        limitador: [200_000, 40_000],
    },
    Case {
        what: "one hot key, denied",
        limit,
        clients: 1,
        requests: 1_000,
        threads: &[1],
        checks: 500_000,
        limitador: [200_000, 0],
    },
    Case {
        what: "one hot key, GCRA",
        limit: gcra,
        clients: 1,
        requests: MANY,
        threads: &[1, 2],
        checks: 500_000,
        limitador: [0, 0],
    },
    Case {
        what: "1M keys",
        limit,
        clients: 1_000_000,
        requests: MANY,
        threads: &[1, 2],
        checks: 300_000,
        limitador: [40_000, 0],
    },
];
const MANY: u32 = crate::keys::MANY as u32;
/// What is asked of `limitador`, and its name.
const WAYS: [(&str, &str); 2] = [
    ("storage", "limitador, its storage alone with counters that are ready"),
    ("limiter", "limitador, its limiter with contexts that are ready"),
];

/// Measures all cases.
pub(crate) fn measure() -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for case in &CASES {
        rows.extend(one(case)?);
    }
    Ok(rows)
}

fn one(case: &Case) -> anyhow::Result<Vec<Row>> {
    let Case { what, limit, clients, requests, threads, checks: each, limitador } = *case;
    // It fills its storage while ours are filled.
    let peer = Child::limitador(&["memory", &clients.to_string(), &requests.to_string()]);
    let number = NonZeroU32::new(requests).context("a rate of nothing")?;
    let quota = Quota::with_period(PERIOD / requests).context("a rate too fast")?.allow_burst(number);
    let governor: Governor = RateLimiter::dashmap_with_hasher(quota, Hasher::default());
    let store = MemoryStore::new(2 * clients as usize + 1_000, Clock::system());
    let limit = limit("bench/policy/limit", u64::from(requests))?;

    let ours = |keys: &[u128]| {
        let mut counter = counter(&limit, 0);
        count(keys, |key| {
            counter.key = KeyHash(key);
            store.check(std::slice::from_ref(&counter)).admitted
        })
    };
    let governors = |keys: &[u128]| count(keys, |key| governor.check_key(&key).is_ok());

    // First on fresh counters, where the right number is known: of each client as often.
    let all: Vec<u128> = (0..clients.max(100_000)).map(|client| key(client % clients)).collect();
    let admitted = (all.len() as u64).min(clients * u64::from(requests));
    let mut first = Checks::default();
    let text = format!("admitted of {} on fresh counters", all.len());
    first.both(&text, ours(&all).1, governors(&all).1, admitted);
    let mut peer = peer.and_then(Child::ready)?;

    let mut rows = Vec::new();
    for &threads in threads {
        let mut measured: [Vec<(f64, u64)>; 4] = Default::default();
        for round in 0..=ROUNDS {
            let keys: Vec<Vec<u128>> = (0..threads)
                .map(|thread| {
                    let mut random = Random::new(round * threads + thread + 1);
                    (0..each).map(|_| key(random.below(clients))).collect()
                })
                .collect();
            // Who goes first goes round.
            for turn in 0..4 {
                let side = ((round + turn) % 4) as usize;
                let found = match side {
                    0 => in_threads(&keys, ours)?,
                    1 => in_threads(&keys, governors)?,
                    way if limitador[way - 2] == 0 => continue,
                    way => {
                        let (way, checks) = (WAYS[way - 2].0, limitador[way - 2]);
                        numbers(&peer.ask(&format!("{way} {threads} {checks} {round}"))?)?
                    }
                };
                if round > 0 {
                    measured[side].push(found);
                }
            }
        }
        let passed = |side: usize| measured[side].iter().map(|round| round.1).sum::<u64>();
        let expected = |checks: u64| if requests == MANY { ROUNDS * threads * checks } else { 0 };
        let title = format!("memory store: {what}, {}", if threads == 1 { "1 thread" } else { "2 threads" });
        let row = |side: usize, name: &str, aim: f64, mut checks: Checks, asked: u64| {
            checks.one("Sluice: admitted while measured", passed(0), expected(each));
            checks.one("peer: admitted while measured", passed(side), expected(asked));
            let both = measured[0].iter().zip(&measured[side]);
            let rounds: Vec<_> = both.map(|(ours, peer)| (ours.0, peer.0)).collect();
            Row::compared(title.clone(), "ns/check", &rounds, name, &checks).aim(Aim::RatioAtMost(aim))
        };
        rows.push(row(1, GOVERNOR, 1.0 / 1.5, first.clone(), each));
        for (side, (&asked, (_, name))) in limitador.iter().zip(WAYS).enumerate() {
            if asked > 0 {
                rows.push(row(side + 2, name, 1.0 / 5.0, Checks::default(), asked));
            }
        }
    }
    Ok(rows)
}

/// How long it took to ask for all, and how many were admitted.
fn count(keys: &[u128], mut admit: impl FnMut(u128) -> bool) -> (Duration, u64) {
    let start = Instant::now();
    let admitted = keys.iter().filter(|&&key| black_box(admit(black_box(key)))).count();
    (start.elapsed(), admitted as u64)
}

/// The nanoseconds of a check in each thread, and how many were admitted in all.
fn in_threads(
    keys: &[Vec<u128>],
    work: impl Fn(&[u128]) -> (Duration, u64) + Sync,
) -> anyhow::Result<(f64, u64)> {
    let (barrier, work) = (&Barrier::new(keys.len()), &work);
    let run = |keys: &[u128]| {
        barrier.wait();
        work(keys)
    };
    let found: Vec<_> = std::thread::scope(|scope| {
        let spawned: Vec<_> = keys.iter().map(|keys| scope.spawn(move || run(keys))).collect();
        spawned.into_iter().map(|thread| thread.join().ok().context("a thread panicked")).collect()
    });
    let found = found.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let time: Duration = found.iter().map(|found| found.0).sum();
    let checks: usize = keys.iter().map(Vec::len).sum();
    Ok((time.as_nanos() as f64 / checks as f64, found.iter().map(|found| found.1).sum()))
}
