//! Local quota against a real server that can be cut off, stopped and killed: how much is admitted without
//! it, and that its recovery admits no burst.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::{
    CheckOutcome, Consistency, KeyHash, LimitPlan, LimitSpec, Limiter, LimiterOptions, OnStoreFailure,
    PlannedCounter, RedisOptions, RedisStore, Replica, Replicas, Reservation, Source, StoreError,
    StoreHealth,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{Redis, eventually};

crate::servers::pass_with_other_servers!();

/// The longest period. A test crosses the end of such a window only in a few seconds of a year.
const YEAR: u64 = sluice_limiter::MAX_PERIOD_MS;

/// Latency budget of the limiters and stores.
const BUDGET: Duration = Duration::from_millis(500);

/// A TCP proxy to the server that can be cut: connections end, and new ones are closed immediately.
struct Link {
    port: u16,
    open: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Link {
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

impl Drop for Link {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns a plan that each replica copies with its own share.
fn plan(requests: u64, algorithm: Algorithm, on_failure: OnStoreFailure) -> Arc<LimitPlan> {
    let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(YEAR).unwrap());
    let spec = LimitSpec::new("ns/policy/limit", vec![Rate::new(requests, period, algorithm).unwrap()]);
    let replicas = Replicas::alone();
    Arc::new(LimitPlan::new(Arc::new(spec), Consistency::Strict, on_failure, false, replicas))
}

/// One replica with its own limiter.
struct Pod {
    limiter: Limiter,
    replicas: Arc<Replicas>,
    /// Its copies of the plans.
    plans: Mutex<Vec<Arc<LimitPlan>>>,
}

impl std::ops::Deref for Pod {
    type Target = Limiter;

    fn deref(&self) -> &Self::Target {
        &self.limiter
    }
}

impl Pod {
    fn counter(&self, plan: &LimitPlan, key: u128, cost: u64) -> PlannedCounter {
        let mut plans = self.plans.lock().unwrap();
        let copy = plans
            .iter()
            .find(|copy| Arc::ptr_eq(&copy.spec, &plan.spec) && copy.on_failure == plan.on_failure)
            .cloned();
        let limit = copy.unwrap_or_else(|| {
            let LimitPlan { spec, consistency, on_failure, .. } = plan;
            let own = LimitPlan::new(spec.clone(), *consistency, *on_failure, false, self.replicas.clone());
            plans.push(Arc::new(own));
            plans[plans.len() - 1].clone()
        });
        // Spreads the keys as a hash would.
        let key = KeyHash((key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        PlannedCounter { limit, key, cost }
    }
}

fn store(port: u16) -> Arc<RedisStore> {
    let options = RedisOptions {
        latency_budget: BUDGET,
        ..RedisOptions::from_url(&format!("redis://127.0.0.1:{port}")).unwrap()
    };
    Arc::new(RedisStore::start(options).unwrap())
}

fn options() -> LimiterOptions {
    LimiterOptions { latency_budget: BUDGET, ..LimiterOptions::default() }
}

fn pod(port: u16, index: u32, count: u32) -> Pod {
    let limiter = Limiter::in_redis(store(port), &options(), None);
    Pod { limiter, replicas: Replicas::new(Replica::new(index, count)), plans: Mutex::default() }
}

async fn check(pod: &Pod, plan: &Arc<LimitPlan>, key: u128, cost: u64) -> CheckOutcome {
    pod.check(&[pod.counter(plan, key, cost)]).await.unwrap()
}

/// Sends this many checks and returns the number that was admitted.
async fn admitted(pod: &Pod, plan: &Arc<LimitPlan>, key: u128, checks: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..checks {
        admitted += u64::from(check(pod, plan, key, 1).await.response.admitted);
    }
    admitted
}

async fn until_healthy(pod: &Pod) {
    eventually("the store is healthy", || async { pod.health() == StoreHealth::Healthy }).await;
}

async fn until_unhealthy(pod: &Pod) {
    eventually("the store is not healthy", || async { pod.health() != StoreHealth::Healthy }).await;
}

async fn until_flushed(pod: &Pod) {
    eventually("local usage is flushed", || async { pod.metrics().unwrap().local_quota.pending == 0 }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_quota_admits_exactly_the_limit_when_some_replicas_are_cut_off_and_come_back() {
    const PODS: u32 = 10;
    const CUT: usize = 4;
    // The shares of 1003 are not equal.
    for (key, (number, before)) in [(1003u64, 300u64), (1003, 1003), (7, 2), (40, 0)].into_iter().enumerate()
    {
        for algorithm in [Algorithm::SLIDING_WINDOW, Algorithm::FIXED_WINDOW] {
            let redis = Redis::start(&[]);
            let link = Link::to(redis.port).await;
            let plan = plan(number, algorithm, OnStoreFailure::Share);
            let pods: Vec<_> = (0..PODS)
                .map(|n| pod(if (n as usize) < CUT { link.port } else { redis.port }, n, PODS))
                .collect();
            let key = key as u128;
            let mut total = 0;
            for pod in &pods {
                until_healthy(pod).await;
            }
            for n in 0..before {
                total += admitted(&pods[n as usize % pods.len()], &plan, key, 1).await;
            }
            assert_eq!(total, before);
            for pod in &pods {
                // Each replica learns the usage.
                assert!(check(pod, &plan, key, 0).await.response.decisions[0].remaining == number - before);
            }
            link.cut();
            let mut alone = 0;
            for pod in &pods[..CUT] {
                until_unhealthy(pod).await;
                alone += admitted(pod, &plan, key, number + 1).await;
                let outcome = check(pod, &plan, key, 1).await;
                assert!(
                    outcome.source == Source::LocalQuota
                        && !outcome.response.admitted
                        && outcome.failure.is_some()
                );
                assert_eq!(outcome.response.decisions[0].limit, number);
            }
            let left = number - before;
            assert!(alone <= left * CUT as u64 / u64::from(PODS) + CUT as u64, "{alone} without the store");
            assert!(alone > 0 || left < u64::from(PODS), "some share is not 0");
            total += alone;
            link.mend();
            let restored = Instant::now();
            for pod in &pods[..CUT] {
                until_healthy(pod).await;
            }
            for pod in &pods {
                until_flushed(pod).await;
            }
            let recovery = restored.elapsed();
            let mut after = 0;
            for pod in &pods {
                after += admitted(pod, &plan, key, number + 1).await;
            }
            total += after;
            println!(
                "{algorithm:?} N = {number}: {before} before, {alone} by {CUT} of {PODS} replicas without the store, \
                 {after} after {recovery:?}"
            );
            assert_eq!(total, number, "no burst, and no lost quota");
        }
    }
}

/// All replicas send checks all the time, while some of them are cut off and come back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_quota_keeps_its_bound_under_load_through_an_outage() {
    const PODS: u32 = 10;
    const CUT: u64 = 4;
    let number = 2_000;
    let redis = Redis::start(&[]);
    let link = Link::to(redis.port).await;
    let plan = plan(number, Algorithm::SLIDING_WINDOW, OnStoreFailure::Share);
    let pods: Vec<_> = (0..PODS)
        .map(|n| Arc::new(pod(if u64::from(n) < CUT { link.port } else { redis.port }, n, PODS)))
        .collect();
    for pod in &pods {
        until_healthy(pod).await;
    }
    let running: Vec<_> = pods
        .iter()
        .map(|pod| {
            let (pod, plan) = (pod.clone(), plan.clone());
            // Each replica sends three times its share, over a longer time than the outage.
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
    eventually("some checks are sent", || async { pods[9].redis().unwrap().metrics().checks > 50 }).await;
    link.cut();
    for pod in &pods[..CUT as usize] {
        until_unhealthy(pod).await;
        eventually("it counts locally", || async { pod.metrics().unwrap().local_quota.admitted > 20 }).await;
    }
    link.mend();
    let mut total = 0;
    for task in running {
        total += task.await.unwrap();
    }
    for pod in &pods {
        until_healthy(pod).await;
        until_flushed(pod).await;
    }
    for pod in &pods {
        total += admitted(pod, &plan, 5, number).await;
    }
    println!("N = {number}, {CUT} of {PODS} cut off for a while under load: {total} admitted");
    assert!(total <= number + number * CUT / u64::from(PODS), "{total} of {number}");
    // Checks in flight when the link was cut can be charged without being admitted.
    assert!(total >= number * 98 / 100, "{total} of {number}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_quota_prevents_a_burst_when_the_store_comes_back_empty() {
    const PODS: u32 = 10;
    let mut redis = Redis::start_restartable(&[]);
    let plan = plan(1_000, Algorithm::FIXED_WINDOW, OnStoreFailure::Share);
    let pods: Vec<_> = (0..PODS).map(|n| pod(redis.port, n, PODS)).collect();
    let (keys, mut total) = (5u128, vec![0; 5]);
    for key in 0..keys {
        for pod in &pods {
            until_healthy(pod).await;
            total[key as usize] += admitted(pod, &plan, key, 40).await;
        }
        for pod in &pods {
            check(pod, &plan, key, 0).await;
        }
    }
    redis.kill();
    let mut alone = 0;
    for pod in &pods {
        until_unhealthy(pod).await;
        for key in 0..keys {
            let more = admitted(pod, &plan, key, 200).await;
            total[key as usize] += more;
            alone += more;
        }
    }
    assert!(
        total.iter().all(|&total| total <= 1_000 && total > 900),
        "{total:?}: near the limit without a store"
    );
    redis.restart();
    for pod in &pods {
        until_healthy(pod).await;
    }
    for pod in &pods {
        until_flushed(pod).await;
    }
    let mut burst = 0;
    let recovered = Instant::now();
    while recovered.elapsed() < Duration::from_secs(1) {
        for pod in &pods {
            for key in 0..keys {
                burst += admitted(pod, &plan, key, 1).await;
            }
        }
    }
    println!(
        "5 keys of N = 1000: 2000 before, {alone} without a store, {burst} in the second after it came back empty"
    );
    // The rounding of shares leaves a few requests.
    let left: u64 = total.iter().map(|total| 1_000 - total).sum();
    assert!(burst <= left, "{burst} of {left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_quota_decides_while_the_store_is_stopped() {
    let redis = Redis::start(&[]);
    let plan = plan(100, Algorithm::SLIDING_WINDOW, OnStoreFailure::Share);
    let pods = [pod(redis.port, 0, 2), pod(redis.port, 1, 2)];
    for pod in &pods {
        until_healthy(pod).await;
        assert_eq!(admitted(pod, &plan, 1, 20).await, 20);
    }
    for pod in &pods {
        check(pod, &plan, 1, 0).await;
    }
    redis.stop();
    for pod in &pods {
        assert_eq!(admitted(pod, &plan, 1, 100).await, 30, "its share of the rest");
    }
    redis.go_on();
    for pod in &pods {
        until_healthy(pod).await;
    }
    // A replica flushes before its own next check, but others may flush later. So all flush first here.
    for pod in &pods {
        until_flushed(pod).await;
    }
    let mut after = 0;
    for pod in &pods {
        after += admitted(pod, &plan, 1, 200).await;
    }
    assert_eq!(after, 0, "40 before, 60 without the store");
}

/// The old connection never comes back, for example because the store's password was changed first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_successor_of_a_limiter_flushes_its_local_usage() {
    let redis = Redis::start(&[]);
    let link = Link::to(redis.port).await;
    let plan = plan(1_000, Algorithm::FIXED_WINDOW, OnStoreFailure::Share);
    let old = pod(link.port, 0, 2);
    until_healthy(&old).await;
    assert_eq!(admitted(&old, &plan, 1, 100).await, 100);
    link.cut();
    until_unhealthy(&old).await;
    assert_eq!(admitted(&old, &plan, 1, 1_000).await, 450, "half of the rest");
    let limiter = Limiter::in_redis(store(redis.port), &options(), Some(&old.limiter));
    let new = Pod { limiter, replicas: old.replicas.clone(), plans: Mutex::default() };
    old.close().await;
    drop(old);
    until_healthy(&new).await;
    assert_eq!(admitted(&new, &plan, 1, 1_000).await, 450);
    let other = pod(redis.port, 1, 2);
    until_healthy(&other).await;
    assert_eq!(admitted(&other, &plan, 1, 10).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_store_failure_decides_checks_when_the_store_is_gone() {
    let redis = Redis::start_restartable(&[]);
    let (allow, deny, share) = (
        plan(1_000, Algorithm::FIXED_WINDOW, OnStoreFailure::Allow),
        plan(1_000, Algorithm::FIXED_WINDOW, OnStoreFailure::Deny),
        plan(10, Algorithm::FIXED_WINDOW, OnStoreFailure::Share),
    );
    let pod = pod(redis.port, 0, 2);
    until_healthy(&pod).await;
    drop(redis);
    until_unhealthy(&pod).await;
    let outcome = pod.check(&[pod.counter(&allow, 1, 1)]).await.unwrap();
    assert!(outcome.response.admitted && outcome.source == Source::FailOpen);
    assert_eq!(outcome.reservations[0], Reservation::Nothing);
    assert!(matches!(pod.check(&[pod.counter(&deny, 1, 1)]).await, Err(StoreError::Unavailable(_))));
    assert!(matches!(
        pod.check(&[pod.counter(&allow, 1, 1), pod.counter(&deny, 1, 1)]).await,
        Err(StoreError::Unavailable(_))
    ));
    let both = [pod.counter(&allow, 1, 1), pod.counter(&share, 2, 1)];
    for _ in 0..5 {
        let outcome = pod.check(&both).await.unwrap();
        assert!(outcome.response.admitted && matches!(outcome.reservations[1], Reservation::Local(_)));
    }
    let outcome = pod.check(&both).await.unwrap();
    assert!(!outcome.response.admitted && outcome.response.decisions.len() == 2);
    assert!(outcome.response.decisions[0].admitted && !outcome.response.decisions[1].admitted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_remembered_denial_makes_no_call() {
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
    let settled = PlannedCounter { limit: Arc::new(settled), ..pod.counter(&plan, 1, 1) };
    until_healthy(&pod).await;
    assert_eq!(admitted(&pod, &plan, 1, 4).await, 3);
    let start = Instant::now();
    let before = pod.redis().unwrap().metrics().checks;
    assert_eq!(admitted(&pod, &plan, 1, 1_000).await, 0);
    // A denial is remembered for one second at most.
    let calls = pod.redis().unwrap().metrics().checks - before;
    assert!(calls <= 1 + start.elapsed().as_secs(), "{calls} calls for 1000 denials");
    assert!(pod.metrics().unwrap().remembered_denials >= 1_000 - calls);
    let before = pod.redis().unwrap().metrics().checks;
    for _ in 0..10 {
        assert!(!pod.check(std::slice::from_ref(&settled)).await.unwrap().response.admitted);
    }
    assert_eq!(
        pod.redis().unwrap().metrics().checks - before,
        10,
        "denials of a limit whose charges are settled are not remembered"
    );
}
