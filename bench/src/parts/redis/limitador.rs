//! The Redis store with 256 callers, against limitador's two storages in Redis.

use std::time::Duration;

use super::load::{CALLERS, CHECKS, Load, Round, Target, Testbed, expect_all_admitted, values};
use crate::peers::limitador::start_in_redis;
use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::child::parse_pair;
use crate::support::cores::Cores;
use crate::support::keys::{UNREACHABLE, limit};
use crate::support::procfs::Processes;
use crate::support::rounds::{Side, interleave};

const ROUNDS: u64 = 3;
/// Number of checks where limitador is slow.
const FEWER_CHECKS: u64 = 25_600;
/// A limit that denies most checks, to see how closely limitador enforces it.
const LOW_LIMIT: u32 = 1_000;
/// Time in which the cached storage, which writes each second, has written what it owes Redis.
const WRITE_BACK: Duration = Duration::from_millis(1_500);

/// Measures both storages, with many keys and with one.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let testbed = Testbed::start(cores).await?;
    let mut rows = Vec::new();
    for (what, clients) in [("100k keys", 100_000), ("one hot key", 1)] {
        rows.extend(compare(&testbed, what, clients, "async", FEWER_CHECKS).await?);
        // The cached storage is slow for clients that it has not seen yet.
        let checks = if clients == 1 { CHECKS } else { FEWER_CHECKS };
        rows.extend(compare(&testbed, what, clients, "cached", checks).await?);
    }
    Ok(rows)
}

async fn compare(
    testbed: &Testbed,
    what: &str,
    clients: u64,
    kind: &str,
    checks: u64,
) -> anyhow::Result<Vec<Row>> {
    let start =
        |requests: u32| start_in_redis(kind, &testbed.redis.url, clients, requests)?.wait_until_ready();
    let mut verification = Verification::default();
    if clients == 1 {
        testbed.redis.command(&["FLUSHALL"]).await?;
        let (_, admitted) = parse_pair(&start(LOW_LIMIT)?.request(&format!("{CALLERS} {checks} 0"))?)?;
        verification.note(format!("limitador admitted {admitted} of {checks} with a limit of {LOW_LIMIT}"));
        testbed.redis.command(&["FLUSHALL"]).await?;
    }
    let load = Load::new(limit(&format!("bench/policy/{clients}"), UNREACHABLE)?, clients);
    let mut child = start(UNREACHABLE)?;
    let processes = Processes::of(child.id());
    let rounds = interleave(ROUNDS, async |side, round| {
        if side == Side::Sluice {
            return testbed.run(Target::Store, &load, round).await;
        }
        let (client, redis) = (processes.cpu()?, testbed.redis.processes.cpu()?);
        let (nanos, admitted) = parse_pair(&child.request(&format!("{CALLERS} {checks} {round}"))?)?;
        let wall = Duration::from_nanos(nanos as u64);
        if kind == "cached" {
            tokio::time::sleep(WRITE_BACK).await;
        }
        let client_cpu = processes.cpu_since(&client)?;
        let redis_cpu = testbed.redis.processes.cpu_since(&redis)?;
        Ok(Round { checks, admitted, wall, client_cpu, redis_cpu })
    })
    .await?;
    expect_all_admitted(&mut verification, &rounds);

    // The cached storage has no aim: it decides from its own memory, without Redis.
    let (name, aim) = match kind {
        "cached" => ("limitador, CachedRedisStorage (decides without Redis, writes each second)", None),
        _ => ("limitador, AsyncRedisStorage", Some(Aim::RatioAtLeast(3.0))),
    };
    let row = |title: &str, unit: &str, value: fn(&Round) -> f64| {
        let what = format!("Redis store: {what}, {title}");
        let row = Row::compared(what, unit, &values(&rounds, value), name, &verification);
        Row { aim, ..row }
    };
    Ok(vec![
        row("throughput", "checks/s", Round::throughput),
        row("checks per CPU of client and Redis", "checks/CPU s", Round::checks_per_cpu_second),
    ])
}
