//! Redis is killed under load and started again: what callers get in each second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sluice_store::{LimitSpec, RedisOptions, RedisStore, Store as _};

use crate::report::plot_data::PlotData;
use crate::report::row::Row;
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::keys::{UNREACHABLE, check, key, limit};
use crate::support::random::Random;
use crate::support::redis_server::{RedisServer, wait_until_healthy};

const SECONDS: usize = 15;
const KILL_AFTER: Duration = Duration::from_secs(4);
const RESTART_AFTER: Duration = Duration::from_secs(9);
const CALLERS: u64 = 64;
/// Interval between two checks of a caller.
const TICK: Duration = Duration::from_millis(20);
const CLIENTS: u64 = 10_000;

/// Results of all callers within one second.
#[derive(Debug, Clone, Copy, Default)]
struct Second {
    admitted: u64,
    /// Checks without a response, left to the policy's `onStoreFailure`.
    failed: u64,
    longest_wait: Duration,
}

/// Measures one outage.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<(Vec<Row>, PlotData)> {
    let mut redis = RedisServer::start(cores).await?;
    let store = Arc::new(RedisStore::start(RedisOptions::from_url(&redis.url)?)?);
    wait_until_healthy(&store).await;
    let limit = limit("bench/policy/outage", UNREACHABLE)?;
    let (start, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| tokio::spawn(call(store.clone(), limit.clone(), start, stop.clone(), caller)))
        .collect();
    tokio::time::sleep_until((start + KILL_AFTER).into()).await;
    redis.kill();
    let killed = start.elapsed();
    tokio::time::sleep_until((start + RESTART_AFTER).into()).await;
    redis.restart().await?;
    let restarted = start.elapsed();
    wait_until_healthy(&store).await;
    tokio::time::sleep_until((start + Duration::from_secs(SECONDS as u64)).into()).await;
    stop.store(true, Ordering::Relaxed);

    let mut seconds = [Second::default(); SECONDS];
    let mut last_failure = Duration::ZERO;
    for caller in callers {
        let (found, last) = caller.await.context("a caller panicked")?;
        last_failure = last_failure.max(last);
        for (sum, one) in seconds.iter_mut().zip(found) {
            sum.admitted += one.admitted;
            sum.failed += one.failed;
            sum.longest_wait = sum.longest_wait.max(one.longest_wait);
        }
    }
    let longest = seconds.iter().map(|second| second.longest_wait).max().unwrap_or_default();
    let recovery = last_failure.saturating_sub(restarted);
    let failed: u64 = seconds.iter().map(|second| second.failed).sum();
    let admitted: u64 = seconds.iter().map(|second| second.admitted).sum();
    let mut verification = Verification::default();
    verification.note(format!("{admitted} checks admitted, {failed} left to the policy's onStoreFailure"));
    let row = |what: &str, time: Duration| {
        Row::single(format!("Redis outage: {what}"), "ms", millis(time), &verification)
    };
    let rows = vec![
        row("longest wait of a check", longest),
        row("last check without a response, after Redis is back", recovery),
    ];
    Ok((rows, plot_data(&seconds, killed, restarted)))
}

/// Runs one caller. Returns what it got in each second, and the time of its last failed check.
async fn call(
    store: Arc<RedisStore>,
    limit: Arc<LimitSpec>,
    start: Instant,
    stop: Arc<AtomicBool>,
    caller: u64,
) -> ([Second; SECONDS], Duration) {
    let mut random = Random::new(caller + 1);
    let (mut seconds, mut last_failure) = ([Second::default(); SECONDS], Duration::ZERO);
    // Spreads the callers over the interval.
    tokio::time::sleep(TICK * caller as u32 / CALLERS as u32).await;
    let mut ticks = tokio::time::interval(TICK);
    while !stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let sent = Instant::now();
        let response = store.check(check(&limit, key(random.below(CLIENTS)))).await;
        let now = start.elapsed();
        let Some(second) = seconds.get_mut(now.as_secs() as usize) else { break };
        second.longest_wait = second.longest_wait.max(sent.elapsed());
        match response {
            Ok(response) => second.admitted += u64::from(response.admitted),
            Err(_) => {
                second.failed += 1;
                last_failure = now;
            }
        }
    }
    (seconds, last_failure)
}

/// One line a second. The times of kill and restart are the same in each.
fn plot_data(seconds: &[Second], killed: Duration, restarted: Duration) -> PlotData {
    let mut data =
        PlotData::new(["second", "admitted", "failed", "longest_wait_ms", "killed_s", "restarted_s"]);
    for (at, second) in seconds.iter().enumerate() {
        data.push(vec![
            at as f64,
            second.admitted as f64,
            second.failed as f64,
            millis(second.longest_wait),
            killed.as_secs_f64(),
            restarted.as_secs_f64(),
        ]);
    }
    data
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
