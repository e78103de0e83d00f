//! Quota leases against a real server: many holders, each with its own connection.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::{
    Consistency, KeyHash, LeaseMetrics, LimitPlan, LimitSpec, Limiter, LimiterOptions, OnStoreFailure,
    PlannedCounter, RedisOptions, RedisStore, Replica, Replicas, Reservation, Source, StoreHealth,
};

use crate::support::{Redis, eventually};

crate::servers::pass_with_other_servers!();

const KEY: KeyHash = KeyHash(0x1234_5678_9abc_def0_0fed_cba9_8765_4321);

/// Generous, so that a loaded machine does not fail a test of something else.
const BUDGET: Duration = Duration::from_secs(10);

/// Plans a limit for this many holders. All of them use index 0, as the numbers here divide evenly.
fn plan(
    holders: u32,
    requests: u64,
    millis: u64,
    algorithm: Algorithm,
    consistency: Consistency,
) -> Arc<LimitPlan> {
    let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap());
    let rate = Rate::new(requests, period, algorithm).unwrap();
    let spec = Arc::new(LimitSpec::new("ns/policy/leased", vec![rate]));
    let replicas = Replicas::new(Replica::new(0, holders));
    Arc::new(LimitPlan::new(spec, consistency, OnStoreFailure::Share, false, replicas))
}

fn holder(url: &str) -> Limiter {
    let options = RedisOptions { latency_budget: BUDGET, ..RedisOptions::from_url(url).unwrap() };
    let store = Arc::new(RedisStore::start(options).unwrap());
    Limiter::in_redis(store, &LimiterOptions { latency_budget: BUDGET, ..LimiterOptions::default() }, None)
}

fn counter(plan: &Arc<LimitPlan>) -> PlannedCounter {
    PlannedCounter { limit: plan.clone(), key: KEY, cost: 1 }
}

async fn until_acquired(limiter: &Limiter) {
    eventually("blocks are acquired", || async {
        limiter.metrics().unwrap().leases.pending_acquisitions == 0
    })
    .await;
}

async fn until_healthy(limiter: &Limiter) {
    eventually("the store is healthy", || async { limiter.health() == StoreHealth::Healthy }).await;
}

/// Returns the machine's time, which is also the server's, in microseconds.
fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// Counts of all holders together.
#[derive(Default)]
struct Tally {
    requests: AtomicU64,
    admitted: AtomicU64,
    /// By window: admitted requests that were charged to it, and requests that were sent in it.
    windows: Mutex<BTreeMap<u64, (u64, u64)>>,
    /// Requests admitted by a charge to a window in which they were not in flight.
    strays: AtomicU64,
}

/// Sends `rate` requests per second, one after another, until `stop` is set.
async fn load(
    limiter: Arc<Limiter>,
    plan: Arc<LimitPlan>,
    rate: f64,
    tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
) {
    let period = plan.spec.rates[0].period.micros();
    let start = Instant::now();
    let mut sent = 0.0;
    while !stop.load(Relaxed) {
        let due = start.elapsed().as_secs_f64() * rate;
        while sent < due {
            sent += 1.0;
            let before = clock();
            let outcome = limiter.check(&[counter(&plan)]).await.unwrap();
            assert_eq!(outcome.failure, None);
            tally.requests.fetch_add(1, Relaxed);
            let mut windows = tally.windows.lock().unwrap();
            windows.entry(before / period).or_default().1 += 1;
            if outcome.response.admitted {
                let Reservation::Store(charged) = outcome.reservations[0] else {
                    panic!("{:?}", outcome.reservations)
                };
                let window = charged / period;
                windows.entry(window).or_default().0 += 1;
                tally.admitted.fetch_add(1, Relaxed);
                if !(before / period..=clock() / period).contains(&window) {
                    tally.strays.fetch_add(1, Relaxed);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

struct Figures {
    /// Operations in the store per request.
    operations: f64,
    /// Calls to the store per request. A call can carry several operations.
    calls: f64,
    /// Fraction of what the limit allows in whole windows.
    utilization: f64,
    most_in_a_window: u64,
    strays: u64,
}

/// Sends a constant load of `times` the limit from 20 holders for some windows.
async fn run(name: &str, number: u64, millis: u64, times: f64, algorithm: Algorithm) -> Figures {
    const HOLDERS: u32 = 20;
    const WINDOWS: u64 = 5;
    let redis = Redis::start(&[]);
    let plan = plan(HOLDERS, number, millis, algorithm, Consistency::Leased);
    assert!(plan.is_leased());
    let holders: Vec<_> = (0..HOLDERS).map(|_| Arc::new(holder(&redis.url()))).collect();
    for holder in &holders {
        until_healthy(holder).await;
    }
    let (tally, stop) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
    let rate = times * number as f64 * 1000.0 / millis as f64 / f64::from(HOLDERS);
    let begin = clock();
    let tasks: Vec<_> = holders
        .iter()
        .map(|holder| tokio::spawn(load(holder.clone(), plan.clone(), rate, tally.clone(), stop.clone())))
        .collect();
    tokio::time::sleep(Duration::from_millis(millis * (WINDOWS + 1))).await;
    stop.store(true, Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let requests = tally.requests.load(Relaxed) as f64;
    let calls: u64 = holders.iter().map(|holder| holder.redis().unwrap().metrics().calls).sum();
    let metrics: Vec<_> = holders.iter().map(|holder| holder.metrics().unwrap().leases).collect();
    let operations: u64 = metrics.iter().map(|m| m.acquisitions + m.single_calls + m.returns).sum();
    let windows = tally.windows.lock().unwrap();
    let first = begin / (millis * 1000);
    // The holders learn in the first window, and the last one may be incomplete.
    let whole: Vec<_> =
        windows.iter().filter(|(window, _)| (first + 1..first + WINDOWS).contains(window)).collect();
    let admitted: u64 = whole.iter().map(|(_, (admitted, _))| admitted).sum();
    let possible: u64 = whole.iter().map(|(_, (_, sent))| (*sent).min(number)).sum();
    let figures = Figures {
        operations: operations as f64 / requests,
        calls: calls as f64 / requests,
        utilization: admitted as f64 / possible as f64,
        most_in_a_window: windows.values().map(|(admitted, _)| *admitted).max().unwrap(),
        strays: tally.strays.load(Relaxed),
    };
    println!(
        "{name}: N = {number} in {millis} ms, 20 holders, load x{times}: {:.4} calls per request ({:.4} operations), \
         utilization {:.4}, most in a window {}, {} of {requests} admitted; expired {}, returned {}",
        figures.calls,
        figures.operations,
        figures.utilization,
        figures.most_in_a_window,
        tally.admitted.load(Relaxed),
        metrics.iter().map(|m| m.expired).sum::<u64>(),
        metrics.iter().map(|m| m.returned).sum::<u64>(),
    );
    figures
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_leases_need_few_calls_and_hold_aligned_windows_exactly() {
    for (number, millis, times, calls) in
        [(1200, 2000, 0.9, 0.1), (1000, 2000, 10.0, 0.03), (5000, 2000, 1.2, 0.1), (2000, 1000, 10.0, 0.03)]
    {
        let figures = run("fixed", number, millis, times, Algorithm::FIXED_WINDOW).await;
        assert!(figures.operations <= calls, "{} operations per request", figures.operations);
        assert!(figures.calls <= calls, "{} calls per request", figures.calls);
        assert!(figures.utilization >= 0.98, "utilization {}", figures.utilization);
        assert!(figures.most_in_a_window <= number, "{} of {number}", figures.most_in_a_window);
        assert_eq!(figures.strays, 0, "requests admitted by a charge to another window");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_leases_hold_aligned_windows_of_a_sliding_counter() {
    for times in [0.9, 10.0] {
        let figures = run("sliding", 2000, 2000, times, Algorithm::SLIDING_WINDOW).await;
        assert!(figures.most_in_a_window <= 2000, "{} of 2000", figures.most_in_a_window);
        assert_eq!(figures.strays, 0, "requests admitted by a charge to another window");
        assert!(figures.calls <= 0.3 && figures.utilization >= 0.9);
    }
}

/// Sends checks until one is denied, and returns the number that was admitted.
async fn drain(limiter: &Limiter, plan: &Arc<LimitPlan>) -> u64 {
    let mut admitted = 0;
    loop {
        let outcome = limiter.check(&[counter(plan)]).await.unwrap();
        if !outcome.response.admitted {
            return admitted;
        }
        admitted += 1;
    }
}

/// The longest period. A test crosses the end of such a window only in a few seconds of a year.
const YEAR: u64 = sluice_limiter::MAX_PERIOD_MS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_leases_lose_only_the_blocks_of_holders_that_die() {
    let redis = Redis::start(&[]);
    let plan = plan(8, 10_000, YEAR, Algorithm::FIXED_WINDOW, Consistency::Leased);
    let strict = plan_like(&plan, 8, Consistency::Strict);
    let (mut admitted, mut held) = (0, 0);
    for _ in 0..8 {
        let holder = holder(&redis.url());
        for _ in 0..300 {
            admitted += u64::from(holder.check(&[counter(&plan)]).await.unwrap().response.admitted);
        }
        until_acquired(&holder).await;
        held += in_hand(&holder.metrics().unwrap().leases);
        // It dies without closing.
        drop(holder);
    }
    assert_eq!(admitted, 8 * 300);
    assert!(held > 0, "they held some quota");
    let last = holder(&redis.url());
    let rest = drain(&last, &strict).await;
    println!("8 holders died with {held} unused of {admitted} admitted; {rest} were left of 10000");
    assert!(admitted + rest <= 10_000);
    assert_eq!(admitted + rest + held, 10_000, "only the quota that they held is lost until the window ends");
}

fn plan_like(plan: &LimitPlan, holders: u32, consistency: Consistency) -> Arc<LimitPlan> {
    let replicas = Replicas::new(Replica::new(0, holders));
    Arc::new(LimitPlan::new(plan.spec.clone(), consistency, plan.on_failure, false, replicas))
}

fn in_hand(m: &LeaseMetrics) -> u64 {
    m.acquired - m.admitted_locally - m.returned - m.expired
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_leases_are_returned_when_a_holder_closes() {
    let redis = Redis::start(&[]);
    let plan = plan(1, 10_000, YEAR, Algorithm::FIXED_WINDOW, Consistency::Leased);
    let holder = holder(&redis.url());
    for _ in 0..300 {
        assert!(holder.check(&[counter(&plan)]).await.unwrap().response.admitted);
    }
    holder.close().await;
    assert!(holder.metrics().unwrap().leases.returned > 0);
    drop(holder);
    let last = self::holder(&redis.url());
    assert_eq!(drain(&last, &plan_like(&plan, 1, Consistency::Strict)).await, 10_000 - 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_leases_cause_no_burst_when_the_store_is_killed_and_comes_back_empty() {
    const PODS: u32 = 8;
    let mut redis = Redis::start_restartable(&[]);
    let plan = plan(PODS, 8_000, YEAR, Algorithm::FIXED_WINDOW, Consistency::Leased);
    let holders: Vec<_> = (0..PODS).map(|_| holder(&redis.url())).collect();
    let (mut before, mut without, mut after) = (0u64, 0u64, 0u64);
    for holder in &holders {
        for _ in 0..300 {
            before += u64::from(holder.check(&[counter(&plan)]).await.unwrap().response.admitted);
        }
    }
    assert_eq!(before, u64::from(PODS) * 300);
    let strict = plan_like(&plan, PODS, Consistency::Strict);
    for holder in &holders {
        until_acquired(holder).await;
    }
    for holder in &holders {
        // Each holder learns the usage.
        let peek = [PlannedCounter { limit: strict.clone(), key: KEY, cost: 0 }];
        assert!(holder.check(&peek).await.unwrap().response.admitted);
    }
    redis.kill();
    for holder in &holders {
        // Every check is decided, and every holder stops at its share.
        loop {
            let outcome = holder.check(&[counter(&plan)]).await.unwrap();
            if !outcome.response.admitted {
                break;
            }
            without += 1;
        }
    }
    assert!(without > 0);
    assert!(before + without <= 8_000, "the shares of the last known usage add up to the rest");
    redis.restart();
    for holder in &holders {
        until_healthy(holder).await;
    }
    for holder in &holders {
        eventually("local usage is flushed", || async { holder.metrics().unwrap().local_quota.pending == 0 })
            .await;
    }
    for holder in &holders {
        after += drain(holder, &plan).await;
        after += drain(holder, &strict).await;
    }
    println!(
        "N = 8000: {before} admitted before the store was killed, {without} without it, {after} after it came back empty"
    );
    // The usage that the store lost was restored from the last known usage.
    assert!(before + without + after <= 8_000, "a burst after the recovery");
    let outcome = holders[0].check(&[counter(&strict)]).await.unwrap();
    assert!(!outcome.response.admitted && matches!(outcome.source, Source::Store | Source::DenialCache));
}
