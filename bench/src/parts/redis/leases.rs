//! Calls to Redis for each request of a leased limit, and how much of the limit is admitted. Twenty replicas,
//! each a limiter with a connection of its own, share one counter with aligned windows, at about the limit
//! and far above it.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, ensure};
use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::{
    Consistency, LimitPlan, Limiter, LimiterOptions, OnStoreFailure, PlannedCounter, Replicas,
};
use sluice_store::{KeyHash, LimitSpec};

use crate::report::row::{Aim, Row};
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::keys::key;
use crate::support::redis_server::RedisServer;

const REPLICAS: u32 = 20;
/// The limit in each window, of all replicas together.
const REQUESTS: u64 = 50 * REPLICAS as u64;
const WINDOW: Duration = Duration::from_secs(2);
/// Number of measured windows. The window before them, in which the replicas lease for the first time, is not
/// measured.
const WINDOWS: u32 = 5;
/// Interval at which each replica sends what is due. No replica sends in the last interval of a window: the
/// response could belong to the next one.
const TICK: Duration = Duration::from_millis(10);
/// The loads: the name, percent of the limit, and the aim for calls a request.
const LOADS: [(&str, u64, f64); 2] =
    [("together at the limit", 100, 0.1), ("together at 10 times the limit", 1_000, 0.03)];

/// Numbers of requests.
#[derive(Debug, Clone, Copy, Default)]
struct Sent {
    requests: u64,
    admitted: u64,
}

/// Measures both loads.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(cores).await?;
    let mut rows = Vec::new();
    for (what, percent, aim) in LOADS {
        let plan = leased_plan(percent)?;
        let options = LimiterOptions { latency_budget: Duration::from_secs(10), ..LimiterOptions::default() };
        let mut replicas = Vec::new();
        for _ in 0..REPLICAS {
            replicas.push(Arc::new(Limiter::in_redis(redis.store().await?, &options, None)));
        }
        // Redis runs on this machine, so its windows are those of this clock.
        let in_window = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() % WINDOW.as_nanos();
        tokio::time::sleep(WINDOW - Duration::from_nanos(in_window as u64)).await;
        let start = Instant::now();
        send(&replicas, &plan, percent, start, 1).await?;
        tokio::time::sleep_until((start + WINDOW - TICK / 2).into()).await;
        redis.command(&["CONFIG", "RESETSTAT"]).await?;
        tokio::time::sleep_until((start + WINDOW).into()).await;
        let Sent { requests, admitted } = send(&replicas, &plan, percent, start + WINDOW, WINDOWS).await?;
        let calls = redis.script_calls().await?;
        let mut verification = Verification::default();
        verification.note(format!(
            "{requests} requests in {WINDOWS} windows of {REQUESTS}, {calls} calls, {admitted} admitted"
        ));
        let title = format!("leases: {REPLICAS} replicas of one limit, 50 a replica and window, {what}");
        let share = admitted as f64 / (REQUESTS * u64::from(WINDOWS)) as f64;
        let calls = calls as f64 / requests as f64;
        let row = |unit: &str, value: f64| Row::single(title.clone(), unit, value, &verification);
        rows.push(row("calls to Redis/request", calls).with_aim(Aim::AtMost(aim)));
        rows.push(row("admitted/limit", share).with_aim(Aim::Within(0.98, 1.0)));
        for replica in &replicas {
            replica.close().await;
        }
    }
    Ok(rows)
}

fn leased_plan(percent: u64) -> anyhow::Result<Arc<LimitPlan>> {
    let period = Period::from_millis(WINDOW.as_millis() as u64)?;
    let rate = Rate::new(Requests::new(REQUESTS)?, period, Algorithm::FIXED_WINDOW)?;
    let spec = Arc::new(LimitSpec::new(format!("bench/policy/{percent}"), vec![rate]));
    let plan = LimitPlan::new(spec, Consistency::Leased, OnStoreFailure::Deny, false, Replicas::alone());
    ensure!(plan.is_leased(), "the limit cannot be leased");
    Ok(Arc::new(plan))
}

/// Sends requests of all replicas for a number of windows: together `percent` of the limit, evenly over time.
async fn send(
    replicas: &[Arc<Limiter>],
    plan: &Arc<LimitPlan>,
    percent: u64,
    start: Instant,
    windows: u32,
) -> anyhow::Result<Sent> {
    let end = WINDOW * windows - TICK;
    let due_in_a_window = (REQUESTS * percent) as f64 / 100.0 / f64::from(REPLICAS);
    let tasks: Vec<_> = (0..REPLICAS)
        .zip(replicas)
        .map(|(number, replica)| {
            let (replica, plan) = (replica.clone(), plan.clone());
            tokio::spawn(async move {
                let mut sent = Sent::default();
                // Spreads the replicas over the interval.
                tokio::time::sleep(TICK * number / REPLICAS).await;
                let mut ticks = tokio::time::interval(TICK);
                loop {
                    ticks.tick().await;
                    if start.elapsed() > end {
                        break;
                    }
                    let due = start.elapsed().as_secs_f64() / WINDOW.as_secs_f64() * due_in_a_window;
                    while sent.requests < due as u64 {
                        let one = PlannedCounter { limit: plan.clone(), key: KeyHash(key(0)), cost: 1 };
                        sent.admitted += u64::from(replica.check(&[one]).await?.response.admitted);
                        sent.requests += 1;
                    }
                }
                anyhow::Ok(sent)
            })
        })
        .collect();
    let mut sum = Sent::default();
    for task in tasks {
        let sent = task.await.context("a replica panicked")??;
        sum.requests += sent.requests;
        sum.admitted += sent.admitted;
    }
    Ok(sum)
}
