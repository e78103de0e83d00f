//! How many bytes a user takes in Redis: its memory with a million users, less what it had before.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use sluice_store::{LimitSpec, RedisStore};

use crate::cores::Cores;
use crate::keys::{MANY, PERIOD, check, counter, key, limit_of};
use crate::redis_server::RedisServer;
use crate::row::{Aim, Checks, Row};

const USERS: u64 = 1_000_000;
const CALLERS: u64 = 512;
/// A name of the usual length: keys become about 60 bytes long.
const SCOPE: &str = "shop/public-api/per-user";

/// Measures one to three rates.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(cores).await?;
    let store = redis.store().await?;
    let periods = [Duration::from_secs(3_600), PERIOD, 7 * PERIOD];
    let mut rows = Vec::new();
    for (rates, aim) in [(1, 210.0), (2, 230.0), (3, 245.0)] {
        redis.tell(&["FLUSHALL", "SYNC"]).await?;
        let limit = limit_of(SCOPE, MANY, &periods[..rates])?;
        // What comes once with the first call is there before.
        store.check(check(&limit, key(USERS))).await?;
        let before = memory(&redis).await?;
        fill(&store, &limit).await?;
        let after = memory(&redis).await?;
        let mut checks = Checks::default();
        let keys: u64 = redis::cmd("DBSIZE").query_async(&mut redis.connection().await?).await?;
        checks.one("keys in Redis", keys, USERS + 1);
        let name = store.key(&counter(&limit, key(1)));
        checks.note(format!("a key of {} bytes: `{name}`", name.len()));
        let what = format!("Redis store: memory of Redis, {rates} rate{}", if rates == 1 { "" } else { "s" });
        let row = Row::alone(what, "bytes/user", (after - before) / USERS as f64, &checks);
        rows.push(row.aim(Aim::AtMost(aim)));
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

/// The memory that Redis uses, when nothing moves any more: it rehashes a little at a time.
async fn memory(redis: &RedisServer) -> anyhow::Result<f64> {
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
