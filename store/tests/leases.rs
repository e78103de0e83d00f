//! Leases against a real server: many holders, each with its own connection, and what happens to their blocks.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::{
    Consistency, LimitPlan, Limiter, LimiterOptions, OnStoreFailure, PlannedCounter, Replica, Replicas,
    Reservation, Source,
};
use sluice_store::{KeyHash, LimitSpec, RedisOptions, RedisStore, StoreHealth};
use support::{Redis, eventually};

const KEY: KeyHash = KeyHash(0x1234_5678_9abc_def0_0fed_cba9_8765_4321);

/// So generous that a loaded machine does not fail a test about something else.
const BUDGET: Duration = Duration::from_secs(10);

/// A plan of a limit that so many share. Which of them one is makes no difference here: every number can be divided.
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
    let sharers = Replicas::new(Replica::new(0, holders));
    Arc::new(LimitPlan::new(spec, consistency, OnStoreFailure::Share, false, sharers))
}

fn holder(url: &str) -> Limiter {
    let options = RedisOptions { latency_budget: BUDGET, ..RedisOptions::new(url) };
    let store = Arc::new(RedisStore::start(options).unwrap());
    Limiter::in_redis(store, &LimiterOptions { latency_budget: BUDGET, ..LimiterOptions::default() }, None)
}

async fn healthy(limiter: &Limiter) {
    eventually("the store is healthy", || async { limiter.health() == StoreHealth::Healthy }).await;
}

/// Microseconds of the machine's clock, which is the server's too.
fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros() as u64
}

/// What all holders have done together.
#[derive(Default)]
struct Tally {
    requests: AtomicU64,
    admitted: AtomicU64,
    /// Admitted, by the window that was charged; and asked for, by the window of the asking.
    windows: Mutex<BTreeMap<u64, (u64, u64)>>,
    /// Requests that were admitted by a charge to a window in which they were not there.
    strays: AtomicU64,
}

/// Sends `rate` requests a second, never more than a few at a time, until told to stop.
async fn load(
    limiter: Arc<Limiter>,
    plan: Arc<LimitPlan>,
    rate: f64,
    tally: Arc<Tally>,
    stop: Arc<AtomicBool>,
) {
    let period = plan.spec.rates[0].period.micros();
    let begun = Instant::now();
    let mut sent = 0.0;
    while !stop.load(Relaxed) {
        let due = begun.elapsed().as_secs_f64() * rate;
        while sent < due {
            sent += 1.0;
            let before = clock();
            let asked = PlannedCounter { limit: plan.clone(), key: KEY, cost: 1 };
            let outcome = limiter.check(std::slice::from_ref(&asked)).await.unwrap();
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
    /// Questions to the store a request, and batches sent to it a request.
    questions: f64,
    calls: f64,
    /// Of what could be admitted in whole windows.
    utilisation: f64,
    most: u64,
    strays: u64,
}

/// `times` the number, equally spread over 20 holders, for some windows.
async fn run(name: &str, number: u64, millis: u64, times: f64, algorithm: Algorithm) -> Figures {
    const HOLDERS: u32 = 20;
    const WINDOWS: u64 = 5;
    let redis = Redis::start(&[]);
    let plan = plan(HOLDERS, number, millis, algorithm, Consistency::Leased);
    assert!(plan.is_leased());
    let holders: Vec<_> = (0..HOLDERS).map(|_| Arc::new(holder(&redis.url()))).collect();
    for holder in &holders {
        healthy(holder).await;
    }
    let (tally, stop) = (Arc::new(Tally::default()), Arc::new(AtomicBool::new(false)));
    let rate = times * number as f64 * 1000.0 / millis as f64 / f64::from(HOLDERS);
    let begins = clock();
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
    let metrics: Vec<_> = holders.iter().map(|holder| holder.metrics().unwrap().lease).collect();
    let questions: u64 = metrics.iter().map(|m| m.takes + m.single_calls + m.returns).sum();
    let windows = tally.windows.lock().unwrap();
    let first = begins / (millis * 1000);
    // The first one taught the holders, the last one was cut.
    let whole: Vec<_> =
        windows.iter().filter(|(window, _)| (first + 1..first + WINDOWS).contains(window)).collect();
    let admitted: u64 = whole.iter().map(|(_, (admitted, _))| admitted).sum();
    let possible: u64 = whole.iter().map(|(_, (_, asked))| (*asked).min(number)).sum();
    let figures = Figures {
        questions: questions as f64 / requests,
        calls: calls as f64 / requests,
        utilisation: admitted as f64 / possible as f64,
        most: windows.values().map(|(admitted, _)| *admitted).max().unwrap(),
        strays: tally.strays.load(Relaxed),
    };
    println!(
        "{name}: N = {number} in {millis} ms, 20 holders, load x{times}: {:.4} calls a request ({:.4} questions), \
         utilisation {:.4}, most in a window {}, {} of {requests} admitted; lost {}, returned {}",
        figures.calls,
        figures.questions,
        figures.utilisation,
        figures.most,
        tally.admitted.load(Relaxed),
        metrics.iter().map(|m| m.lost).sum::<u64>(),
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
        assert!(figures.questions <= calls, "{} questions a request", figures.questions);
        assert!(figures.calls <= calls, "{} calls a request", figures.calls);
        assert!(figures.utilisation >= 0.98, "utilisation {}", figures.utilisation);
        assert!(figures.most <= number, "{} in a window of {number}", figures.most);
        assert_eq!(figures.strays, 0, "admitted in a window that was not charged");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_leases_hold_aligned_windows_of_a_sliding_counter() {
    for times in [0.9, 10.0] {
        let figures = run("sliding", 2000, 2000, times, Algorithm::SLIDING_WINDOW).await;
        assert!(figures.most <= 2000, "{} in a window", figures.most);
        assert_eq!(figures.strays, 0, "admitted in a window that was not charged");
        assert!(figures.calls <= 0.3 && figures.utilisation >= 0.9);
    }
}

/// Asks until the store has nothing more; returns how many were admitted.
async fn drain(limiter: &Limiter, plan: &Arc<LimitPlan>) -> u64 {
    let asked = [PlannedCounter { limit: plan.clone(), key: KEY, cost: 1 }];
    let mut admitted = 0;
    loop {
        let outcome = limiter.check(&asked).await.unwrap();
        if !outcome.response.admitted {
            return admitted;
        }
        admitted += 1;
    }
}

/// The longest period: no test ends in another window than it began, except once a year and for a few seconds.
const YEAR: u64 = sluice_limiter::MAX_PERIOD_MS;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_loses_no_more_than_their_blocks_when_holders_die() {
    let redis = Redis::start(&[]);
    let plan = plan(8, 10_000, YEAR, Algorithm::FIXED_WINDOW, Consistency::Leased);
    let strict = plan_like(&plan, 8, Consistency::Strict);
    let asked = [PlannedCounter { limit: plan.clone(), key: KEY, cost: 1 }];
    let (mut admitted, mut held) = (0, 0);
    for _ in 0..8 {
        let holder = holder(&redis.url());
        for _ in 0..300 {
            admitted += u64::from(holder.check(&asked).await.unwrap().response.admitted);
        }
        eventually("nothing is under way", || async { holder.metrics().unwrap().lease.under_way == 0 }).await;
        held += in_hand(&holder.metrics().unwrap().lease);
        // It dies without a word.
        drop(holder);
    }
    assert_eq!(admitted, 8 * 300);
    assert!(held > 0, "they held something");
    let last = holder(&redis.url());
    let rest = drain(&last, &strict).await;
    println!("8 holders died with {held} unused of {admitted} admitted; {rest} were left of 10000");
    assert!(admitted + rest <= 10_000);
    assert_eq!(
        admitted + rest + held,
        10_000,
        "what they held is lost until the window ends, and nothing else"
    );
}

fn plan_like(plan: &LimitPlan, holders: u32, consistency: Consistency) -> Arc<LimitPlan> {
    let sharers = Replicas::new(Replica::new(0, holders));
    Arc::new(LimitPlan::new(plan.spec.clone(), consistency, plan.on_failure, false, sharers))
}

fn in_hand(m: &sluice_store::LeaseMetrics) -> u64 {
    m.taken - m.admitted_locally - m.returned - m.lost
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_takes_back_what_a_closing_holder_has_not_used() {
    let redis = Redis::start(&[]);
    let plan = plan(1, 10_000, YEAR, Algorithm::FIXED_WINDOW, Consistency::Leased);
    let asked = [PlannedCounter { limit: plan.clone(), key: KEY, cost: 1 }];
    let holder = holder(&redis.url());
    for _ in 0..300 {
        assert!(holder.check(&asked).await.unwrap().response.admitted);
    }
    holder.close().await;
    assert!(holder.metrics().unwrap().lease.returned > 0);
    drop(holder);
    let last = self::holder(&redis.url());
    assert_eq!(drain(&last, &plan_like(&plan, 1, Consistency::Strict)).await, 10_000 - 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_is_killed_and_comes_back_empty_while_leases_are_out() {
    const PODS: u32 = 8;
    let mut redis = Redis::start_restartable(&[]);
    let plan = plan(PODS, 8_000, YEAR, Algorithm::FIXED_WINDOW, Consistency::Leased);
    let asked = [PlannedCounter { limit: plan.clone(), key: KEY, cost: 1 }];
    let holders: Vec<_> = (0..PODS).map(|_| holder(&redis.url())).collect();
    let (mut before, mut without, mut after) = (0u64, 0u64, 0u64);
    for holder in &holders {
        for _ in 0..300 {
            before += u64::from(holder.check(&asked).await.unwrap().response.admitted);
        }
    }
    assert_eq!(before, u64::from(PODS) * 300);
    let strict = plan_like(&plan, PODS, Consistency::Strict);
    for holder in &holders {
        eventually("nothing is under way", || async { holder.metrics().unwrap().lease.under_way == 0 }).await;
    }
    for holder in &holders {
        // Everybody hears how the counter stands.
        let peek = [PlannedCounter { limit: strict.clone(), key: KEY, cost: 0 }];
        assert!(holder.check(&peek).await.unwrap().response.admitted);
    }
    redis.kill();
    for holder in &holders {
        // Nobody is refused an answer, and everybody stops at a share.
        loop {
            let outcome = holder.check(&asked).await.unwrap();
            if !outcome.response.admitted {
                break;
            }
            without += 1;
        }
    }
    assert!(without > 0);
    assert!(before + without <= 8_000, "all know how it stood, and the sum of their shares is what was left");
    redis.restart();
    for holder in &holders {
        healthy(holder).await;
    }
    for holder in &holders {
        eventually("it has told the store", || async { holder.metrics().unwrap().share.pending == 0 }).await;
    }
    for holder in &holders {
        after += drain(holder, &plan).await;
        after += drain(holder, &strict).await;
    }
    println!(
        "N = 8000: {before} admitted before the store was killed, {without} without it, {after} after it came back empty"
    );
    // What was known when it died was mended.
    assert!(before + without + after <= 8_000, "a burst after the recovery");
    let asked = [PlannedCounter { limit: strict, key: KEY, cost: 1 }];
    let outcome = holders[0].check(&asked).await.unwrap();
    assert!(!outcome.response.admitted && matches!(outcome.source, Source::Store | Source::DenialCache));
}
