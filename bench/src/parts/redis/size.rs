//! Bytes a user in Redis: its memory with a million users, less the memory before.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use sluice_store::{LimitSpec, RedisStore, Store as _};

use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::keys::{PERIOD, UNREACHABLE, check, counter, key, limit_of_periods};
use crate::support::redis_server::RedisServer;

const USERS: u64 = 1_000_000;
const CALLERS: u64 = 512;
/// A scope of usual length: keys have about 60 bytes.
const SCOPE: &str = "shop/public-api/per-user";

/// Measures limits of one to three rates.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(cores).await?;
    let store = redis.store().await?;
    let periods = [Duration::from_secs(3_600), PERIOD, 7 * PERIOD];
    let mut rows = Vec::new();
    for (rates, aim) in [(1, 210.0), (2, 230.0), (3, 245.0)] {
        redis.command(&["FLUSHALL", "SYNC"]).await?;
        let limit = limit_of_periods(SCOPE, UNREACHABLE, &periods[..rates])?;
        // The first call allocates what all users share.
        store.check(check(&limit, key(USERS))).await?;
        let before = settled_memory(&redis).await?;
        fill(&store, &limit).await?;
        let after = settled_memory(&redis).await?;
        let mut verification = Verification::default();
        let keys: u64 = redis::cmd("DBSIZE").query_async(&mut redis.connection().await?).await?;
        verification.expect("keys in Redis", keys, USERS + 1);
        let name = store.key(&counter(&limit, key(1)));
        verification.note(format!("a key of {} bytes: `{name}`", name.len()));
        let what = format!("Redis store: memory of Redis, {rates} rate{}", if rates == 1 { "" } else { "s" });
        let row = Row::single(what, "bytes/user", (after - before) / USERS as f64, &verification);
        rows.push(row.with_aim(Aim::AtMost(aim)));
    }
    Ok(rows)
}

async fn fill(store: &Arc<RedisStore>, limit: &Arc<LimitSpec>) -> anyhow::Result<()> {
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (store, limit) = (store.clone(), limit.clone());
            tokio::spawn(async move {
                for user in (caller..USERS).step_by(CALLERS as usize) {
                    store.check(check(&limit, key(user))).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for caller in callers {
        caller.await.context("a caller panicked")??;
    }
    Ok(())
}

/// Returns the memory that Redis uses once that no longer changes: Redis rehashes its dictionaries gradually.
async fn settled_memory(redis: &RedisServer) -> anyhow::Result<f64> {
    let mut last = f64::NAN;
    loop {
        let now: f64 = redis.info("memory", "used_memory").await?.parse()?;
        if (now - last).abs() < 10_000.0 {
            return Ok(now);
        }
        last = now;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}
