//! Calls to Redis for each request about a leased limit: twenty holders, each with a connection of its own, share one
//! counter, below the limit and above it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::layers::{Asked, Consistency, LimitPlan, Limiter, LimiterOptions, OnFailure, Sharers};
use sluice_store::{KeyHash, LimitSpec, RedisStore};

use crate::cores::Cores;
use crate::keys::key;
use crate::redis_server::RedisServer;
use crate::row::{Checks, Row};

const HOLDERS: u32 = 20;
/// The limit, of aligned windows.
const REQUESTS: u64 = 20_000;
const WINDOW: Duration = Duration::from_secs(2);
/// The first one, in which holders learn how many they are, is not measured.
const WINDOWS: u32 = 4;
/// Each holder asks so many times together.
const PAUSE: Duration = Duration::from_millis(10);

/// Measures both loads.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(cores).await?;
    let mut rows = Vec::new();
    for (what, percent) in [("70 % of the limit", 70), ("130 % of the limit", 130)] {
        let spec = Arc::new(LimitSpec::new(format!("bench/policy/{percent}"), vec![rate()?]));
        let plan =
            Arc::new(LimitPlan::new(spec, Consistency::Leased, OnFailure::Deny, false, Sharers::alone()));
        ensure!(plan.is_leased(), "the limit cannot be leased");
        let options = LimiterOptions { latency_budget: Duration::from_secs(10), ..LimiterOptions::default() };
        let mut holders = Vec::new();
        for _ in 0..HOLDERS {
            holders.push(Arc::new(Limiter::new(redis.store().await?, &options)));
        }
        ask(&holders, &plan, percent, WINDOW).await?;
        redis.tell(&["CONFIG", "RESETSTAT"]).await?;
        let (asked, admitted) = ask(&holders, &plan, percent, WINDOW * WINDOWS).await?;
        let calls = redis.script_calls().await?.0;
        let mut checks = Checks::default();
        let share = admitted as f64 / (REQUESTS * u64::from(WINDOWS)) as f64;
        checks.note(format!("{asked} requests, {calls} calls; admitted {share:.3} of the limit"));
        let what = format!("leases: {HOLDERS} clients of one limit, {what}");
        rows.push(Row::alone(what, "calls to Redis/request", calls as f64 / asked as f64, &checks));
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

/// All holders ask, together so many percent of the limit; how many requests there were, and how many admitted.
async fn ask(
    holders: &[Arc<Limiter<RedisStore>>],
    plan: &Arc<LimitPlan>,
    percent: u64,
    time: Duration,
) -> anyhow::Result<(u64, u64)> {
    let start = Instant::now();
    let tasks: Vec<_> = (0..HOLDERS)
        .zip(holders)
        .map(|(number, holder)| {
            let (holder, plan) = (holder.clone(), plan.clone());
            tokio::spawn(async move {
                let (mut asked, mut admitted) = (0, 0);
                // Not all at once.
                tokio::time::sleep(PAUSE * number / HOLDERS).await;
                let mut turns = tokio::time::interval(PAUSE);
                while start.elapsed() < time {
                    turns.tick().await;
                    let share = start.elapsed().as_secs_f64() / WINDOW.as_secs_f64();
                    let due = share * (REQUESTS * percent) as f64 / 100.0 / f64::from(HOLDERS);
                    while asked < due as u64 {
                        let one = Asked { limit: plan.clone(), key: KeyHash(key(0)), cost: 1 };
                        admitted += u64::from(holder.check(&[one]).await?.answer.admitted);
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
