//! Time of a check of the memory store, against `governor` and limitador's storage in memory: the same
//! clients in the same order at the same rate, in one thread and in two. Each is called in its cheapest way:
//! with hashed keys for Sluice and `governor`, with prepared counters for limitador. All read a clock for
//! each check. Sluice counts by its default algorithm, and in one case by GCRA, like `governor`.

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sluice_store::{Clock, KeyHash, LimitSpec, MemoryStore};

use crate::peers::governor::{self, governor};
use crate::peers::limitador;
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::child::{Child, parse_pair};
use crate::support::keys::{UNREACHABLE, counter, gcra_limit, key, limit};
use crate::support::random::Random;

const ROUNDS: u64 = 5;
/// The ways to call limitador, by the command of its program and the name in the table.
const LIMITADOR: [(&str, &str); 2] = [
    ("storage", "limitador, its storage with prepared counters"),
    ("limiter", "limitador, its limiter with prepared contexts"),
];

struct Case {
    what: &'static str,
    /// Builds Sluice's limit.
    limit: fn(&str, u32) -> anyhow::Result<Arc<LimitSpec>>,
    clients: u64,
    requests: u32,
    threads: &'static [u64],
    /// Checks in each thread and round.
    checks: u64,
    /// Checks in each thread and round for each of [`LIMITADOR`]; 0 leaves it out.
    limitador_checks: [u64; 2],
}

const CASES: [Case; 4] = [
    Case {
        what: "one hot key",
        limit,
        clients: 1,
        requests: UNREACHABLE,
        threads: &[1, 2],
        checks: 500_000,
        limitador_checks: [200_000, 40_000],
    },
    Case {
        what: "one hot key, denied",
        limit,
        clients: 1,
        requests: 1_000,
        threads: &[1],
        checks: 500_000,
        limitador_checks: [200_000, 0],
    },
    Case {
        what: "one hot key, GCRA",
        limit: gcra_limit,
        clients: 1,
        requests: UNREACHABLE,
        threads: &[1, 2],
        checks: 500_000,
        limitador_checks: [0, 0],
    },
    Case {
        what: "1M keys",
        limit,
        clients: 1_000_000,
        requests: UNREACHABLE,
        threads: &[1, 2],
        checks: 300_000,
        limitador_checks: [40_000, 0],
    },
];

/// Measures all cases.
pub(crate) fn measure() -> anyhow::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for case in &CASES {
        rows.extend(measure_case(case)?);
    }
    Ok(rows)
}

fn measure_case(case: &Case) -> anyhow::Result<Vec<Row>> {
    let Case { clients, requests, .. } = *case;
    // limitador creates its counters while the other two are filled.
    let limitador = limitador::start_in_memory(clients, requests)?;
    let governor = governor(requests)?;
    let store = MemoryStore::new(2 * clients as usize + 1_000, Clock::system());
    let limit = (case.limit)("bench/policy/limit", requests)?;

    let call_store = |keys: &[u128]| {
        let mut counter = counter(&limit, 0);
        time_checks(keys, |key| {
            counter.key = KeyHash(key);
            store.check(std::slice::from_ref(&counter)).admitted
        })
    };
    let call_governor = |keys: &[u128]| time_checks(keys, |key| governor.check_key(&key).is_ok());

    // On fresh counters the number of admitted requests is known. Each client sends equally many.
    let all: Vec<u128> = (0..clients.max(100_000)).map(|client| key(client % clients)).collect();
    let admitted = (all.len() as u64).min(clients * u64::from(requests));
    let mut fresh = Verification::default();
    let what = format!("admitted of {} on fresh counters", all.len());
    fresh.expect_both(&what, call_store(&all).1, call_governor(&all).1, admitted);
    let mut limitador = limitador.wait_until_ready()?;

    let mut rows = Vec::new();
    for &threads in case.threads {
        let mut measured = Rounds::default();
        for round in 0..=ROUNDS {
            let keys = random_keys(case, threads, round);
            // The implementation that goes first rotates.
            for turn in 0..4 {
                let implementation = ((round + turn) % 4) as usize;
                let found = match implementation {
                    0 => in_threads(&keys, call_store)?,
                    1 => in_threads(&keys, call_governor)?,
                    other if case.limitador_checks[other - 2] == 0 => continue,
                    other => call_limitador(&mut limitador, case, other - 2, threads, round)?,
                };
                if round > 0 {
                    measured[implementation].push(found);
                }
            }
        }
        rows.extend(compare(case, threads, &measured, &fresh));
    }
    Ok(rows)
}

/// Nanoseconds a check and number of admitted checks, for each round of the store, of governor, and of each
/// of [`LIMITADOR`].
type Rounds = [Vec<(f64, u64)>; 4];

fn compare(case: &Case, threads: u64, measured: &Rounds, fresh: &Verification) -> Vec<Row> {
    let admitted = |implementation: usize| measured[implementation].iter().map(|round| round.1).sum::<u64>();
    let expected = |checks: u64| if case.requests == UNREACHABLE { ROUNDS * threads * checks } else { 0 };
    let title =
        format!("memory store: {}, {}", case.what, if threads == 1 { "1 thread" } else { "2 threads" });
    let row = |peer: usize, name: &str, aim: f64, mut verification: Verification, peer_checks: u64| {
        verification.expect("Sluice: admitted while measured", admitted(0), expected(case.checks));
        verification.expect("peer: admitted while measured", admitted(peer), expected(peer_checks));
        let rounds: Vec<_> =
            measured[0].iter().zip(&measured[peer]).map(|(ours, peers)| (ours.0, peers.0)).collect();
        Row::compared(title.clone(), "ns/check", &rounds, name, &verification).with_aim(Aim::RatioAtMost(aim))
    };
    let mut rows = vec![row(1, governor::NAME, 1.0 / 1.5, fresh.clone(), case.checks)];
    for (index, (&checks, (_, name))) in case.limitador_checks.iter().zip(LIMITADOR).enumerate() {
        if checks > 0 {
            rows.push(row(index + 2, name, 1.0 / 5.0, Verification::default(), checks));
        }
    }
    rows
}

/// Returns the keys that each thread checks in a round.
fn random_keys(case: &Case, threads: u64, round: u64) -> Vec<Vec<u128>> {
    (0..threads)
        .map(|thread| {
            let mut random = Random::new(round * threads + thread + 1);
            (0..case.checks).map(|_| key(random.below(case.clients))).collect()
        })
        .collect()
}

fn call_limitador(
    child: &mut Child,
    case: &Case,
    way: usize,
    threads: u64,
    round: u64,
) -> anyhow::Result<(f64, u64)> {
    let (command, checks) = (LIMITADOR[way].0, case.limitador_checks[way]);
    parse_pair(&child.request(&format!("{command} {threads} {checks} {round}"))?)
}

/// Checks all keys, and returns the time that took and the number of admitted checks.
fn time_checks(keys: &[u128], mut admit: impl FnMut(u128) -> bool) -> (Duration, u64) {
    let start = Instant::now();
    let admitted = keys.iter().filter(|&&key| black_box(admit(black_box(key)))).count();
    (start.elapsed(), admitted as u64)
}

/// Runs one thread for each list of keys. Returns the nanoseconds a check within a thread, and the number of
/// admitted checks of all threads.
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
