//! Calls to Redis for each request about a leased limit, and how much of the limit is admitted: twenty clients, each a
//! limiter with a connection of its own, share one counter of aligned windows, at about the limit and far above it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::{
    Consistency, LimitPlan, Limiter, LimiterOptions, OnStoreFailure, PlannedCounter, Replicas,
};
use sluice_store::{KeyHash, LimitSpec};

use crate::cores::Cores;
use crate::keys::key;
use crate::redis_server::RedisServer;
use crate::row::{Aim, Checks, Row};

const HOLDERS: u32 = 20;
/// The limit, of aligned windows: so many for each holder.
const REQUESTS: u64 = 50 * HOLDERS as u64;
const WINDOW: Duration = Duration::from_secs(2);
/// The first one, in which holders learn how many they are, is not measured.
const WINDOWS: u32 = 5;
/// Each holder asks so many times together. Nobody asks so shortly before the last window ends: the answer might be of the
/// next one.
const PAUSE: Duration = Duration::from_millis(10);
/// Of the limit, in percent; and how many calls a request there may be.
const LOADS: [(&str, u64, f64); 2] =
    [("all together at the limit", 100, 0.1), ("all together at 10 times the limit", 1_000, 0.03)];

/// Measures both loads.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(cores).await?;
    let mut rows = Vec::new();
    for (what, percent, aim) in LOADS {
        let spec = Arc::new(LimitSpec::new(format!("bench/policy/{percent}"), vec![rate()?]));
        let plan = Arc::new(LimitPlan::new(
            spec,
            Consistency::Leased,
            OnStoreFailure::Deny,
            false,
            Replicas::alone(),
        ));
        ensure!(plan.is_leased(), "the limit cannot be leased");
        let options = LimiterOptions { latency_budget: Duration::from_secs(10), ..LimiterOptions::default() };
        let mut holders = Vec::new();
        for _ in 0..HOLDERS {
            holders.push(Arc::new(Limiter::in_redis(redis.store().await?, &options, None)));
        }
        // Redis runs on this machine: its windows are those of this clock.
        let since = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() % WINDOW.as_nanos();
        tokio::time::sleep(WINDOW - Duration::from_nanos(since as u64)).await;
        let start = Instant::now();
        ask(&holders, &plan, percent, start, 1).await?;
        tokio::time::sleep_until((start + WINDOW - PAUSE / 2).into()).await;
        redis.tell(&["CONFIG", "RESETSTAT"]).await?;
        tokio::time::sleep_until((start + WINDOW).into()).await;
        let (asked, admitted) = ask(&holders, &plan, percent, start + WINDOW, WINDOWS).await?;
        let calls = redis.script_calls().await?.0;
        let mut checks = Checks::default();
        checks.note(format!(
            "{asked} requests in {WINDOWS} windows of {REQUESTS}, {calls} calls, {admitted} admitted"
        ));
        let title = format!("leases: {HOLDERS} clients of one limit, 50 a client and window, {what}");
        let share = admitted as f64 / (REQUESTS * u64::from(WINDOWS)) as f64;
        let each = Row::alone(title.clone(), "calls to Redis/request", calls as f64 / asked as f64, &checks);
        rows.push(each.aim(Aim::AtMost(aim)));
        rows.push(Row::alone(title, "admitted/limit", share, &checks).aim(Aim::Within(0.98, 1.0)));
        for holder in &holders {
            holder.close().await;
        }
    }
    Ok(rows)
}

fn rate() -> anyhow::Result<Rate> {
    let period = Period::from_millis(WINDOW.as_millis() as u64)?;
    Ok(Rate::new(Requests::new(REQUESTS)?, period, Algorithm::FIXED_WINDOW)?)
}

/// All holders ask in so many windows, together so many percent of the limit; how many requests there were, and how many
/// were admitted.
async fn ask(
    holders: &[Arc<Limiter>],
    plan: &Arc<LimitPlan>,
    percent: u64,
    start: Instant,
    windows: u32,
) -> anyhow::Result<(u64, u64)> {
    let end = WINDOW * windows - PAUSE;
    let tasks: Vec<_> = (0..HOLDERS)
        .zip(holders)
        .map(|(number, holder)| {
            let (holder, plan) = (holder.clone(), plan.clone());
            tokio::spawn(async move {
                let (mut asked, mut admitted) = (0, 0);
                // Not all at once.
                tokio::time::sleep(PAUSE * number / HOLDERS).await;
                let mut turns = tokio::time::interval(PAUSE);
                loop {
                    turns.tick().await;
                    if start.elapsed() > end {
                        break;
                    }
                    let share = start.elapsed().as_secs_f64() / WINDOW.as_secs_f64();
                    let due = share * (REQUESTS * percent) as f64 / 100.0 / f64::from(HOLDERS);
                    while asked < due as u64 {
                        let one = PlannedCounter { limit: plan.clone(), key: KeyHash(key(0)), cost: 1 };
                        admitted += u64::from(holder.check(&[one]).await?.response.admitted);
                        asked += 1;
                    }
                }
                anyhow::Ok((asked, admitted))
            })
        })
        .collect();
    let mut sum = (0, 0);
    for task in tasks {
        let (asked, admitted) = task.await.context("a holder panicked")??;
        sum = (sum.0 + asked, sum.1 + admitted);
    }
    Ok(sum)
}
