//! Shares against a real server that can be cut off, stopped and killed: how much is admitted without it, and that
//! nothing more is when it is back.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::{
    CheckOutcome, Consistency, LimitPlan, Limiter, LimiterOptions, OnStoreFailure, PlannedCounter, Replica,
    Replicas, Reservation, Source,
};
use sluice_store::{KeyHash, LimitSpec, RedisOptions, RedisStore, StoreError, StoreHealth};
use support::{Redis, eventually};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The longest period: no test ends in another window than it began, except once a year and for a few seconds.
const YEAR: u64 = sluice_limiter::MAX_PERIOD_MS;

const BUDGET: Duration = Duration::from_millis(500);

/// A way to the server that can be cut: connections end, and new ones are closed at once.
struct Way {
    port: u16,
    open: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Way {
    async fn to(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (open, is_open) = watch::channel(true);
        let task = tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let mut is_open = is_open.clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else { return };
                    tokio::select! {
                        _ = is_open.wait_for(|open| !open) => {}
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    }
                });
            }
        });
        Self { port, open, task }
    }

    fn cut(&self) {
        self.open.send_replace(false);
    }

    fn mend(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A plan; each pod makes its own of it.
fn plan(requests: u64, algorithm: Algorithm, on_failure: OnStoreFailure) -> Arc<LimitPlan> {
    let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(YEAR).unwrap());
    let spec = LimitSpec::new("ns/policy/shared", vec![Rate::new(requests, period, algorithm).unwrap()]);
    let sharers = Replicas::alone();
    Arc::new(LimitPlan::new(Arc::new(spec), Consistency::Strict, on_failure, false, sharers))
}

/// One of those that share every plan.
struct Pod {
    limiter: Limiter,
    sharers: Arc<Replicas>,
    /// Its own plans, by the limit.
    plans: Mutex<Vec<Arc<LimitPlan>>>,
}

impl std::ops::Deref for Pod {
    type Target = Limiter;

    fn deref(&self) -> &Self::Target {
        &self.limiter
    }
}

impl Pod {
    fn asked(&self, plan: &LimitPlan, key: u128, cost: u64) -> PlannedCounter {
        let mut plans = self.plans.lock().unwrap();
        let known = plans
            .iter()
            .find(|known| Arc::ptr_eq(&known.spec, &plan.spec) && known.on_failure == plan.on_failure)
            .cloned();
        let limit = known.unwrap_or_else(|| {
            let LimitPlan { spec, consistency, on_failure, .. } = plan;
            let own = LimitPlan::new(spec.clone(), *consistency, *on_failure, false, self.sharers.clone());
            plans.push(Arc::new(own));
            plans[plans.len() - 1].clone()
        });
        // As a hash would spread them.
        let key = KeyHash((key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        PlannedCounter { limit, key, cost }
    }
}

fn store(port: u16) -> Arc<RedisStore> {
    let options =
        RedisOptions { latency_budget: BUDGET, ..RedisOptions::new(format!("redis://127.0.0.1:{port}")) };
    Arc::new(RedisStore::start(options).unwrap())
}

fn options() -> LimiterOptions {
    LimiterOptions { latency_budget: BUDGET, ..LimiterOptions::default() }
}

fn pod(port: u16, index: u32, count: u32) -> Pod {
    let limiter = Limiter::in_redis(store(port), &options(), None);
    Pod { limiter, sharers: Replicas::new(Replica::new(index, count)), plans: Mutex::default() }
}

async fn ask(pod: &Pod, plan: &Arc<LimitPlan>, key: u128, cost: u64) -> CheckOutcome {
    pod.check(&[pod.asked(plan, key, cost)]).await.unwrap()
}

/// How many of so many are admitted.
async fn admitted(pod: &Pod, plan: &Arc<LimitPlan>, key: u128, times: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += u64::from(ask(pod, plan, key, 1).await.response.admitted);
    }
    admitted
}

async fn is(pod: &Pod, healthy: bool) {
    eventually(&format!("healthy: {healthy}"), || async {
        matches!(pod.health(), StoreHealth::Healthy) == healthy
    })
    .await;
}

async fn told(pods: &[Pod]) {
    for pod in pods {
        eventually("it has told the store", || async { pod.metrics().unwrap().share.pending == 0 }).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_holds_the_number_when_some_pods_are_cut_off_and_come_back() {
    const PODS: u32 = 10;
    const CUT: usize = 4;
    // 1003: some pods get one more than others.
    for (n, (number, before)) in [(1003u64, 300u64), (1003, 1003), (7, 2), (40, 0)].into_iter().enumerate() {
        for algorithm in [Algorithm::SLIDING_WINDOW, Algorithm::FIXED_WINDOW] {
            let redis = Redis::start(&[]);
            let way = Way::to(redis.port).await;
            let plan = plan(number, algorithm, OnStoreFailure::Share);
            let pods: Vec<_> = (0..PODS)
                .map(|n| pod(if (n as usize) < CUT { way.port } else { redis.port }, n, PODS))
                .collect();
            let key = n as u128;
            let mut total = 0;
            for pod in &pods {
                is(pod, true).await;
            }
            for n in 0..before {
                total += admitted(&pods[n as usize % pods.len()], &plan, key, 1).await;
            }
            assert_eq!(total, before);
            for pod in &pods {
                // Everybody knows how it stands.
                assert!(ask(pod, &plan, key, 0).await.response.decisions[0].remaining == number - before);
            }
            way.cut();
            let mut alone = 0;
            for pod in &pods[..CUT] {
                is(pod, false).await;
                alone += admitted(pod, &plan, key, number + 1).await;
                let outcome = ask(pod, &plan, key, 1).await;
                assert!(
                    outcome.source == Source::Share
                        && !outcome.response.admitted
                        && outcome.failure.is_some()
                );
                assert_eq!(outcome.response.decisions[0].limit, number);
            }
            let left = number - before;
            assert!(alone <= left * CUT as u64 / u64::from(PODS) + CUT as u64, "{alone} without the store");
            assert!(alone > 0 || left < u64::from(PODS), "somebody has a share");
            total += alone;
            way.mend();
            let begun = Instant::now();
            for pod in &pods[..CUT] {
                is(pod, true).await;
            }
            told(&pods).await;
            let back = begun.elapsed();
            let mut after = 0;
            for pod in &pods {
                after += admitted(pod, &plan, key, number + 1).await;
            }
            total += after;
            println!(
                "{algorithm:?} N = {number}: {before} before, {alone} by {CUT} of {PODS} pods without the store, \
                 {after} after {back:?}"
            );
            assert_eq!(total, number, "no burst, and nothing lost");
        }
    }
}

/// Nobody waits for anybody: all ask all the time, while some are cut off and come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_keeps_the_bound_under_load_through_an_outage() {
    const PODS: u32 = 10;
    const CUT: u64 = 4;
    let number = 2_000;
    let redis = Redis::start(&[]);
    let way = Way::to(redis.port).await;
    let plan = plan(number, Algorithm::SLIDING_WINDOW, OnStoreFailure::Share);
    let pods: Vec<_> = (0..PODS)
        .map(|n| Arc::new(pod(if u64::from(n) < CUT { way.port } else { redis.port }, n, PODS)))
        .collect();
    for pod in &pods {
        is(pod, true).await;
    }
    let running: Vec<_> = pods
        .iter()
        .map(|pod| {
            let (pod, plan) = (pod.clone(), plan.clone());
            // Each asks for three times its share, slowly enough to live through all of it.
            tokio::spawn(async move {
                let mut total = 0;
                for _ in 0..600 {
                    total += admitted(&pod, &plan, 5, 1).await;
                    tokio::time::sleep(Duration::from_millis(3)).await;
                }
                total
            })
        })
        .collect();
    eventually("some are admitted", || async { pods[9].redis().unwrap().metrics().checks > 50 }).await;
    way.cut();
    for pod in &pods[..CUT as usize] {
        is(pod, false).await;
        eventually("it counts alone", || async { pod.metrics().unwrap().share.admitted > 20 }).await;
    }
    way.mend();
    let mut total = 0;
    for task in running {
        total += task.await.unwrap();
    }
    for pod in &pods {
        is(pod, true).await;
        eventually("it has told the store", || async { pod.metrics().unwrap().share.pending == 0 }).await;
    }
    for pod in &pods {
        total += admitted(pod, &plan, 5, number).await;
    }
    println!("N = {number}, {CUT} of {PODS} cut off for a while under load: {total} admitted");
    assert!(total <= number + number * CUT / u64::from(PODS), "{total} of {number}");
    // What was under way when the way was cut may be counted and not admitted.
    assert!(total >= number * 98 / 100, "{total} of {number}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_is_no_burst_when_the_store_comes_back_empty() {
    const PODS: u32 = 10;
    let mut redis = Redis::start_restartable(&[]);
    let plan = plan(1_000, Algorithm::FIXED_WINDOW, OnStoreFailure::Share);
    let pods: Vec<_> = (0..PODS).map(|n| pod(redis.port, n, PODS)).collect();
    let (keys, mut total) = (5u128, vec![0; 5]);
    for key in 0..keys {
        for pod in &pods {
            is(pod, true).await;
            total[key as usize] += admitted(pod, &plan, key, 40).await;
        }
        for pod in &pods {
            ask(pod, &plan, key, 0).await;
        }
    }
    redis.kill();
    let mut alone = 0;
    for pod in &pods {
        is(pod, false).await;
        for key in 0..keys {
            let more = admitted(pod, &plan, key, 200).await;
            total[key as usize] += more;
            alone += more;
        }
    }
    assert!(
        total.iter().all(|&total| total <= 1_000 && total > 900),
        "{total:?}: near the number without a store"
    );
    redis.restart();
    for pod in &pods {
        is(pod, true).await;
    }
    told(&pods).await;
    let mut burst = 0;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        for pod in &pods {
            for key in 0..keys {
                burst += admitted(pod, &plan, key, 1).await;
            }
        }
    }
    println!(
        "5 keys of N = 1000: 2000 before, {alone} without a store, {burst} in the second after it came back empty"
    );
    // Rounding of shares leaves a few.
    let left: u64 = total.iter().map(|total| 1_000 - total).sum();
    assert!(burst <= left, "{burst} of {left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_counts_while_the_store_is_stopped() {
    let redis = Redis::start(&[]);
    let plan = plan(100, Algorithm::SLIDING_WINDOW, OnStoreFailure::Share);
    let pods = [pod(redis.port, 0, 2), pod(redis.port, 1, 2)];
    for pod in &pods {
        is(pod, true).await;
        assert_eq!(admitted(pod, &plan, 1, 20).await, 20);
    }
    for pod in &pods {
        ask(pod, &plan, 1, 0).await;
    }
    redis.stop();
    for pod in &pods {
        assert_eq!(admitted(pod, &plan, 1, 100).await, 30, "its share of what was left");
    }
    redis.go_on();
    for pod in &pods {
        is(pod, true).await;
    }
    // Each pod tells before its own first check; what others may still take meanwhile is not asked here.
    told(&pods).await;
    let mut after = 0;
    for pod in &pods {
        after += admitted(pod, &plan, 1, 200).await;
    }
    assert_eq!(after, 0, "40 before, 60 without");
}

/// The way that was known ends for good, as with a password that was changed in the store first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_is_told_by_the_limiter_that_takes_the_place_when_the_old_way_is_gone() {
    let redis = Redis::start(&[]);
    let way = Way::to(redis.port).await;
    let plan = plan(1_000, Algorithm::FIXED_WINDOW, OnStoreFailure::Share);
    let old = pod(way.port, 0, 2);
    is(&old, true).await;
    assert_eq!(admitted(&old, &plan, 1, 100).await, 100);
    way.cut();
    is(&old, false).await;
    assert_eq!(admitted(&old, &plan, 1, 1_000).await, 450, "half of what was left");
    let limiter = Limiter::in_redis(store(redis.port), &options(), Some(&old.limiter));
    let new = Pod { limiter, sharers: old.sharers.clone(), plans: Mutex::default() };
    old.close().await;
    drop(old);
    is(&new, true).await;
    assert_eq!(admitted(&new, &plan, 1, 1_000).await, 450);
    let other = pod(redis.port, 1, 2);
    is(&other, true).await;
    assert_eq!(admitted(&other, &plan, 1, 10).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_follows_what_the_limits_say() {
    let redis = Redis::start_restartable(&[]);
    let (allow, deny, share) = (
        plan(1_000, Algorithm::FIXED_WINDOW, OnStoreFailure::Allow),
        plan(1_000, Algorithm::FIXED_WINDOW, OnStoreFailure::Deny),
        plan(10, Algorithm::FIXED_WINDOW, OnStoreFailure::Share),
    );
    let pod = pod(redis.port, 0, 2);
    is(&pod, true).await;
    drop(redis);
    is(&pod, false).await;
    let outcome = pod.check(&[pod.asked(&allow, 1, 1)]).await.unwrap();
    assert!(outcome.response.admitted && outcome.source == Source::Nobody);
    assert_eq!(outcome.reservations[0], Reservation::Nothing);
    assert!(matches!(pod.check(&[pod.asked(&deny, 1, 1)]).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(
        pod.check(&[pod.asked(&allow, 1, 1), pod.asked(&deny, 1, 1)]).await,
        Err(StoreError::Unavailable(_))
    ));
    let both = [pod.asked(&allow, 1, 1), pod.asked(&share, 2, 1)];
    for _ in 0..5 {
        let outcome = pod.check(&both).await.unwrap();
        assert!(outcome.response.admitted && matches!(outcome.reservations[1], Reservation::Local(_)));
    }
    let outcome = pod.check(&both).await.unwrap();
    assert!(!outcome.response.admitted && outcome.response.decisions.len() == 2);
    assert!(outcome.response.decisions[0].admitted && !outcome.response.decisions[1].admitted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_is_remembered_and_asks_nobody() {
    let redis = Redis::start(&[]);
    let plan = plan(3, Algorithm::FIXED_WINDOW, OnStoreFailure::Share);
    let pod = pod(redis.port, 0, 1);
    let settled = LimitPlan::new(
        plan.spec.clone(),
        Consistency::Strict,
        OnStoreFailure::Share,
        true,
        Replicas::alone(),
    );
    let settled = PlannedCounter { limit: Arc::new(settled), ..pod.asked(&plan, 1, 1) };
    is(&pod, true).await;
    assert_eq!(admitted(&pod, &plan, 1, 4).await, 3);
    let begun = Instant::now();
    let before = pod.redis().unwrap().metrics().checks;
    assert_eq!(admitted(&pod, &plan, 1, 1_000).await, 0);
    // One second at most; then it asks again.
    let asked = pod.redis().unwrap().metrics().checks - before;
    assert!(asked <= 1 + begun.elapsed().as_secs(), "{asked} of 1000 denials asked the store");
    assert!(pod.metrics().unwrap().denials_remembered >= 1_000 - asked);
    let before = pod.redis().unwrap().metrics().checks;
    for _ in 0..10 {
        assert!(!pod.check(std::slice::from_ref(&settled)).await.unwrap().response.admitted);
    }
    assert_eq!(
        pod.redis().unwrap().metrics().checks - before,
        10,
        "a limit that is settled may have room at any time"
    );
}
