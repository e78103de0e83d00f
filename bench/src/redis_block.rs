//! How long one call keeps Redis from serving others: the largest batches that the store makes, by Redis's slow log.
//! Many more callers wait at once than fit into a call, each for another client.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use redis::Value;
use sluice_store::{CheckRequest, LimitSpec, RedisStore};

use crate::cores::Cores;
use crate::keys::{MANY, PERIOD, counter, key, limit, limit_of};
use crate::redis_server::RedisServer;
use crate::row::{Aim, Checks, Row, Sample};

const ROUNDS: u64 = 7;
const CALLERS: u64 = 4_000;

/// Measures several kinds of batches.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(cores).await?;
    let store = redis.store().await?;
    redis.tell(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await?;
    redis.tell(&["CONFIG", "SET", "slowlog-max-len", "100000"]).await?;
    let days: Vec<Duration> = (1..=8).map(|days| days * PERIOD).collect();
    let (one, eight) = (limit("bench/policy/one", MANY)?, limit_of("bench/policy/eight", MANY, &days)?);
    let (beside, global) = (limit("bench/policy/beside", MANY)?, limit("bench/policy/global", MANY)?);
    let mut rows = Vec::new();
    for (what, limits) in [
        ("one rate", vec![(one, true)]),
        ("eight rates", vec![(eight, true)]),
        ("one rate, and a limit for all", vec![(beside, true), (global, false)]),
    ] {
        for known in [false, true] {
            let mut longest = Vec::new();
            let (mut calls, before) = (0, redis.processes.cpu()?);
            for round in 0..ROUNDS {
                // Known clients are those of the round before; the first round made them.
                let clients = if known { 0 } else { round };
                redis.tell(&["SLOWLOG", "RESET"]).await?;
                all_at_once(&store, &limits, clients).await?;
                let times = times(&redis).await?;
                calls += times.len();
                longest.push(times.into_iter().max().context("no call was logged")? as f64 / 1e3);
            }
            let mut checks = Checks::default();
            let cpu = redis.processes.cpu_since(&before)?.as_secs_f64() * 1e3 / calls.max(1) as f64;
            let each = ROUNDS * CALLERS / calls.max(1) as u64;
            checks.note(format!(
                "the longest in each of {ROUNDS} rounds; in all {calls} calls, on average of {each} checks and {cpu:.2} ms \
                 of Redis's CPU with all that is around the script"
            ));
            let known = if known { "known clients" } else { "new clients" };
            let what = format!("Redis store: the longest call, {what}, {known}");
            let sample = Sample::of(longest.into_iter());
            rows.push(Row::sampled(what, "ms", sample, &checks).aim(Aim::AtMost(1.0)));
        }
    }
    Ok(rows)
}

async fn all_at_once(
    store: &Arc<RedisStore>,
    limits: &[(Arc<LimitSpec>, bool)],
    clients: u64,
) -> anyhow::Result<()> {
    let waiting: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let key = key(clients * CALLERS + caller);
            let counters = limits.iter().map(|(limit, own)| counter(limit, if *own { key } else { 0 }));
            let (store, check) = (store.clone(), CheckRequest::from_iter(counters));
            tokio::spawn(async move { store.check(check).await })
        })
        .collect();
    for caller in waiting {
        caller.await.context("a caller panicked")??;
    }
    Ok(())
}

/// The microseconds that each call of the script took: <https://redis.io/docs/latest/commands/slowlog-get/>.
async fn times(redis: &RedisServer) -> anyhow::Result<Vec<i64>> {
    let mut times = Vec::new();
    let Value::Array(entries) = redis.tell(&["SLOWLOG", "GET", "-1"]).await? else {
        anyhow::bail!("the slow log is no array")
    };
    for entry in entries {
        let Value::Array(fields) = entry else { continue };
        let (Some(Value::Int(time)), Some(Value::Array(words))) = (fields.get(2), fields.get(3)) else {
            continue;
        };
        let Some(Value::BulkString(name)) = words.first() else { continue };
        if name.eq_ignore_ascii_case(b"evalsha") {
            times.push(*time);
        }
    }
    Ok(times)
}
