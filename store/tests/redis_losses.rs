//! Counters that Redis has lost are counted, and those that a reset or the time has removed are not.

use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::{Algorithm, Alignment, MAX_PERIOD_MS};
use sluice_store::{
    Consistency, Eviction, KeyHash, LimitPlan, LimitSpec, Limiter, LimiterOptions, OnStoreFailure,
    PlannedCounter, RedisStore, Replica, Replicas,
};

use crate::checks::{healthy, patient, rate};
use crate::support;
use crate::support::{Redis, eventually};

crate::servers::pass_with_other_servers!();

/// Half a year: a window ends during a test only twice a year.
const LONG: u64 = MAX_PERIOD_MS / 2;
/// An odd number of clients, none of which is blocked by another.
const CLIENTS: u128 = 37;

/// Returns a key that is spread over all bits like a hash.
fn key(client: u128) -> KeyHash {
    KeyHash((client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn algorithms() -> [Algorithm; 5] {
    [
        Algorithm::SLIDING_WINDOW,
        Algorithm::FIXED_WINDOW,
        Algorithm::FixedWindow(Alignment::Spread),
        Algorithm::FixedWindow(Alignment::FirstRequest),
        Algorithm::SlidingWindowLog { min_interval: 0 },
    ]
}

fn plan(name: &str, algorithms: &[Algorithm], period: u64, consistency: Consistency) -> Arc<LimitPlan> {
    let rates =
        algorithms.iter().enumerate().map(|(n, &algorithm)| rate(500, period << n, algorithm)).collect();
    let spec = Arc::new(LimitSpec::new(format!("ns/lost/{name}"), rates));
    let replicas = Replicas::new(Replica::new(0, 2));
    Arc::new(LimitPlan::new(spec, consistency, OnStoreFailure::Share, false, replicas))
}

/// Two processes that use a server.
struct Processes([(Limiter, Arc<RedisStore>); 2]);

impl Processes {
    async fn start(redis: &Redis) -> Self {
        let start = || {
            let store = Arc::new(RedisStore::start(patient(&redis.url())).unwrap());
            let options =
                LimiterOptions { latency_budget: Duration::from_secs(10), ..LimiterOptions::default() };
            (Limiter::in_redis(store.clone(), &options, None), store)
        };
        let processes = Self([start(), start()]);
        processes.healthy().await;
        processes
    }

    async fn healthy(&self) {
        for (_, store) in &self.0 {
            healthy(store).await;
        }
    }

    /// Sends a request of each client by both processes at the same time.
    async fn check_all(&self, plans: &[Arc<LimitPlan>]) {
        let by = async |limiter: &Limiter| {
            for client in 0..CLIENTS {
                let counter =
                    |plan: &Arc<LimitPlan>| PlannedCounter { limit: plan.clone(), key: key(client), cost: 1 };
                let check: Vec<_> = plans.iter().map(counter).collect();
                assert!(limiter.check(&check).await.unwrap().response.admitted);
            }
        };
        tokio::join!(by(&self.0[0].0), by(&self.0[1].0));
    }

    fn lost(&self) -> u64 {
        self.0.iter().map(|(limiter, _)| limiter.metrics().unwrap().lost_counters).sum()
    }

    /// Waits until this number of counters is known to be lost.
    async fn until_lost(&self, counters: u64, what: &str) {
        eventually(&format!("{counters} counters of {what} are lost"), || async { self.lost() >= counters })
            .await;
        assert_eq!(self.lost(), counters, "{what}");
    }
}

fn flush(redis: &Redis) {
    let () = redis::cmd("FLUSHALL").query(&mut redis.connection()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_of_all_algorithms_and_scripts_that_were_flushed_are_counted_once() {
    let redis = Redis::start(&[]);
    let processes = Processes::start(&redis).await;
    let strict = |name: &str, algorithms: &[Algorithm]| plan(name, algorithms, LONG, Consistency::Strict);
    let mut cases: Vec<(String, Vec<Arc<LimitPlan>>)> = algorithms()
        .iter()
        .map(|&algorithm| (format!("{algorithm:?}"), vec![strict(&format!("{algorithm:?}"), &[algorithm])]))
        .collect();
    let window = Algorithm::SLIDING_WINDOW;
    // Two rates of one limit, and two limits: the scripts for runs and the general one.
    cases.push(("two rates".into(), vec![strict("rates", &[window, window])]));
    cases.push(("two limits".into(), vec![strict("a", &[window]), strict("b", &[Algorithm::FIXED_WINDOW])]));
    let mut expected = 0;
    for (name, plans) in cases {
        processes.check_all(&plans).await;
        processes.check_all(&plans).await;
        processes.until_lost(expected, &name).await;
        flush(&redis);
        processes.check_all(&plans).await;
        expected += CLIENTS as u64 * plans.len() as u64;
        processes.until_lost(expected, &name).await;
    }
    assert!(processes.0.iter().any(|(limiter, _)| limiter.has_lost_counters()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_all_clients_share_is_counted_when_it_is_lost() {
    let redis = Redis::start(&[]);
    let processes = Processes::start(&redis).await;
    let (own, all) = (
        plan("own", &[Algorithm::SLIDING_WINDOW], LONG, Consistency::Strict),
        plan("all", &[Algorithm::SLIDING_WINDOW], LONG, Consistency::Strict),
    );
    let by = async |limiter: &Limiter| {
        for client in 0..11 {
            let counter = |plan: &Arc<LimitPlan>, key| PlannedCounter { limit: plan.clone(), key, cost: 1 };
            let check = [counter(&own, key(client)), counter(&all, key(99))];
            assert!(limiter.check(&check).await.unwrap().response.admitted);
        }
    };
    let by_both = async || tokio::join!(by(&processes.0[0].0), by(&processes.0[1].0));
    by_both().await;
    flush(&redis);
    by_both().await;
    processes.until_lost(11 + 1, "clients and all").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_restart_is_seen() {
    let mut redis = Redis::start_restartable(&[]);
    let processes = Processes::start(&redis).await;
    let plans = [plan("restart", &[Algorithm::SLIDING_WINDOW], LONG, Consistency::Strict)];
    processes.check_all(&plans).await;
    redis.restart();
    // No request falls back meanwhile, so there is no local usage to flush.
    eventually("both processes have connected again", || async {
        processes.0.iter().all(|(_, store)| store.metrics().reconnects == 1)
    })
    .await;
    processes.healthy().await;
    processes.check_all(&plans).await;
    processes.until_lost(CLIENTS as u64, "a restart").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counters_that_redis_evicts_are_counted() {
    let redis = Redis::start(&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"]);
    let processes = Processes::start(&redis).await;
    assert!(processes.0.iter().all(|(_, store)| store.eviction() == Eviction::Possible));
    let plans = [plan("evicted", &[Algorithm::SLIDING_WINDOW], LONG, Consistency::Strict)];
    processes.check_all(&plans).await;
    let mut connection = redis.connection();
    let set = |connection: &mut redis::Connection, bytes: u64| {
        let () = redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).query(connection).unwrap();
    };
    // Redis evicts all keys that expire, before it finds that this is not enough.
    set(&mut connection, 1);
    let left = || support::keys(&mut redis.connection());
    eventually("all counters are evicted", || async { left() == 0 }).await;
    set(&mut connection, 100 << 20);
    processes.check_all(&plans).await;
    processes.until_lost(CLIENTS as u64, "an eviction").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resets_leases_refunds_edits_and_expired_windows_are_no_losses() {
    let redis = Redis::start(&[]);
    let processes = Processes::start(&redis).await;
    let [(one, _), _] = &processes.0;
    for (n, algorithm) in algorithms().into_iter().enumerate() {
        for consistency in [Consistency::Strict, Consistency::Leased] {
            let name = format!("{n}{consistency:?}");
            let plans = [plan(&name, &[algorithm], LONG, consistency)];
            processes.check_all(&plans).await;
            // A reset, of which the other process has not learned when it asks again.
            for key in (0..CLIENTS).map(key) {
                let removed_at = one.reset_in_store(&plans[0], key).await.unwrap();
                one.forget(&plans, key, removed_at);
            }
            processes.check_all(&plans).await;
            // All that a process was charged is refunded.
            let counter = PlannedCounter { limit: plans[0].clone(), key: key(99), cost: 1 };
            for _ in 0..2 {
                let outcome = one.check(std::slice::from_ref(&counter)).await.unwrap();
                one.settle(&counter, outcome.reservations[0], -1).await.unwrap();
            }
            // An edit.
            let plans = [plan(&name, &[Algorithm::FIXED_WINDOW], LONG / 2, consistency)];
            processes.check_all(&plans).await;
        }
    }
    let short = [plan("short", &[Algorithm::FIXED_WINDOW], 300, Consistency::Strict)];
    for _ in 0..4 {
        processes.check_all(&short).await;
        eventually("the windows have expired", || async {
            let mut connection = redis.connection();
            let script = "return #redis.call('KEYS', '*ns/lost/short*')";
            redis::cmd("EVAL").arg(script).arg(0).query::<u64>(&mut connection).unwrap() == 0
        })
        .await;
    }
    // Something is lost afterwards, so that the count works.
    let last = [plan("last", &[Algorithm::FIXED_WINDOW], LONG, Consistency::Strict)];
    processes.check_all(&last).await;
    flush(&redis);
    processes.check_all(&last).await;
    processes.until_lost(CLIENTS as u64, "the last limit").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whether_a_server_evicts_is_read_where_the_user_may() {
    let redis = Redis::start(&[]);
    let rights =
        "on >secret resetkeys ~sluice:* resetchannels -@all +evalsha +eval +time +get +mget +set +setrange";
    for (user, more, expected) in [("without", "", Eviction::NotSeen), ("with", " +info", Eviction::Never)] {
        let rights = format!("{rights}{more}");
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(user).arg(rights.split(' ').collect::<Vec<_>>());
        let () = command.query(&mut redis.connection()).unwrap();
        let url = format!("redis://{user}:secret@127.0.0.1:{}", redis.port);
        let store = RedisStore::start(patient(&url)).unwrap();
        healthy(&store).await;
        assert_eq!(store.eviction(), expected, "{user}");
    }
}
