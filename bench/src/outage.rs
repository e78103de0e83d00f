//! Redis is killed under load and started again: what callers get, second by second.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sluice_store::{LimitSpec, RedisOptions, RedisStore, StoreHealth};
use sluice_tests::wait::until;

use crate::cores::Cores;
use crate::keys::{MANY, check, key, limit};
use crate::plot::{Axis, Chart, Line, Panel, Point};
use crate::random::Random;
use crate::redis_server::RedisServer;
use crate::row::{Checks, Row};

const SECONDS: usize = 15;
const KILLED: Duration = Duration::from_secs(4);
const STARTED: Duration = Duration::from_secs(9);
const CALLERS: u64 = 64;
/// Each caller asks so often.
const EVERY: Duration = Duration::from_millis(20);
const CLIENTS: u64 = 10_000;

/// What happened within a second.
#[derive(Debug, Clone, Copy, Default)]
struct Second {
    admitted: u64,
    /// No answer: the policy's `onStoreFailure` decides.
    failed: u64,
    /// The longest that a check waited.
    worst: Duration,
}

/// Draws the chart and measures.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<(Chart, Vec<Row>)> {
    let mut redis = RedisServer::start(cores).await?;
    let store = Arc::new(RedisStore::start(RedisOptions::new(&redis.url))?);
    until("the store is healthy", async || (store.health() == StoreHealth::Healthy).then_some(())).await;
    let limit = limit("bench/policy/outage", MANY)?;
    let (start, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| tokio::spawn(call(store.clone(), limit.clone(), start, stop.clone(), caller)))
        .collect();
    tokio::time::sleep_until((start + KILLED).into()).await;
    redis.kill();
    let killed = start.elapsed();
    tokio::time::sleep_until((start + STARTED).into()).await;
    redis.restart().await?;
    let started = start.elapsed();
    until("the store is healthy again", async || (store.health() == StoreHealth::Healthy).then_some(()))
        .await;
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
            sum.worst = sum.worst.max(one.worst);
        }
    }
    let worst = seconds.iter().map(|second| second.worst).max().unwrap_or_default();
    let mut checks = Checks::default();
    let failed: u64 = seconds.iter().map(|second| second.failed).sum();
    let admitted: u64 = seconds.iter().map(|second| second.admitted).sum();
    checks.note(format!("{admitted} checks admitted, {failed} left to the policy's onStoreFailure"));
    let millis = |time: Duration| time.as_secs_f64() * 1e3;
    let rows = vec![
        Row::alone("Redis killed and started again: longest wait of a check", "ms", millis(worst), &checks),
        Row::alone(
            "Redis killed and started again: last check without an answer, after Redis answers again",
            "ms",
            millis(last_failure.saturating_sub(started)),
            &checks,
        ),
    ];
    Ok((chart(&seconds, killed, started), rows))
}

/// One caller; what it saw in each second, and when it last got no answer.
async fn call(
    store: Arc<RedisStore>,
    limit: Arc<LimitSpec>,
    start: Instant,
    stop: Arc<AtomicBool>,
    caller: u64,
) -> ([Second; SECONDS], Duration) {
    let mut random = Random::new(caller + 1);
    let (mut seconds, mut last) = ([Second::default(); SECONDS], Duration::ZERO);
    // Not all at once.
    tokio::time::sleep(EVERY * caller as u32 / CALLERS as u32).await;
    let mut turns = tokio::time::interval(EVERY);
    while !stop.load(Ordering::Relaxed) {
        turns.tick().await;
        let asked = Instant::now();
        let answer = store.check(check(&limit, key(random.below(CLIENTS)))).await;
        let now = start.elapsed();
        let Some(second) = seconds.get_mut(now.as_secs() as usize) else { break };
        second.worst = second.worst.max(asked.elapsed());
        match answer {
            Ok(answer) => second.admitted += u64::from(answer.admitted),
            Err(_) => {
                second.failed += 1;
                last = now;
            }
        }
    }
    (seconds, last)
}

fn chart(seconds: &[Second], killed: Duration, started: Duration) -> Chart {
    let line = |name: &str, colour: usize, value: fn(&Second) -> f64| {
        let of = |at: usize| Point { x: at as f64, y: value(&seconds[at.min(SECONDS - 1)]), spread: None };
        Line {
            name: name.to_owned(),
            colour,
            dashed: false,
            steps: true,
            points: (0..=SECONDS).map(of).collect(),
        }
    };
    Chart {
        title: "Redis killed under load and started again".to_owned(),
        x: Axis { label: "seconds".to_owned(), from: 0.0, to: SECONDS as f64, doubling: false },
        panels: vec![
            Panel {
                label: "checks in each second".to_owned(),
                doubling: false,
                lines: vec![
                    line("admitted by Redis", 0, |second| second.admitted as f64),
                    line("no answer: onStoreFailure decides", 1, |second| second.failed as f64),
                ],
            },
            Panel {
                label: "milliseconds".to_owned(),
                doubling: false,
                lines: vec![
                    line("longest wait of a check in each second", 2, |second| {
                        second.worst.as_secs_f64() * 1e3
                    }),
                    Line {
                        name: "latency budget".to_owned(),
                        colour: 6,
                        dashed: true,
                        steps: true,
                        points: [0.0, SECONDS as f64].map(|x| Point { x, y: 50.0, spread: None }).into(),
                    },
                ],
            },
        ],
        marks: vec![
            (killed.as_secs_f64(), "killed".to_owned()),
            (started.as_secs_f64(), "started again".to_owned()),
        ],
    }
}
