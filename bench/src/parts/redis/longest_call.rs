//! How long a single call blocks Redis, from its slow log: the largest batches that the store sends. Many
//! more callers wait at the same time than fit into a call, each for another client.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use redis::Value;
use sluice_store::{CheckRequest, LimitSpec, RedisStore, Store as _};

use crate::report::row::{Aim, Row};
use crate::report::sample::Sample;
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::keys::{PERIOD, UNREACHABLE, counter, key, limit, limit_of_periods};
use crate::support::redis_server::RedisServer;

const ROUNDS: u64 = 7;
const CALLERS: u64 = 4_000;

/// The limits of each check.
struct Limits {
    per_client: Arc<LimitSpec>,
    global: Option<Arc<LimitSpec>>,
}

/// Measures several kinds of batches, for new clients and for known ones.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(cores).await?;
    let store = redis.store().await?;
    redis.command(&["CONFIG", "SET", "slowlog-log-slower-than", "0"]).await?;
    redis.command(&["CONFIG", "SET", "slowlog-max-len", "100000"]).await?;
    let days: Vec<Duration> = (1..=8).map(|days| days * PERIOD).collect();
    let one = limit("bench/policy/one", UNREACHABLE)?;
    let eight = limit_of_periods("bench/policy/eight", UNREACHABLE, &days)?;
    let per_client = limit("bench/policy/beside", UNREACHABLE)?;
    let global = limit("bench/policy/global", UNREACHABLE)?;
    let mut rows = Vec::new();
    for (what, limits) in [
        ("one rate", Limits { per_client: one, global: None }),
        ("eight rates", Limits { per_client: eight, global: None }),
        ("one rate and a global limit", Limits { per_client, global: Some(global) }),
    ] {
        for known in [false, true] {
            let mut longest = Vec::new();
            let (mut calls, before) = (0, redis.processes.cpu()?);
            for round in 0..ROUNDS {
                // Known clients are those of the first round for new ones.
                let group = if known { 0 } else { round };
                redis.command(&["SLOWLOG", "RESET"]).await?;
                check_concurrently(&store, &limits, group).await?;
                let micros = script_call_micros(&redis).await?;
                calls += micros.len();
                longest.push(micros.into_iter().max().context("the slow log is empty")? as f64 / 1e3);
            }
            let mut verification = Verification::default();
            let cpu = redis.processes.cpu_since(&before)?.as_secs_f64() * 1e3 / calls.max(1) as f64;
            let checks = ROUNDS * CALLERS / calls.max(1) as u64;
            verification.note(format!(
                "the longest call of each of {ROUNDS} rounds; {calls} calls in all, with {checks} checks on average \
                 and {cpu:.2} ms of Redis's CPU each, including the work outside of the script"
            ));
            let clients = if known { "known clients" } else { "new clients" };
            let what = format!("Redis store: longest call, {what}, {clients}");
            let sample = Sample::of(longest.into_iter());
            rows.push(Row::sampled(what, "ms", sample, &verification).with_aim(Aim::AtMost(1.0)));
        }
    }
    Ok(rows)
}

/// Checks once for each client of a group, all concurrently.
async fn check_concurrently(store: &Arc<RedisStore>, limits: &Limits, group: u64) -> anyhow::Result<()> {
    let waiting: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let own = counter(&limits.per_client, key(group * CALLERS + caller));
            let global = limits.global.as_ref().map(|limit| counter(limit, 0));
            let (store, check) = (store.clone(), CheckRequest::from_iter([own].into_iter().chain(global)));
            tokio::spawn(async move { store.check(check).await })
        })
        .collect();
    for caller in waiting {
        caller.await.context("a caller panicked")??;
    }
    Ok(())
}

/// Returns the duration of each script call, in microseconds:
/// <https://redis.io/docs/latest/commands/slowlog-get/>.
async fn script_call_micros(redis: &RedisServer) -> anyhow::Result<Vec<i64>> {
    let mut found = Vec::new();
    let Value::Array(entries) = redis.command(&["SLOWLOG", "GET", "-1"]).await? else {
        anyhow::bail!("SLOWLOG GET did not return an array")
    };
    for entry in entries {
        let Value::Array(fields) = entry else { continue };
        let (Some(Value::Int(micros)), Some(Value::Array(words))) = (fields.get(2), fields.get(3)) else {
            continue;
        };
        let Some(Value::BulkString(name)) = words.first() else { continue };
        if name.eq_ignore_ascii_case(b"evalsha") {
            found.push(*micros);
        }
    }
    Ok(found)
}
